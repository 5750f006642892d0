"""Events of sessions."""

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from postroad.api.insights import Grain
from postroad.pipeline.aggregates import Measure, aggregate, with_time
from postroad.pipeline.rollups import Counted

COLUMNS = ("is_expired",)
COUNTED = {
    "subscribed": Counted("session.subscribed"),
    "unsubscribed": Counted("session.unsubscribed"),
    "touched": Counted("session.touched"),
    "deleted": Counted("session.ended", condition=lambda events: pc.invert(events.column("is_expired"))),
    "expired": Counted("session.ended", condition=lambda events: events.column("is_expired")),
}


def rows(rollups: pa.Table, grain: Grain) -> pa.Table:
    counts = {label: Measure(label, "count") for label in COUNTED}
    return aggregate(with_time(rollups, "sessions", grain), ("tenant", "time"), counts)
