"""The Spark data source `jetstream`: streams of a NATS server as tables, batch and streaming, both ways. Knows no Postroad."""

from spark_jetstream.datasource import JetStreamDataSource

__all__ = ["JetStreamDataSource"]
