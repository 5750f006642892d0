"""HTTP routes of load tests."""

from collections.abc import Sequence

from postroad.api.loadtests import (
    LoadTest,
    LoadTestLimits,
    LoadTestNotFound,
    LoadTestQuery,
    LoadTestRunning,
    LoadTestsDisabled,
    LoadTestSummaryPage,
    NewLoadTest,
)
from postroad.api.queues import QueueNotFound
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.errors import EngineUnavailable, PreconditionFailed
from postroad.kernel.identity import Scope
from postroad.loadtests.service import LoadTests

_TAG = "Load tests"
_ONE = "/v1/loadtests/{loadtest}"
_COLUMNS = ("id", "queue", "state", "totals.published", "totals.per_second", "totals.p99_ms", "error", "created_at")


class LoadTestRoutes:
    def __init__(self, tests: LoadTests) -> None:
        self._tests = tests

    def table(self) -> Sequence[Route]:
        errors = (LoadTestNotFound, EngineUnavailable)
        return [
            Route(
                "POST",
                "/v1/loadtests",
                self.start_load_test,
                Scope.ADMIN,
                "Start a load test",
                _TAG,
                body=NewLoadTest,
                empty_body=NewLoadTest(),
                response=LoadTest,
                status=202,
                errors=(LoadTestsDisabled, LoadTestRunning, QueueNotFound, PreconditionFailed, EngineUnavailable),
                description="The server publishes to and consumes from a queue through its own HTTP port, with a key that ends "
                "with the test. One test runs at a time. Allowed where Postroad listens on a loopback address, or if the "
                "operator allows it.",
                sdk="loadtests.start",
                cli=Command("loadtests start"),
            ),
            Route(
                "GET",
                "/v1/loadtests",
                self.list_load_tests,
                Scope.READ,
                "List load tests",
                _TAG,
                query=LoadTestQuery,
                response=LoadTestSummaryPage,
                description="Newest first, without their points. Kept for a week after they ended.",
                sdk="loadtests.list",
                cli=Command("loadtests list", _COLUMNS),
                allows_admin=True,
            ),
            Route(
                "GET",
                "/v1/loadtests/limits",
                self.get_load_test_limits,
                Scope.READ,
                "Show the limits of load tests",
                _TAG,
                response=LoadTestLimits,
                sdk="loadtests.limits",
                cli=Command("loadtests limits"),
                allows_admin=True,
            ),
            Route(
                "GET",
                _ONE,
                self.get_load_test,
                Scope.READ,
                "Show a load test with its seconds",
                _TAG,
                response=LoadTest,
                errors=errors,
                sdk="loadtests.get",
                cli=Command("loadtests show"),
                allows_admin=True,
            ),
            Route(
                "DELETE",
                _ONE,
                self.stop_load_test,
                Scope.ADMIN,
                "Stop a load test",
                _TAG,
                response=LoadTest,
                status=202,
                errors=errors,
                description="It stops within a second or two; its results stay. A test that has ended does not change.",
                sdk="loadtests.stop",
                cli=Command("loadtests stop"),
            ),
        ]

    async def start_load_test(self, request: Request) -> Response:
        return Response(await self._tests.start(request.context, request.body), status=202)

    async def list_load_tests(self, request: Request) -> Response:
        query: LoadTestQuery = request.query
        found = [one for one in self._tests.of(request.caller) if query.cursor is None or one.id < query.cursor]
        shown = found[: query.limit]
        cursor = shown[-1].id if len(found) > query.limit else None
        return Response(LoadTestSummaryPage(items=[self._tests.summary(one) for one in shown], next_cursor=cursor))

    async def get_load_test_limits(self, request: Request) -> Response:
        return Response(self._tests.limits)

    async def get_load_test(self, request: Request) -> Response:
        return Response(await self._tests.get(request.caller, request.parameters["loadtest"]))

    async def stop_load_test(self, request: Request) -> Response:
        return Response(await self._tests.stop(request.context, request.parameters["loadtest"]), status=202)
