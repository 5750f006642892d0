"""Reports of the pipeline: their declaration, queries and pages. The declared reports are in `postroad.api.reports`."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta

from postroad.api.pages import Limit
from postroad.kernel.clock import AwareDatetime, Timestamp

Number = int | float
Batch = int | str
QueueName = Annotated[str, Meta(min_length=1, max_length=80)]
ServiceName = Annotated[str, Meta(min_length=1, max_length=64)]
Cursor = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,2048}$")]


class Grain(StrEnum):
    """Length of the time that a row covers. Days are UTC."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"


class Visibility(StrEnum):
    """`QUEUE`: a row belongs to a queue, and restricted keys get the rows of their queues. `SERVICE`: likewise for services
    of commands. `TENANT`: a row covers the whole tenant, and restricted keys get 403."""

    QUEUE = "queue"
    SERVICE = "service"
    TENANT = "tenant"


class Unit(StrEnum):
    """How the CLI and the report page format the values of a column."""

    PLAIN = "plain"
    BYTES = "bytes"
    MILLISECONDS = "milliseconds"
    SECONDS = "seconds"


def column(description: str | None = None, *, unit: Unit = Unit.PLAIN, title: str | None = None, is_listed: bool = True) -> Meta:
    """Describe a column of a row. `title` is its heading in tables, which leave it out if it is not listed."""
    return Meta(description=description, extra={"unit": unit, "title": title, "is_listed": is_listed})


Start = Annotated[Timestamp, column("Start of the minute, hour or day.", is_listed=False)]
Queue = Annotated[str, column("Name of the queue.")]
Service = Annotated[str, column("Name of the tenant's service.")]
Role = Annotated[
    str,
    column("`target`: the tenant's service received the commands; `source`: it sent them."),
]
Milliseconds = Annotated[Number, column("Percentile, largest value or mean, in milliseconds.", unit=Unit.MILLISECONDS)]


class Row(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Base of the rows of all reports. Columns without a value are left out of a stored row, and need a default."""


R = TypeVar("R", bound=Row)


class ReportPage(msgspec.Struct, Generic[R], frozen=True, rename="camel", kw_only=True):
    """`computed_at` and `batch` are those of the newest results on the page; None if there are none yet."""

    report: str
    computed_at: Timestamp | None
    batch: Batch | None
    as_of: Annotated[
        Timestamp | None,
        Meta(description="All events up to this time are counted; null if that is not known, because no pipeline runs."),
    ] = None
    dropped: Annotated[int, Meta(description="Missing rows: a result has at most 10,000.")]
    next_cursor: str | None
    if TYPE_CHECKING:  # the page type of each report declares it, as its last field
        items: list[R]


class TimePage(ReportPage[R], Generic[R], frozen=True, kw_only=True, rename={"since": "from", "until": "to"}):
    """The range consists of whole minutes, hours or days."""

    grain: Grain
    since: Timestamp
    until: Timestamp


class SnapshotQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 200
    cursor: Cursor | None = None


class QueueSnapshotQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    queue: QueueName | None = None
    limit: Limit = 200
    cursor: Cursor | None = None


class TimeQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"since": "from", "until": "to"}):
    since: Annotated[AwareDatetime | None, Meta(description="Start of the range. Default: a day before `to`.")] = None
    until: Annotated[AwareDatetime | None, Meta(description="End of the range. Default: now.")] = None
    grain: Annotated[
        Grain | None, Meta(description="Default: `minute` for up to 2 hours, `hour` for up to 3 days, else `day`.")
    ] = None
    limit: Limit = 200
    cursor: Cursor | None = None


class QueueTimeQuery(TimeQuery, frozen=True, forbid_unknown_fields=True):
    queue: QueueName | None = None


class ServiceTimeQuery(TimeQuery, frozen=True, forbid_unknown_fields=True):
    service: ServiceName | None = None


ReportQuery = SnapshotQuery | QueueSnapshotQuery | TimeQuery


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(Generic[R]):
    """Declaration of a report. Its route, SDK methods, command, section of the report page and docs follow from it.

    The Spark function that computes the rows is `rows` in the module of `postroad.pipeline.reports` with the report's name.
    """

    name: str  # in paths, subjects and commands: `dead-letters`
    row: type[R]
    page: type[ReportPage[R]]
    summary: str  # imperative: "Report the usage of the tenant"
    description: str = ""
    visibility: Visibility
    names: tuple[str, ...] = ()  # columns that identify a row among those of the same time
    rank: str  # column in JSON: of too many rows, those with the largest values are published
    look_back: timedelta | None = None  # a report without grains: its rows describe the present, computed from this period
    heading: str = ""  # of its section on the report page; default: the name
    severity: tuple[str, ...] = ()  # values of the column `status` in the order of the rows
    job: str = ""  # name in `--jobs`; default: the report's

    @property
    def identifier(self) -> str:
        """The name in Python: `dead_letters`."""
        return self.name.replace("-", "_")

    @property
    def title(self) -> str:
        return self.heading or self.name.replace("-", " ").capitalize()

    @property
    def job_name(self) -> str:
        return self.job or self.identifier

    @property
    def is_snapshot(self) -> bool:
        return self.look_back is not None

    @property
    def query(self) -> type[ReportQuery]:
        if self.visibility is Visibility.QUEUE:
            return QueueSnapshotQuery if self.is_snapshot else QueueTimeQuery
        if self.visibility is Visibility.SERVICE:
            return ServiceTimeQuery
        return SnapshotQuery if self.is_snapshot else TimeQuery


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """A column as tables show it."""

    field: str  # attribute of the row
    name: str  # in JSON
    description: str
    unit: Unit
    title: str
    is_listed: bool


def columns_of(row: type[Row]) -> list[ReportColumn]:
    return [_column_of(one) for one in msgspec.structs.fields(row)]


def _column_of(one: msgspec.structs.FieldInfo) -> ReportColumn:
    found = next((meta for meta in getattr(one.type, "__metadata__", ()) if meta.extra), column())
    extra: Mapping[str, Any] = found.extra or {}
    return ReportColumn(
        one.name,
        one.encode_name,
        found.description or "",
        extra["unit"],
        extra["title"] or one.name.replace("_", " "),
        extra["is_listed"],
    )


class PipelineState(StrEnum):
    RUNNING = "running"
    BEHIND = "behind"
    OFF = "off"


class SourceProgress(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Progress of the pipeline in one stream."""

    stream: str
    sequence: Annotated[int, Meta(description="The last message that was read.")]
    last_sequence: Annotated[int, Meta(description="The last message of the stream.")] = 0
    lag: Annotated[int, Meta(description="Messages that were not read yet.")] = 0


class PipelineStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`running`: the last batch is younger than three periods; `behind`: it is older; `off`: no batch is known."""

    state: PipelineState
    batch: Batch | None = None
    computed_at: Annotated[Timestamp | None, Meta(description="End of the last batch.")] = None
    age: Annotated[Number | None, Meta(description="Seconds since the last batch.")] = None
    period: Annotated[Number | None, Meta(description="Configured seconds between two batches.")] = None
    lag: Annotated[int, Meta(description="Messages of all streams that were not read yet.")] = 0
    streams: list[SourceProgress] = []
    events: Annotated[int | None, Meta(description="Events in the last batch.")] = None
    seconds: Annotated[Number | None, Meta(description="Duration of the last batch.")] = None
    quarantined: Annotated[dict[str, int], Meta(description="Lines that are not valid events, in total, by reason.")] = {}
    late: int | None = None
    duplicates: int | None = None
    as_of: Annotated[Timestamp | None, Meta(description="All events up to this time are in the published results.")] = None
