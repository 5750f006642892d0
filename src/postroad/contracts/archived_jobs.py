"""Jobs that ended on a day, in chunks on `HISTORY`: the latest message of each subject is kept."""

import msgspec

from postroad.api.insights import Batch
from postroad.contracts.contract import Contract

JOBS_MAX = 500


class ArchivedJobs(msgspec.Struct, frozen=True, kw_only=True):
    """Up to `JOBS_MAX` jobs as the API represents them (`postroad.api.jobs.Job`), newest first, all created on one day."""

    v: int
    batch: Batch | None = None
    jobs: list[msgspec.Raw]


ARCHIVED_JOBS = Contract(
    "HISTORY", "history.{tenant}.{created}.{ended}.{part}", "history:{batch}:{tenant}:{created}:{ended}:{part}", ArchivedJobs
)
