"""Contents of queues over time."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from postroad.api.insights import Grain
from postroad.pipeline.aggregates import mean_of, start_of, top_of
from postroad.pipeline.rollups import Sampled

# An empty queue has an oldest message of 0 ms, so that its last sample shows that no message waits any more. All are whole
# numbers, whose sums do not depend on the order; a small outflow is rounded up to 1.
_LEVELS = {
    **{name: name for name in ("ready", "leased", "delayed", "dead", "waiting", "expected_drain_seconds")},
    "retrying": "coalesce(retrying, 0)",  # older samples do not have it: their `leased` contains these messages
    "oldest_age_ms": "coalesce(oldest_age_ms, 0)",
    "out": "bigint(if(out_per_second * seconds > 0, greatest(1, round(out_per_second * seconds)), 0))",
}
SAMPLED = {label: Sampled("queue.sampled", level) for label, level in _LEVELS.items()}


def rows(rollups: DataFrame, grain: Grain) -> DataFrame:
    """Means of the samples, except for `readyMax` and `oldestAgeMsMax`."""
    oldest = top_of("oldest_age_ms")
    return (
        rollups.where("report = 'backlog'")
        .groupBy("tenant", start_of(grain), F.expr("name AS queue"))
        .agg(
            F.expr(f"{mean_of('ready')} AS ready"),
            F.expr(f"{top_of('ready')} AS readyMax"),
            F.expr(f"{mean_of('leased')} AS leased"),
            F.expr(f"coalesce({mean_of('retrying')}, 0.0D) AS retrying"),
            F.expr(f"{mean_of('delayed')} AS delayed"),
            F.expr(f"{mean_of('dead')} AS dead"),
            F.expr(f"CASE WHEN {top_of('ready')} > 0 OR {oldest} > 0 THEN {oldest} END AS oldestAgeMsMax"),
        )
    )
