"""Change streams of buckets, with the bridges running."""
