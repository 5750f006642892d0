"""Wiring of the event frames, the live stream and the samplers."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from postroad import __version__
from postroad.api.health import Check
from postroad.governance.capability import GovernanceCapability
from postroad.http.routing import Route
from postroad.jetstream.management import StreamSpec, purge_stream
from postroad.kernel.event import PLATFORM
from postroad.platform import Assembly, BackgroundJob, Capability, Platform, Role
from postroad.settings import Settings
from postroad.telemetry.events import EVENTS, WorkerStarted
from postroad.telemetry.frames import STREAMS, frame_streams, frame_subject
from postroad.telemetry.process_sampler import ProcessSampler
from postroad.telemetry.routes import EventVisibility, TelemetryRoutes
from postroad.telemetry.settings import TelemetrySettings
from postroad.telemetry.storage_sampler import StorageSampler

_DRAIN_SECONDS = 5.0


class TelemetryCapability(Capability):
    name = "telemetry"
    events = EVENTS

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self._processes = ProcessSampler(
            platform.outbox,
            platform.usage,
            worker=platform.worker,
            role=platform.role.value,
            tenants=platform.identities.tenant_ids,
            seconds=platform.settings.section(TelemetrySettings).sample_seconds,
        )
        self.storage = StorageSampler(
            platform.connection,
            platform.outbox,
            platform.identities.tenant_ids,
            platform.use(GovernanceCapability).storage.broadcast,
            usage_seconds=platform.settings.section(TelemetrySettings).storage_sample_seconds,
        )
        self._routes = TelemetryRoutes(platform.connection, platform.position_cipher("event"))
        self.on_removal: list[Callable[[], None]] = []  # called before and after frames of a deleted tenant are removed

    @classmethod
    def streams(cls, settings: Settings) -> Sequence[StreamSpec]:
        return frame_streams(
            settings.replica_count,
            job_bytes_max=settings.share_of_store(8),
            telemetry_bytes_max=settings.share_of_store(16),
            command_bytes_max=settings.share_of_store(8),
        )

    def routes(self) -> Sequence[Route]:
        return self._routes.table()

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (
            BackgroundJob(self._sample_process),
            BackgroundJob(self.platform.flows.run),
            BackgroundJob(self.platform.clock_sync.run),
            BackgroundJob(self.storage.run, Role.CONTROL, leader_only=True),
        )

    def assembled(self, assembly: Assembly) -> None:
        self.storage.set_kinds(assembly.resources)
        self._routes.visibility = EventVisibility(assembly.events)

    async def _sample_process(self) -> None:
        platform = self.platform
        started = WorkerStarted(tenant=PLATFORM, worker=platform.worker, role=platform.role.value, postroad_version=__version__)
        platform.outbox.record(None, started)
        await self._processes.run()

    async def readiness(self) -> Mapping[str, Check]:
        return {"clock": self.platform.clock_sync.check()}

    async def delete_tenant(self, tenant: str) -> None:
        """Remove the tenant's frames: they have its events, and what it sent if that is archived. After all other capabilities,
        whose deletions are events."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                await self.platform.outbox.drain()
        for stream in STREAMS:
            self._notify_removal()
            await purge_stream(self.platform.connection, stream, frame_subject(stream, tenant))
            self._notify_removal()

    def _notify_removal(self) -> None:
        for listener in self.on_removal:
            listener()

    async def flush(self) -> None:
        self._processes.sample()
        await self.platform.outbox.drain()


CAPABILITY = TelemetryCapability
