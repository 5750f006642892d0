"""Spark data source `jetstream`: streams of a NATS server as tables, batch and streaming, reading and writing."""

from spark_jetstream.datasource import JetStreamDataSource

__all__ = ["JetStreamDataSource"]
