"""Benchmarks: each runs next to a peer in the same run, so that the ratio is comparable between machines."""
