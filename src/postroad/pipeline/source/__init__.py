"""The Spark data source `jetstream`: streams of a NATS server as tables, batch and streaming, both ways. Knows no Postroad."""
