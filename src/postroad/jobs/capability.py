"""Wiring of jobs: routes in every gateway, the projection in the control role's leader."""

from collections.abc import Sequence

from postroad.api.governance import AuditMode
from postroad.api.jobs import JobEnded, JobInProgress, JobNotFound, PayloadGone
from postroad.http.routing import Route
from postroad.jetstream.management import StreamSpec
from postroad.jobs.archive import JobArchive, history_stream
from postroad.jobs.control import JobControl
from postroad.jobs.frame_trimmer import FrameTrimmer
from postroad.jobs.projection import Projection
from postroad.jobs.reconciler import JobReconciler
from postroad.jobs.routes import JobRoutes
from postroad.jobs.rpc import JobsRpcClient, JobsRpcServer, OldestRequest, OldestResponse
from postroad.jobs.rules import JobRecord
from postroad.jobs.service import JobService
from postroad.jobs.settings import JobsSettings
from postroad.kernel.errors import EngineUnavailable, Overloaded
from postroad.kernel.task_group import run_all
from postroad.platform import BackgroundJob, Capability, Platform, Role, every
from postroad.queues import job_events, metrics
from postroad.queues.capability import QueuesCapability
from postroad.queues.records import QueueRecord
from postroad.settings import Settings

_RECONCILE_SECONDS = 30.0
_TRIM_SECONDS = 60.0
_OLDEST_SECONDS = 1.0


class JobsCapability(Capability):
    name = "jobs"
    errors = (JobNotFound, JobEnded, JobInProgress, PayloadGone)

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        folder, keep_days = platform.settings.data_dir / "jobs", platform.settings.section(JobsSettings).jobs_keep_days
        self.projection = Projection(platform.connection, platform.clock, folder, keep_days)
        self.projection.on_expired = self._record_expiries
        self._oldest_rpc = JobsRpcClient(platform.connection, deadline=_OLDEST_SECONDS)
        self.archive = JobArchive(platform.connection, platform.clock)
        self.service = JobService(JobsRpcClient(platform.connection), self.archive)
        queues = platform.use(QueuesCapability)
        self.reconciler = JobReconciler(
            platform.connection,
            self.projection,
            queues.table,
            queues.dead_letters,
            queues.cancelled_messages,
            platform.audit,
            platform.tenant_settings,
            platform.outbox,
            platform.clock,
        )
        self.control = JobControl(
            platform.connection,
            platform.committers,
            self.service,
            queues.lifecycle,
            queues.publisher,
            queues.consumer,
            queues.dead_letters,
            queues.cancelled_messages,
            queues.locator,
            platform.audit,
            platform.outbox,
            platform.clock,
        )
        queues.stats_reader.oldest_job = self._oldest_job
        keep_ms = platform.settings.section(JobsSettings).frames_keep_hours * 3_600_000
        self.trimmer = FrameTrimmer(platform.connection, self.projection, platform.clock, keep_ms=keep_ms)
        self._rpc = JobsRpcServer(platform.connection, self.projection, platform.clock)

    @classmethod
    def streams(cls, settings: Settings) -> Sequence[StreamSpec]:
        return (history_stream(settings.replica_count, settings.share_of_store(8)),)

    def routes(self) -> Sequence[Route]:
        return JobRoutes(self.service, self.control, self.platform.audit).table()

    def background_jobs(self) -> Sequence[BackgroundJob]:
        trim = every(_TRIM_SECONDS, self.trimmer.run_once, "trim frames")
        return (
            BackgroundJob(trim, Role.CONTROL, leader_only=True),
            BackgroundJob(self.lead, Role.CONTROL, leader_only=True),
            BackgroundJob(every(_RECONCILE_SECONDS, self.reconciler.run_once, "reconcile jobs"), Role.CONTROL, leader_only=True),
        )

    async def _record_expiries(self, jobs: Sequence[JobRecord]) -> None:
        for tenant in {job.tenant for job in jobs}:
            some = [job for job in jobs if job.tenant == tenant]
            await self.platform.outbox.commit(
                None,
                *(
                    job_events.expired(tenant, job.queue, job.job_id, job.message_id, job.step.attempt, job.expires_at)
                    for job in some
                ),
            )
            metrics.expired.add(tenant, len(some))

    async def _oldest_job(self, record: QueueRecord) -> int | None:
        """When the oldest message of a queue became ready; None if that is not known: stats do not wait for the job index."""
        if self.platform.tenant_settings.of(record.tenant).audit_mode is AuditMode.OFF:
            return None
        try:
            found = await self._oldest_rpc.call(OldestRequest(tenant=record.tenant, queue=record.name), OldestResponse)
        except (EngineUnavailable, Overloaded):
            return None
        return found.at_ms

    async def lead(self) -> None:
        """Follow `JOBS` and serve queries. Two leaders at the same time do no harm."""
        await run_all(self.projection.run(), self._rpc.run())

    async def delete_tenant(self, tenant: str) -> None:
        await self.archive.delete_all(tenant)


CAPABILITY = JobsCapability
