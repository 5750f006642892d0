"""Events of jobs to send: one by one, and whole lives as real processes produce them."""

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from postroad.jetstream.stream_reader import Entry
from postroad.jobs.event_decoder import Batch, read_frames, transition_of
from postroad.jobs.rules import JobRecord, fold
from postroad.kernel.clock import rfc3339
from postroad.kernel.event import Event
from postroad.kernel.ids import new_id
from postroad.queues.events import (
    JobCancelled,
    JobDead,
    JobDone,
    JobEvent,
    JobExpired,
    JobExtended,
    JobLeased,
    JobPromoted,
    JobQueued,
    JobRedriven,
    JobRequeued,
    JobRetried,
    QueuePurged,
)
from postroad.telemetry.frames import FRAME_VERSION, encode_event, frame_subject, pack

T0 = 1_800_000_000_000


class Lifecycle:
    """Writes the events of one job. Times are milliseconds after `T0`."""

    def __init__(self, tenant: str = "t", queue: str = "q", job_id: str = "", t0: int = T0, audit: str = "full") -> None:
        self.tenant, self.queue, self.t0, self.audit = tenant, queue, t0, audit
        self.job_id, self.message_id = job_id or new_id(), new_id()

    def _common_fields(self, at: int) -> dict[str, Any]:
        return {
            "event_id": new_id(),
            "timestamp": rfc3339(self.t0 + at),
            "tenant": self.tenant,
            "job_id": self.job_id,
            "message_id": self.message_id,
            "queue": self.queue,
            "audit": self.audit,
            "key_id": "k",
        }

    def queued(
        self, at: int = 0, *, delay_ms: int = 0, expires_at: int | None = None, corr: str | None = None, group: str | None = None
    ) -> JobQueued:
        until = None if expires_at is None else rfc3339(self.t0 + expires_at)
        return JobQueued(
            payload_bytes=1, delay_ms=delay_ms, expires_at=until, correlation_id=corr, group_id=group, **self._common_fields(at)
        )

    def leased(self, at: int, attempt: int = 1, *, until: int | None = None) -> JobLeased:
        until = at + 30_000 if until is None else until
        return JobLeased(attempt=attempt, lease_until=rfc3339(self.t0 + until), wait_ms=at, **self._common_fields(at))

    def extended(self, at: int, attempt: int = 1, *, until: int) -> JobExtended:
        return JobExtended(attempt=attempt, lease_until=rfc3339(self.t0 + until), **self._common_fields(at))

    def done(self, at: int, attempt: int = 1) -> JobDone:
        return JobDone(attempt=attempt, processing_ms=1, **self._common_fields(at))

    def retried(self, at: int, attempt: int = 1, *, next_at: int, reason: str | None = None) -> JobRetried:
        return JobRetried(attempt=attempt, next_at=rfc3339(self.t0 + next_at), reason=reason, **self._common_fields(at))

    def requeued(self, at: int, attempt: int = 1, *, reason: str | None = None) -> JobRequeued:
        return JobRequeued(attempt=attempt, reason=reason, **self._common_fields(at))

    def dead(self, at: int, attempt: int = 1, *, reason: str = "too many tries", last_error: str | None = None) -> JobDead:
        return JobDead(attempt=attempt, reason=reason, last_error=last_error, **self._common_fields(at))

    def promoted(self, at: int, attempt: int = 0) -> JobPromoted:
        return JobPromoted(attempt=attempt, **self._common_fields(at))

    def cancelled(self, at: int, attempt: int = 0, *, reason: str | None = None) -> JobCancelled:
        return JobCancelled(attempt=attempt, reason=reason, retry_until=rfc3339(self.t0 + at), **self._common_fields(at))

    def expired(self, at: int, attempt: int = 0) -> JobExpired:
        fields = self._common_fields(at)
        del fields["key_id"]
        return JobExpired(attempt=attempt, **fields)

    def redriven(self, at: int) -> JobRedriven:
        return JobRedriven(from_queue=self.queue, task_id="task", **self._common_fields(at))


def purged(at: int, tenant: str = "t", queue: str = "q", *, is_deleted: bool = False, t0: int = T0) -> QueuePurged:
    return QueuePurged(
        event_id=new_id(), timestamp=rfc3339(t0 + at), tenant=tenant, queue=queue, count=1, is_deleted=is_deleted, key_id="k"
    )


def folded(events: Sequence[JobEvent]) -> JobRecord:
    job: JobRecord | None = None
    for event in events:
        job = fold(job, transition_of(event))
    assert job is not None
    return job


def frame(sequence: int, *events: Event) -> Entry:
    """A stored frame of events of one tenant."""
    payload = pack([encode_event(event) for event in events])
    return Entry(frame_subject("JOBS", events[0].tenant), sequence, T0, payload, {"Postroad-Frame": FRAME_VERSION})


def batch(last: int, *events: Event) -> Batch:
    """All the events, as if they were the frames up to that sequence."""
    by_tenant: dict[str, list[Event]] = {}
    for event in events:
        by_tenant.setdefault(event.tenant, []).append(event)
    read = read_frames([frame(last, *some) for some in by_tenant.values()])
    assert not read.unreadable
    return read._replace(last=last)


@st.composite
def lifecycles(draw: st.DrawFn) -> list[JobEvent]:
    """What happens to one job, in the order of its happening: deliveries until it is done or dead, and after that perhaps a
    redrive, and deliveries again. A lease may end without a word; the events of the end may be all that there is."""
    lifecycle = Lifecycle()
    at = back_at = 0

    def passes() -> int:
        nonlocal at
        at += draw(st.integers(1, 5000))
        return at

    events: list[JobEvent] = []
    expires_at = draw(st.none() | st.integers(10_000, 200_000))
    if draw(st.integers(0, 9)):  # now and then the process dies before the first event
        events.append(lifecycle.queued(delay_ms=draw(st.sampled_from([0, 3000])), expires_at=expires_at, corr="c"))
    for _ in range(draw(st.integers(1, 3))):
        is_dead = False
        for attempt in range(1, draw(st.integers(1, 4)) + 1):
            events.append(lifecycle.leased(passes(), attempt, until=at + 3000))
            events.extend(lifecycle.extended(passes(), attempt, until=at + 9000) for _ in range(draw(st.integers(0, 2))))
            end = draw(st.sampled_from(["nothing", "requeued", "retried", "promoted", "done", "dead", "cancelled"]))
            if end == "requeued":
                events.append(lifecycle.requeued(passes(), attempt, reason=draw(st.none() | st.just(f"given back {attempt}"))))
            if end in ("retried", "promoted"):
                events.append(lifecycle.retried(passes(), attempt, next_at=at + 2000, reason=f"failed {attempt}"))
            if end == "promoted":
                events.append(lifecycle.promoted(passes(), attempt))
            if end == "done":
                return [*events, lifecycle.done(passes(), attempt)]
            if end in ("dead", "cancelled"):
                at = max(at, back_at)
                died = end == "dead"
                events.append(
                    lifecycle.dead(passes(), attempt, last_error=f"died {attempt}")
                    if died
                    else lifecycle.cancelled(passes(), attempt, reason=draw(st.none() | st.just("not needed")))
                )
                is_dead = True
                break
        if not is_dead or not draw(st.booleans()):
            return events
        # Its time may be read when the message is back already, and a consumer has it: but not so late that it is dead again.
        back_at = passes() + draw(st.sampled_from([0, 0, 1, 4000]))
        events.append(lifecycle.redriven(back_at))
    return events
