"""Load tests: traffic that the server makes by itself, through its own HTTP port."""

from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.api.pages import Limit, page_of
from postroad.api.tasks import TaskState
from postroad.kernel.clock import Timestamp
from postroad.kernel.errors import AuthError, ConflictError, NotFound
from postroad.kernel.names import QUEUE

PAYLOAD_BYTES_MAX = 32 * 1024


class LoadTestNotFound(NotFound, code="load-test-not-found", status=404, title="Load test not found"):
    """The tenant has no load test with this id, or it ended more than a week ago."""


class LoadTestsDisabled(AuthError, code="load-tests-disabled", status=403, title="Load tests are disabled"):
    """The installation does not listen on a loopback address. The operator allows load tests with `POSTROAD_LOADTESTS=on`."""


class LoadTestRunning(ConflictError, code="load-test-running", status=409, retryable=True, title="A load test is running"):
    """The installation runs one load test at a time."""


class NewLoadTest(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The traffic of a load test. The installation's limits may be lower than those here."""

    queue: (
        Annotated[
            str,
            Meta(pattern=f"^{QUEUE.pattern}$", description="Queue to publish to; null: one that is deleted after the test."),
        ]
        | None
    ) = None
    rate_per_second: (
        Annotated[int, Meta(ge=1, le=1_000_000, description="Messages per second; null: as many as the limits allow.")] | None
    ) = None
    seconds: Annotated[int, Meta(ge=1, le=600, description="How long messages are published.")] = 10
    payload_bytes: Annotated[int, Meta(ge=64, le=PAYLOAD_BYTES_MAX, description="Size of the payload of a message.")] = 256
    publishers: Annotated[int, Meta(ge=1, le=256, description="Connections that publish.")] = 8
    consumers: Annotated[
        int, Meta(ge=0, le=64, description="Connections that pull and acknowledge; 0 with a queue of your own.")
    ] = 2


class LoadTestPoint(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One second of a load test. Latencies are those of the publishes that were answered in it, from the moment at which each was
    due: a server that is too slow for the rate cannot hide it. Null if none was answered."""

    second: Annotated[int, Meta(description="From 0; those after `seconds` drain the queue.")]
    requested: Annotated[int | None, Meta(description="Messages that were due in this second; null without a rate.")]
    published: int
    consumed: int
    errors: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    waiting: Annotated[int | None, Meta(description="Messages in the queue at its end.")]


class LoadTestTotals(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """All seconds of a load test together."""

    published: int = 0
    consumed: int = 0
    errors: Annotated[dict[str, int], Meta(description="Failed requests by error code.")] = {}
    per_second: Annotated[float, Meta(description="Published messages per second.")] = 0.0
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None


class LoadTestSummary(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A load test; `latest` is its last second so far."""

    id: Annotated[str, Meta(description="Also the id of its task.")]
    state: TaskState
    queue: str
    wanted: NewLoadTest
    rate_per_second: Annotated[int, Meta(description="The rate that applies: the wanted one, or the limit.")]
    totals: LoadTestTotals
    latest: LoadTestPoint | None
    environment: Annotated[str, Meta(description="What shares the machine with the test.")]
    error: str | None
    created_by: Annotated[str, Meta(description="Id of the key that started it.")]
    created_at: Timestamp
    started_at: Timestamp | None
    ended_at: Timestamp | None


class LoadTest(LoadTestSummary, frozen=True, rename="camel", kw_only=True):
    """A load test with all its seconds."""

    points: list[LoadTestPoint]


class LoadTestQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Limit = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=80)] | None = None


LoadTestSummaryPage = page_of(LoadTestSummary, "loadtests")


class LoadTestLimits(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Whether load tests may be started, and how large they may be."""

    enabled: bool
    rate_per_second: int
    seconds: int
    publishers: int
    consumers: int
    payload_bytes: int
