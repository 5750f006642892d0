"""Progress of the pipeline, published after each batch: the latest message is kept on `INSIGHTS`."""

from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.api.insights import Batch, Number, SourceProgress
from postroad.contracts.contract import Contract
from postroad.contracts.reports import REPORT_RESULTS, SNAPSHOT_DAY, SNAPSHOT_PART
from postroad.kernel.clock import Timestamp
from postroad.kernel.event import PLATFORM


class PipelineProgress(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The last batch. `quarantined`, `late` and `duplicates` are totals; `period` is the seconds between two batches.

    The published results contain all events up to `fresh_until`; those of the batch if `is_complete`.
    """

    v: int
    report: str = "pipeline"
    tenant: str = PLATFORM
    day: str = SNAPSHOT_DAY
    part: str = SNAPSHOT_PART
    batch: Batch
    computed_at: Timestamp
    period: Annotated[float, Meta(gt=0)] | None = None
    rows: list[SourceProgress] = []
    dropped: int = 0
    events: int | None = None
    seconds: Number | None = None
    quarantined: dict[str, int] = {}
    late: int | None = None
    duplicates: int | None = None
    fresh_until: Timestamp | None = None
    is_complete: bool = False


SUBJECT = REPORT_RESULTS.subject_of(tenant=PLATFORM, report="pipeline", day=SNAPSHOT_DAY, part=SNAPSHOT_PART)
PIPELINE_PROGRESS = Contract(REPORT_RESULTS.stream, SUBJECT, "pipeline:{batch}:{at_ms}", PipelineProgress)
