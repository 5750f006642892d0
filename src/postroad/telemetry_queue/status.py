"""The state of a tenant's telemetry queue, on request and as samples."""

from collections.abc import Callable, Mapping, Sequence

import structlog

from postroad.api.telemetry import TelemetryStatus
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import consumer_state
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.event import PLATFORM
from postroad.kernel.ids import derived_id
from postroad.telemetry.frames import frame_subject
from postroad.telemetry.outbox import Outbox
from postroad.telemetry_queue.activity import HourlyActivity
from postroad.telemetry_queue.events import TelemetrySampled, TelemetryStalled, TelemetryUnconsumed
from postroad.telemetry_queue.records import STREAM, ReadRecord, consumer_name
from postroad.telemetry_queue.rules import STALLED_MS, UNCONSUMED_MS, day_of, day_start_ms

log = structlog.get_logger("postroad.telemetry_queue")


class StatusReader:
    def __init__(
        self, connection: Connection, reads: ReplicatedTable[ReadRecord], activity: HourlyActivity, clock: Clock
    ) -> None:
        self._connection, self._reads, self._activity, self._clock = connection, reads, activity, clock

    async def status(self, tenant: str) -> TelemetryStatus:
        """Raises EngineUnavailable."""
        subject = frame_subject(STREAM, tenant)
        state = await consumer_state(self._connection, STREAM, consumer_name(tenant))
        floor = 0 if state is None else state.ack_floor.stream_seq
        page = await stream_reader.read(self._connection, STREAM, subject, floor + 1, 1, 1)
        waiting = len(page.entries) + page.remaining if state is None else state.num_pending
        leased = 0 if state is None else state.num_ack_pending
        oldest = page.entries[0].at_ms if page.entries and waiting + leased else None
        read = self._reads.get(tenant)
        return TelemetryStatus(
            waiting=waiting,
            leased=leased,
            oldest_age_ms=None if oldest is None else max(0, self._clock() - oldest),
            delivered_last_hour=self._activity.delivered(tenant),
            acknowledged_last_hour=self._activity.acknowledged(tenant),
            last_received_at=None if read is None else rfc3339(read.at_ms),
        )


class StatusSampler:
    """Records samples of all telemetry queues. Reports once a day that one is not read: to its tenant, and after a week to the
    operators. Runs in the leader of the control role."""

    def __init__(self, reader: StatusReader, outbox: Outbox, clock: Clock, tenants: Callable[[], Sequence[str]]) -> None:
        self._reader, self._outbox, self._clock, self._tenants = reader, outbox, clock, tenants
        self._reported: dict[str, str] = {}  # tenant, or `_platform`, and day

    async def run_once(self) -> int:
        """Return how many queues were sampled. Raises EngineUnavailable."""
        tenants = self._tenants()
        stalled: dict[str, TelemetryStatus] = {}
        for tenant in tenants:
            found = await self._reader.status(tenant)
            if (found.oldest_age_ms or 0) > STALLED_MS:
                stalled[tenant] = found
            sample = TelemetrySampled(
                tenant=tenant,
                waiting=found.waiting,
                leased=found.leased,
                oldest_age_ms=found.oldest_age_ms,
                delivered=found.delivered_last_hour,
                acknowledged=found.acknowledged_last_hour,
                last_received_at=found.last_received_at,
            )
            self._outbox.record(None, sample)
            self._report_unconsumed(tenant, found)
        self._report_stalled(stalled)
        known = {PLATFORM, *tenants}
        self._reported = {tenant: day for tenant, day in self._reported.items() if tenant in known}
        return len(tenants)

    def _report_unconsumed(self, tenant: str, found: TelemetryStatus) -> None:
        age, day = found.oldest_age_ms or 0, day_of(self._clock())
        if age <= UNCONSUMED_MS or self._reported.get(tenant) == day:
            return
        self._reported[tenant] = day
        event = TelemetryUnconsumed(
            event_id=derived_id(day_start_ms(day), "telemetry.unconsumed", tenant),
            tenant=tenant,
            waiting=found.waiting + found.leased,
            queue_age_seconds=round(age / 1000, 3),
            last_received_at=found.last_received_at,
        )
        self._outbox.record(None, event)

    def _report_stalled(self, stalled: Mapping[str, TelemetryStatus]) -> None:
        day = day_of(self._clock())
        if not stalled or self._reported.get(PLATFORM) == day:
            return
        self._reported[PLATFORM] = day
        oldest = max(stalled, key=lambda tenant: stalled[tenant].oldest_age_ms or 0)
        found = stalled[oldest]
        event = TelemetryStalled(
            event_id=derived_id(day_start_ms(day), "telemetry.stalled"),
            tenant=PLATFORM,
            tenants=len(stalled),
            oldest_tenant=oldest,
            queue_age_seconds=round((found.oldest_age_ms or 0) / 1000, 3),
            waiting=found.waiting + found.leased,
        )
        self._outbox.record(None, event)
        log.warning("telemetry_stalled", tenants=len(stalled), oldest_tenant=oldest, queue_age_seconds=event.queue_age_seconds)
