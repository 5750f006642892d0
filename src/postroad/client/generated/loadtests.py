"""Calls of `client.loadtests`. Generated from the route table by `make generate`; do not edit."""

from postroad.api.loadtests import LoadTest, LoadTestLimits, LoadTestSummary, LoadTestSummaryPage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import body_of, segment


class LoadtestsCalls:
    @operation
    def start(
        self,
        *,
        queue: str | None = None,
        rate_per_second: int | None = None,
        seconds: int | None = None,
        payload_bytes: int | None = None,
        publishers: int | None = None,
        consumers: int | None = None,
    ) -> Call[LoadTest]:
        """Start a load test.

        The server publishes to and consumes from a queue through its own HTTP port, with a key that ends with the test.
        One test runs at a time. Allowed where Postroad listens on a loopback address, or if the operator allows it.
        Raises LoadTestsDisabled, LoadTestRunning, QueueNotFound, PreconditionFailed.
        """
        body = body_of(
            {
                "queue": queue,
                "ratePerSecond": rate_per_second,
                "seconds": seconds,
                "payloadBytes": payload_bytes,
                "publishers": publishers,
                "consumers": consumers,
            }
        )
        return Call(method="POST", path="/v1/loadtests", body=body, response=LoadTest, is_repeatable=False)

    @pages
    def list(self, *, page_size: int = 100) -> Pages[LoadTestSummary]:
        """List load tests. Newest first, without their points. Kept for a week after they ended."""
        return Pages(call=Call(method="GET", path="/v1/loadtests", query={"limit": page_size}, response=LoadTestSummaryPage))

    @operation
    def limits(self) -> Call[LoadTestLimits]:
        """Show the limits of load tests."""
        return Call(method="GET", path="/v1/loadtests/limits", response=LoadTestLimits)

    @operation
    def get(self, loadtest: LoadTest | str) -> Call[LoadTest]:
        """Show a load test with its seconds. Raises LoadTestNotFound."""
        return Call(method="GET", path=f"/v1/loadtests/{segment(loadtest)}", response=LoadTest)

    @operation
    def stop(self, loadtest: LoadTest | str) -> Call[LoadTest]:
        """Stop a load test.

        It stops within a second or two; its results stay. A test that has ended does not change. Raises LoadTestNotFound.
        """
        return Call(method="DELETE", path=f"/v1/loadtests/{segment(loadtest)}", response=LoadTest)


class Loadtests(LoadtestsCalls, SyncNamespace):
    pass


class AsyncLoadtests(LoadtestsCalls, AsyncNamespace):
    pass
