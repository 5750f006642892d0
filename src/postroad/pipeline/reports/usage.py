"""Usage of a tenant: messages, deliveries, traffic, storage."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from postroad.api.insights import Grain
from postroad.pipeline.aggregates import last_of, start_of, total_of
from postroad.pipeline.rollups import Counted, Sampled

_TRAFFIC = ("requests", "bytes_in", "bytes_out", "appends", "append_bytes", "fanout_messages")
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

COUNTED = {
    "published": Counted("job.queued"),
    "published_bytes": Counted("job.queued", "payload_bytes"),
    "deliveries": Counted("job.leased"),
    "done": Counted("job.done"),
    "dead": Counted("job.dead"),
    **{name: Counted("traffic.sampled", name) for name in _TRAFFIC},
}
SAMPLED = {
    "storage_byte_seconds": Sampled("storage.sampled", "round(bytes * seconds)", has_top=False, has_last=False),
    "stored_bytes": Sampled("storage.sampled", "bytes", has_top=False),
}


def rows(rollups: DataFrame, grain: Grain) -> DataFrame:
    """`storedBytes` is the last sample, 0 without samples."""
    return (
        rollups.where("report = 'usage'")
        .groupBy("tenant", start_of(grain))
        .agg(
            *(F.expr(f"{total_of(label)} AS {name}") for name, label in _TOTALS.items()),
            F.expr(f"round({total_of('storage_byte_seconds')} / 3600, 3) AS storageByteHours"),
            F.expr(f"coalesce({last_of('stored_bytes')}, 0) AS storedBytes"),
        )
    )
