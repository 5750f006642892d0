"""Wiring of load tests."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from postroad.access.capability import AccessCapability
from postroad.api.loadtests import (
    PAYLOAD_BYTES_MAX,
    LoadTestLimits,
    LoadTestNotFound,
    LoadTestRunning,
    LoadTestsDisabled,
)
from postroad.http.routing import Route
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.errors import PreconditionFailed
from postroad.loadtests.events import EVENTS
from postroad.loadtests.live_loadtests import LiveLoadTests
from postroad.loadtests.records import LOAD_TESTS_BUCKET, ResultsRecord
from postroad.loadtests.routes import LoadTestRoutes
from postroad.loadtests.rules import LOAD_TEST
from postroad.loadtests.runner import Address, LoadTestRunner
from postroad.loadtests.service import LoadTests
from postroad.loadtests.settings import LoadTestsSettings, is_enabled
from postroad.platform import BackgroundJob, Capability, Platform, Role, every
from postroad.queues.capability import QueuesCapability
from postroad.tasks.service import Handler
from postroad.telemetry.live_sections import LiveSection

_CLEAN_UP_SECONDS = 10.0
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104  # compared, not bound


class LoadTestsCapability(Capability):
    name = "loadtests"
    errors = (LoadTestNotFound, LoadTestsDisabled, LoadTestRunning)
    events = EVENTS
    buckets = (LOAD_TESTS_BUCKET,)
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "loadtest": {"minLength": 1, "maxLength": 64, "description": "Id of the load test."}
    }
    cli_groups: ClassVar[Mapping[str, str]] = {"loadtests": "Traffic that the server makes by itself, and its latencies."}

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        chosen, queues = platform.settings.section(LoadTestsSettings), platform.use(QueuesCapability)
        self.limits = LoadTestLimits(
            enabled=is_enabled(chosen.loadtests, platform.settings.host),
            rate_per_second=chosen.loadtest_rate_max,
            seconds=chosen.loadtest_seconds_max,
            publishers=chosen.loadtest_publishers_max,
            consumers=chosen.loadtest_consumers_max,
            payload_bytes=PAYLOAD_BYTES_MAX,
        )
        self._results = platform.table(LOAD_TESTS_BUCKET, ResultsRecord)
        self._tests = LoadTests(platform.tasks, self._results, queues.lifecycle, self.limits)
        self.runner = LoadTestRunner(
            self._results,
            platform.tasks.table,
            platform.use(AccessCapability).keys,
            platform.identities,
            queues.lifecycle,
            queues.stats_reader,
            platform.outbox,
            platform.clock,
            self.limits,
            self._address,
        )

    def _address(self) -> Address:
        """Raises PreconditionFailed if it is not known where gateways are."""
        settings, chosen = self.platform.settings, self.platform.settings.section(LoadTestsSettings)
        if chosen.loadtest_url:
            return Address.of(chosen.loadtest_url, workers=settings.workers, is_local=False)
        if settings.tls_cert is not None:  # its names need not include the address
            if settings.public_url is None:
                raise PreconditionFailed("with TLS, load tests need POSTROAD_LOADTEST_URL or POSTROAD_PUBLIC_URL")
            return Address.of(settings.public_url, workers=settings.workers, is_local=False)
        host = _ANY_ADDRESS.get(settings.host, f"[{settings.host}]" if ":" in settings.host else settings.host)
        return Address.of(f"http://{host}:{settings.port}", workers=settings.workers, is_local=True)

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self._results,)

    def routes(self) -> Sequence[Route]:
        return LoadTestRoutes(self._tests).table()

    def live_sections(self) -> Sequence[LiveSection]:
        return (LiveLoadTests(self.platform.tasks, self._tests, self.platform.clock),)

    def background_jobs(self) -> Sequence[BackgroundJob]:
        clean_up = every(_CLEAN_UP_SECONDS, self.runner.clean_up_all, "clean up after load tests")
        return (BackgroundJob(clean_up, Role.CONTROL, leader_only=True),)

    def task_handlers(self) -> Mapping[str, Handler]:
        return {LOAD_TEST: self.runner.run}

    async def delete_tenant(self, tenant: str) -> None:
        await self._tests.delete_all(tenant)


CAPABILITY = LoadTestsCapability
