"""Usage of a tenant: messages, deliveries, traffic, storage."""

from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.api.insights import Grain
from postroad.pipeline.aggregates import Measure, aggregate, rounded, with_time
from postroad.pipeline.rollups import Counted, Sampled

COLUMNS = ("bytes", "seconds")
_TRAFFIC = ("requests", "bytes_in", "bytes_out", "appends", "append_bytes", "fanout_messages")
_TOTALS = {
    "published": "published",
    "publishedBytes": "published_bytes",
    "deliveries": "deliveries",
    "done": "done",
    "dead": "dead",
    "cancelled": "cancelled",
    "expired": "expired",
    "requests": "requests",
    "bytesIn": "bytes_in",
    "bytesOut": "bytes_out",
    "appends": "appends",
    "appendBytes": "append_bytes",
    "fanoutMessages": "fanout_messages",
}


def _byte_seconds(events: pa.Table) -> Any:
    return pc.round(pc.multiply(events.column("bytes"), events.column("seconds")), round_mode="half_towards_infinity")


COUNTED = {
    "published": Counted("job.queued"),
    "published_bytes": Counted("job.queued", "payload_bytes"),
    "deliveries": Counted("job.leased"),
    "done": Counted("job.done"),
    "dead": Counted("job.dead"),
    "cancelled": Counted("job.cancelled"),
    "expired": Counted("job.expired"),
    **{name: Counted("traffic.sampled", name) for name in _TRAFFIC},
}
SAMPLED = {
    "storage_byte_seconds": Sampled("storage.sampled", _byte_seconds, has_top=False, has_last=False),
    "stored_bytes": Sampled("storage.sampled", "bytes", has_top=False),
}


def rows(rollups: pa.Table, grain: Grain) -> pa.Table:
    """`storedBytes` is the last sample, 0 without samples."""
    measures = {
        **{name: Measure(label, "total") for name, label in _TOTALS.items()},
        "byte_seconds": Measure("storage_byte_seconds", "total"),
        "stored": Measure("stored_bytes", "last"),
    }
    found = aggregate(with_time(rollups, "usage", grain), ("tenant", "time"), measures)
    hours = rounded(pc.divide(found.column("byte_seconds").cast(pa.float64()), 3600.0))
    stored = pc.fill_null(found.column("stored"), 0)
    totals = found.select(["tenant", "time", *_TOTALS])
    return totals.append_column("storageByteHours", hours).append_column("storedBytes", stored)
