"""What the events of the catalogue tell of jobs, in the words of the rules."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from postroad.jetstream.stream_reader import Entry
from postroad.jobs.rules import JobStatus, JobTransition, Purge, Step
from postroad.queues.events import (
    JobDead,
    JobDone,
    JobEvent,
    JobExtended,
    JobLeased,
    JobQueued,
    JobRedriven,
    JobRequeued,
    JobRetried,
    QueuePurged,
)
from postroad.telemetry.frames import FRAME_VERSION, STREAMS, unpack

LATEST_MS = 253_402_300_799_999  # the last moment of the year 9999; later ones cannot be shown

# Where an event stands among those of the same attempt. `dead` is above `done`: there is a dead letter to look at.
_BEGUN, _LEASED, _EXTENDED, _REQUEUED, _RETRIED, _DONE, _DEAD = range(7)


_seconds: dict[str, int] = {}  # to the milliseconds of the second that a text begins with: events come many to a second


def millis(text: str) -> int:
    """An event's time. Raises ValueError for what is no time between 1970 and the year 9999 with its zone."""
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
        raise ValueError(f"not a time that can be shown: {text[:40]!r}")
    return at


def _queued(event: JobQueued, at: int) -> JobTransition:
    due_at = min(at + event.delay_ms, LATEST_MS) if event.delay_ms > 0 else 0
    return JobTransition(
        event.tenant,
        event.job_id,
        event.queue,
        event.message_id,
        Step(False, 0, _BEGUN, at, (JobStatus.DELAYED if due_at else JobStatus.QUEUED).value, due_at),
        is_first=True,
        expires_at=millis(event.expires_at) if event.expires_at else 0,
        correlation_id=event.correlation_id,
    )


def _leased(event: JobLeased, at: int) -> JobTransition:
    return _told(event, Step(False, event.attempt, _LEASED, at, "leased", 0, millis(event.lease_until)))


def _extended(event: JobExtended, at: int) -> JobTransition:
    return _told(event, Step(False, event.attempt, _EXTENDED, at, "leased", 0, millis(event.lease_until)))


def _requeued(event: JobRequeued, at: int) -> JobTransition:
    return _told(event, Step(False, event.attempt, _REQUEUED, at, "queued"), event.reason)


def _retried(event: JobRetried, at: int) -> JobTransition:
    return _told(event, Step(False, event.attempt, _RETRIED, at, "retrying", millis(event.next_at)), event.reason)


def _done(event: JobDone, at: int) -> JobTransition:
    return _told(event, Step(True, event.attempt, _DONE, at, "done"))


def _dead(event: JobDead, at: int) -> JobTransition:
    return _told(event, Step(True, event.attempt, _DEAD, at, "dead"), event.last_error or event.reason)._replace(is_death=True)


def _redriven(event: JobRedriven, at: int) -> JobTransition:
    return _told(event, Step(False, 0, _BEGUN, at, "queued"))._replace(is_redrive=True)


def _told(event: JobEvent, step: Step, error: str | None = None) -> JobTransition:
    return JobTransition(event.tenant, event.job_id, event.queue, event.message_id, step, error)


_TELLING: dict[type[JobEvent], Callable[[Any, int], JobTransition]] = {
    JobQueued: _queued,
    JobLeased: _leased,
    JobExtended: _extended,
    JobRequeued: _requeued,
    JobRetried: _retried,
    JobDone: _done,
    JobDead: _dead,
    JobRedriven: _redriven,
}


def told_by(event: JobEvent) -> JobTransition:
    """Raises ValueError if a time in it is none."""
    return _TELLING[type(event)](event, millis(event.timestamp))


def purge_by(event: QueuePurged) -> Purge:
    return Purge(millis(event.timestamp), "the queue was deleted" if event.is_deleted else "purged")


# Frames


class Line(NamedTuple):
    """An event to be kept as one of its job's: its id, and its text as it was sent."""

    told: JobTransition
    event_id: str
    text: bytes


class QueuePurge(NamedTuple):
    tenant: str
    queue: str
    purge: Purge


class Batch(NamedTuple):
    """What a run of frames tells. `last` is the sequence of the last frame, `events` how many there were."""

    told: list[JobTransition]
    kept: list[Line]
    purges: list[QueuePurge]
    last: int
    events: int
    unreadable: list[tuple[int, str]]  # the frame's sequence, and what is wrong with it or with one of its lines


AnyEvent = JobQueued | JobLeased | JobExtended | JobDone | JobRetried | JobRequeued | JobDead | JobRedriven | QueuePurged
_decode = msgspec.json.Decoder(AnyEvent).decode


def read_frames(entries: Sequence[Entry]) -> Batch:
    """Somebody with access to the engine may have put anything there, and a newer Postroad sends what this one does not know:
    what cannot be read is left out, and said."""
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
        batch.purges.append(QueuePurge(event.tenant, event.queue, purge_by(event)))
        return
    told = told_by(event)
    batch.told.append(told)
    if event.audit == "full":
        batch.kept.append(Line(told, event.event_id, line))
