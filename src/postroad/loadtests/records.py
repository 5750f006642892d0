"""Stored results of load tests, under `<tenant>.<id>`, and their representation in the API. Pure."""

from typing import Any

import msgspec

from postroad.api.loadtests import LoadTest, LoadTestLimits, LoadTestPoint, LoadTestSummary, LoadTestTotals, NewLoadTest
from postroad.loadtests.rules import queue_of, rate_of
from postroad.tasks.rules import TaskRecord, task_of

LOAD_TESTS_BUCKET = "postroad_load_tests"
KEEP_SECONDS = 7 * 86_400  # as their tasks


class ResultsRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Format 1. Request and state of the test are those of its task."""

    v: int = 1
    environment: str
    points: tuple[LoadTestPoint, ...] = ()
    totals: LoadTestTotals = LoadTestTotals()


def wanted_of(task: TaskRecord) -> NewLoadTest:
    return msgspec.convert(task.wanted, NewLoadTest)


def summary_of(task: TaskRecord, results: ResultsRecord | None, limits: LoadTestLimits) -> LoadTestSummary:
    return LoadTestSummary(**_fields(task, results, limits))


def load_test_of(task: TaskRecord, results: ResultsRecord | None, limits: LoadTestLimits) -> LoadTest:
    return LoadTest(**_fields(task, results, limits), points=[] if results is None else list(results.points))


def _fields(task: TaskRecord, results: ResultsRecord | None, limits: LoadTestLimits) -> dict[str, Any]:
    wanted, shown = wanted_of(task), task_of(task)
    return {
        "id": task.id,
        "state": task.state,
        "queue": queue_of(wanted, task.id),
        "wanted": wanted,
        "rate_per_second": rate_of(wanted, limits),
        "totals": LoadTestTotals() if results is None else results.totals,
        "latest": results.points[-1] if results is not None and results.points else None,
        "environment": "" if results is None else results.environment,
        "error": task.error,
        "created_by": task.created_by,
        "created_at": shown.created_at,
        "started_at": shown.started_at,
        "ended_at": shown.ended_at,
    }
