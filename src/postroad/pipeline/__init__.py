"""The data pipeline: Spark reads all events from JetStream and computes reports. Needs the extra `postroad[pipeline]`."""
