"""Results of a report: the latest message of each subject is kept on `INSIGHTS`.

The rows of a day are in several messages: one for the grain `day`, one for `hour`, and one for the minutes of each hour.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.api.insights import Batch, Grain
from postroad.contracts.contract import Contract
from postroad.kernel.clock import Timestamp

SNAPSHOT_DAY, SNAPSHOT_PART = "now", "all"  # of a report without grains: its rows describe the present
ROWS_MAX = 10_000


class ReportResult(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The rows of one report, tenant, day and part. `dropped` is the number of rows above `ROWS_MAX`."""

    v: int
    report: str
    tenant: str
    day: str
    part: str
    batch: Batch
    computed_at: Timestamp
    rows: list[msgspec.Raw]
    dropped: Annotated[int, Meta(ge=0)] = 0


REPORT_RESULTS = Contract(
    "INSIGHTS", "insight.{tenant}.{report}.{day}.{part}", "{report}:{batch}:{tenant}:{day}:{part}", ReportResult
)


def part_of(grain: Grain, hour: str) -> str:
    """The part with the rows of an hour (`00` to `23`): `minute-07`, `hour` or `day`."""
    return f"{grain.value}-{hour}" if grain is Grain.MINUTE else grain.value
