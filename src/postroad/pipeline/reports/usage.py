"""What a tenant used: messages, deliveries, traffic, storage."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from postroad.pipeline.reports.report import Report, last_of, start_of, total_of

_TOTALS = {
    "published": "published",
    "publishedBytes": "published_bytes",
    "deliveries": "deliveries",
    "done": "done",
    "dead": "dead",
    "requests": "requests",
    "bytesIn": "bytes_in",
    "bytesOut": "bytes_out",
    "appends": "appends",
    "appendBytes": "append_bytes",
    "fanoutMessages": "fanout_messages",
}


def rows(rollups: DataFrame, grain: str) -> DataFrame:
    """`storedBytes` is what the last sample said, 0 if there was none."""
    return (
        rollups.where("report = 'usage'")
        .groupBy("tenant", start_of(grain))
        .agg(
            *(F.expr(f"{total_of(label)} AS {name}") for name, label in _TOTALS.items()),
            F.expr(f"round({total_of('storage_byte_seconds')} / 3600, 3) AS storageByteHours"),
            F.expr(f"coalesce({last_of('stored_bytes')}, 0) AS storedBytes"),
        )
    )


REPORT = Report("usage", rows, rank="requests")
