"""Computes the rollups of a day again, from its events."""

from functools import partial

import pyarrow as pa  # type: ignore[import-untyped]

from postroad.pipeline.compressed_tables import compress, decompress
from postroad.pipeline.delta_table import TableFormat, write_file
from postroad.pipeline.ingest_task import by_day
from postroad.pipeline.lake import Lake
from postroad.pipeline.measures import measured_columns, measured_tables, measures
from postroad.pipeline.rollups import MEASURES, NO_MEASURES, merge, stored_rollups
from postroad.pipeline.storage import Storage


def rebuild_rollups(lake: Lake, day: str) -> None:
    """Replace the rollups of the day; without events of the day they stay as they are. Raises OtherWriter."""
    files = [(lake.table(name).format, file.path) for name in measured_tables() for file in lake.table(name).files_of_days({day})]
    if not files:
        return
    found = lake.spark.sparkContext.parallelize(files, len(files)).map(partial(_measured, storage=lake.storage)).collect()
    parts = [decompress(one, MEASURES) for one in found]
    rollups = lake.table("rollups")
    stored = stored_rollups(merge(pa.concat_tables([NO_MEASURES, *parts])), rollups.format.schema)
    written = [write_file(lake.storage, rollups.format, name, rows, "rebuilt") for name, rows in by_day(stored, "minute")]
    rollups.commit(written, rollups.files_of_days({day}))


def _measured(file: tuple[TableFormat, str], storage: Storage) -> bytes:
    table, path = file
    columns = measured_columns(table.schema.names)
    return compress(measures(storage.read_table(f"{table.name}/{path}", table.schema, columns), table.name))
