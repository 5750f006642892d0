"""Data source registered with Spark: its name, schema, readers and writers."""

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from spark_jetstream.options import read_options, write_options
from spark_jetstream.reader import JetStreamReader, JetStreamStreamReader
from spark_jetstream.record_batches import SCHEMA
from spark_jetstream.writer import JetStreamStreamWriter, JetStreamWriter, check_schema


class JetStreamDataSource(DataSource):
    """Streams of a NATS server: `spark.dataSource.register(JetStreamDataSource)`, then `format("jetstream")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)

    def __repr__(self) -> str:
        return "JetStreamDataSource()"  # the options may contain secrets

    @classmethod
    def name(cls) -> str:
        return "jetstream"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return JetStreamReader(read_options(self.options, is_streaming=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return JetStreamStreamReader(read_options(self.options, is_streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = write_options(self.options)
        check_schema(schema, overwrite)
        return JetStreamWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        options = write_options(self.options)
        check_schema(schema, overwrite)
        return JetStreamStreamWriter(options)
