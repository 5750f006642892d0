"""Decodes frames of `JOBS` into transitions of jobs and purges of queues."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from postroad.api.jobs import JobStatus
from postroad.jetstream.stream_reader import Entry
from postroad.jobs.rules import PURGE_ERRORS, TRANSITIONS, EventRule, JobTransition, Progress, Purge, Step
from postroad.kernel.clock import LATEST_MS
from postroad.kernel.event import event_name
from postroad.queues.events import (
    JobCancelled,
    JobDead,
    JobDone,
    JobEvent,
    JobExpired,
    JobExtended,
    JobLeased,
    JobProgressed,
    JobPromoted,
    JobQueued,
    JobRedriven,
    JobRequeued,
    JobRetried,
    QueuePurged,
)
from postroad.telemetry.frames import FRAME_VERSION, STREAMS, unpack

_seconds: dict[str, int] = {}  # milliseconds by the text of a second: many events have the same second


def millis(text: str) -> int:
    """The time of an event. Raises ValueError unless it has a zone and is between 1970 and the year 9999."""
    second = _seconds.get(text[:20])
    if second is not None and len(text) == 24 and text[23] == "Z" and text[20:23].isdecimal():
        return second + int(text[20:23])
    at = _parsed(text)
    if len(text) == 24 and text[19] == "." and text[23] == "Z":  # as `rfc3339` writes it
        if len(_seconds) >= 1000:
            _seconds.clear()
        _seconds[text[:20]] = at // 1000 * 1000
    return at


def _parsed(text: str) -> int:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"no time zone: {text[:40]!r}")
    at = round(found.timestamp() * 1000)
    if not 0 < at <= LATEST_MS:
        raise ValueError(f"time out of range: {text[:40]!r}")
    return at


_KINDS: tuple[type[JobEvent], ...] = (
    JobQueued,
    JobLeased,
    JobExtended,
    JobProgressed,
    JobRequeued,
    JobRetried,
    JobDone,
    JobDead,
    JobRedriven,
    JobPromoted,
    JobCancelled,
    JobExpired,
)
_RULES: dict[type[JobEvent], EventRule] = {kind: TRANSITIONS[event_name(kind)] for kind in _KINDS}


def transition_of(event: JobEvent) -> JobTransition:
    """Raises ValueError if the event has an invalid time."""
    at = millis(event.timestamp)
    rule = _RULES[type(event)]
    if isinstance(event, JobQueued):
        return _queued(event, rule, at)
    known: Any = event
    lease_until = millis(known.lease_until) if rule.status is JobStatus.LEASED else 0
    due_at = millis(known.next_at) if rule.status is JobStatus.RETRYING else 0
    attempt = 0 if rule.is_redrive else known.attempt
    return JobTransition(
        event.tenant,
        event.job_id,
        event.queue,
        event.message_id,
        Step(rule.is_end, attempt, rule.rank, at, rule.status.value, due_at, lease_until),
        next((text for name in rule.error_fields if (text := getattr(event, name))), None),
        is_death=rule.is_death,
        is_redrive=rule.is_redrive,
        sequence=getattr(event, "message_sequence", 0),
        progress=_progress(event, at) if isinstance(event, JobProgressed) else None,
    )


def _progress(event: JobProgressed, at: int) -> Progress:
    return Progress(at, -1 if event.percent is None else event.percent, event.note or "")


def _queued(event: JobQueued, rule: EventRule, at: int) -> JobTransition:
    due_at = min(at + event.delay_ms, LATEST_MS) if event.delay_ms > 0 else 0
    status = JobStatus.DELAYED if due_at else rule.status
    return JobTransition(
        event.tenant,
        event.job_id,
        event.queue,
        event.message_id,
        Step(rule.is_end, 0, rule.rank, at, status.value, due_at),
        is_first=rule.is_first,
        expires_at=millis(event.expires_at) if event.expires_at else 0,
        correlation_id=event.correlation_id,
        priority=event.priority,
        group=event.group_id or "",
        sequence=event.message_sequence,
    )


def purge_of(event: QueuePurged) -> Purge:
    """Raises ValueError if the event has an invalid time."""
    return Purge(millis(event.timestamp), PURGE_ERRORS[event.is_deleted])


class EventLine(NamedTuple):
    """An event to store with its job: its id, and its text as received."""

    transition: JobTransition
    event_id: str
    text: bytes


class QueuePurge(NamedTuple):
    tenant: str
    queue: str
    purge: Purge


class Batch(NamedTuple):
    """The content of consecutive frames. `last` is the sequence of the last frame, `events` the number of events.

    `unreadable` has the sequence of a frame and the problem of the frame or of one of its lines.
    """

    transitions: list[JobTransition]
    lines: list[EventLine]
    purges: list[QueuePurge]
    last: int
    events: int
    unreadable: list[tuple[int, str]]


AnyEvent = (
    JobQueued
    | JobLeased
    | JobExtended
    | JobProgressed
    | JobDone
    | JobRetried
    | JobRequeued
    | JobDead
    | JobRedriven
    | JobPromoted
    | JobCancelled
    | JobExpired
    | QueuePurged
)
_decode = msgspec.json.Decoder(AnyEvent).decode


def read_frames(entries: Sequence[Entry]) -> Batch:
    """Never raises: clients with access to the engine may have stored anything, and a newer version may send unknown events."""
    batch = Batch([], [], [], entries[-1].sequence if entries else 0, 0, [])
    count = 0
    for entry in entries:
        if entry.headers.get("Postroad-Frame") != FRAME_VERSION:
            batch.unreadable.append((entry.sequence, "not a frame of version 1"))
            continue
        tenant = entry.subject.removeprefix(f"{STREAMS['JOBS']}.")
        for line in unpack(entry.payload):
            try:
                event = _decode(line)
                if event.tenant != tenant:
                    raise ValueError("an event of another tenant")
                _add(batch, event, line)
                count += 1
            except (msgspec.DecodeError, ValueError, OverflowError, RecursionError) as problem:
                batch.unreadable.append((entry.sequence, str(problem)[:200]))
    return batch._replace(events=count)


def _add(batch: Batch, event: AnyEvent, line: bytes) -> None:
    if isinstance(event, QueuePurged):
        batch.purges.append(QueuePurge(event.tenant, event.queue, purge_of(event)))
        return
    transition = transition_of(event)
    batch.transitions.append(transition)
    if event.audit == "full":
        batch.lines.append(EventLine(transition, event.event_id, line))
