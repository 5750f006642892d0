"""Everything that happened, read from JetStream by Spark and turned into answers. Needs the extra `postroad[pipeline]`."""
