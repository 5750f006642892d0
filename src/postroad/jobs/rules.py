"""The state of a job and the effect of each event on it. Pure: no I/O, no clock.

The state of a job is a function of the *set* of its events: it depends neither on their order nor on repetitions. Events are
delivered at least once, by processes that do not wait for each other, so `job.done` may be stored before the `job.leased` of its
attempt.

- The steps of one run are ordered: those that end it (`done`, `dead`, …) are above the others, then by attempt, rank and time.
  The highest one is the state of the job. An end counts whatever its attempt is: the message is gone, so nothing can follow.
- `job.redriven` begins a new run, whose attempts count from 1. Events do not name their run, but their time decides: an event
  later than the death (or cancellation) that precedes the redrive belongs to the new run. Between the two the message was a dead
  letter and had no events, so clocks need not agree to the millisecond. If that death is unknown, the time of the redrive
  decides. A repeated redrive changes nothing.
- The event of the redrive may arrive late. A job therefore keeps, below its highest step, the steps that are later: each of them
  is the highest if a redrive before it becomes known. Nearly always there is one step only.
"""

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from postroad.api.jobs import Job, JobProgress, JobStatus
from postroad.api.queues import Priority
from postroad.kernel.clock import rfc3339


class EventRule(NamedTuple):
    """Effect of an event type. `rank` orders the events of one attempt, and those that end the job among themselves. The first
    non-empty field of `error_fields` is the error of the job."""

    rank: int
    status: JobStatus
    is_end: bool = False
    is_first: bool = False
    is_redrive: bool = False
    error_fields: tuple[str, ...] = ()

    @property
    def is_death(self) -> bool:
        """True for an end that a redrive can follow, because the message is stored elsewhere."""
        return self.status in (JobStatus.DEAD, JobStatus.CANCELLED)


# By event type, for the job index and the pipeline alike. `dead` is above `done`, because a dead letter exists; `cancelled` is
# below it, because a worker that had the message has completed the work. Ranks are stored: do not change those in use.
TRANSITIONS: dict[str, EventRule] = {
    "job.queued": EventRule(0, JobStatus.QUEUED, is_first=True),
    "job.redriven": EventRule(0, JobStatus.QUEUED, is_redrive=True),
    "job.leased": EventRule(1, JobStatus.LEASED),
    "job.extended": EventRule(2, JobStatus.LEASED),
    "job.progressed": EventRule(2, JobStatus.LEASED),
    "job.requeued": EventRule(3, JobStatus.QUEUED, error_fields=("reason",)),
    "job.retried": EventRule(4, JobStatus.RETRYING, error_fields=("reason",)),
    "job.promoted": EventRule(5, JobStatus.QUEUED),
    "job.cancelled": EventRule(3, JobStatus.CANCELLED, is_end=True, error_fields=("reason",)),
    "job.expired": EventRule(4, JobStatus.EXPIRED, is_end=True),
    "job.done": EventRule(5, JobStatus.DONE, is_end=True),
    "job.dead": EventRule(6, JobStatus.DEAD, is_end=True, error_fields=("last_error", "reason")),
}
UNFINISHED = (JobStatus.QUEUED, JobStatus.DELAYED, JobStatus.LEASED, JobStatus.RETRYING)
_SHOWN_PRIORITIES: dict[str, Priority] = {"high": "high", "low": "low"}
PURGE_ERRORS = {False: "purged", True: "the queue was deleted"}  # by `is_deleted` of `queue.purged`


class Step(NamedTuple):
    """One step of a run. Steps are ordered by their fields; a time of 0 means none."""

    is_end: bool
    attempt: int
    rank: int
    at: int
    status: str
    due_at: int = 0
    lease_until: int = 0


class Failure(NamedTuple):
    """An error. The latest one counts, of any run."""

    at: int
    attempt: int
    rank: int
    error: str


class Purge(NamedTuple):
    """A purge of a queue, which dropped all its messages."""

    at: int
    why: str


class Progress(NamedTuple):
    """Progress that a worker reported. The latest report counts; percent is -1 and the note empty if left out."""

    at: int
    percent: float
    note: str


class JobTransition(NamedTuple):
    """Effect of one event on its job. `is_first`: it creates the job; `is_death`, `is_redrive`: it ends a run, or begins one."""

    tenant: str
    job_id: str
    queue: str
    message_id: str
    step: Step
    error: str | None = None
    is_first: bool = False
    is_death: bool = False
    is_redrive: bool = False
    expires_at: int = 0
    correlation_id: str | None = None
    sequence: int = 0
    progress: Progress | None = None
    priority: str = ""  # "" if the event does not have it
    group: str = ""


class Located(NamedTuple):
    """Position of the message in the stream of its queue, as the latest event knows it."""

    at: int
    sequence: int


class JobRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The stored state of a job, which determines its status at any time. Times are milliseconds; 0 means none."""

    tenant: str
    job_id: str
    queue: str
    message_id: str
    first_at: int  # of all known events
    queued_at: int  # of job.queued; 0 if that is unknown
    updated_at: int
    steps: tuple[Step, ...]  # the highest first; those below it are later
    redriven_at: int = 0
    deaths: tuple[int, ...] = ()  # in order, from the one that precedes the latest redrive
    expires_at: int = 0
    correlation_id: str | None = None
    failure: Failure | None = None
    purge: Purge | None = None
    located: Located | None = None
    progress: Progress | None = None
    priority: str = ""  # of job.queued; "" if that is unknown, and in records of earlier versions
    group: str = ""  # of job.queued; "" if it has none

    @property
    def created_at(self) -> int:
        return self.queued_at or self.first_at

    @property
    def begun_at(self) -> int:
        """Start of the current run."""
        return self.redriven_at or self.created_at

    @property
    def step(self) -> Step:
        """The highest step of the current run."""
        if not self.redriven_at or _death_before(self.redriven_at, self.deaths):
            return self.steps[0]  # steps of earlier runs are not stored
        return next(step for step in self.steps if step.at >= self.redriven_at)

    @property
    def is_purged(self) -> bool:
        return self.purge is not None and not self.step.is_end

    @property
    def last_error(self) -> str | None:
        if self.purge is not None and self.is_purged:
            return self.purge.why
        return self.failure.error if self.failure else None

    @property
    def changed_at(self) -> int:
        """Time of the last event, or of the purge that ended the job."""
        return max(self.updated_at, self.purge.at) if self.purge is not None and self.is_purged else self.updated_at


def fold(job: JobRecord | None, transition: JobTransition) -> JobRecord:
    """Apply a transition; create the job if there is none."""
    step, at = transition.step, transition.step.at
    failure = Failure(at, step.attempt, step.rank, transition.error) if transition.error else None
    located = Located(at, transition.sequence) if transition.sequence else None
    if job is None:
        return JobRecord(
            transition.tenant,
            transition.job_id,
            transition.queue,
            transition.message_id,
            at,
            at if transition.is_first else 0,
            at,
            (step,),
            at if transition.is_redrive else 0,
            (at,) if transition.is_death else (),
            transition.expires_at,
            transition.correlation_id,
            failure,
            None,
            located,
            transition.progress,
            transition.priority,
            transition.group,
        )
    is_later = (at, transition.queue, transition.message_id) > (job.updated_at, job.queue, job.message_id)
    redriven_at, deaths = job.redriven_at, job.deaths
    if transition.is_redrive:
        redriven_at = max(at, redriven_at)
    if transition.is_death and at not in deaths:
        deaths = tuple(sorted((*deaths, at)))
    steps = _with_step(job.steps, step)
    ended_at = _death_before(redriven_at, deaths)
    if ended_at:
        steps = tuple(one for one in steps if one.at > ended_at)
        deaths = tuple(one for one in deaths if one >= ended_at)
    return JobRecord(
        job.tenant,
        job.job_id,
        transition.queue if is_later else job.queue,
        transition.message_id if is_later else job.message_id,
        min(at, job.first_at),
        min(at, job.queued_at or at) if transition.is_first else job.queued_at,
        max(at, job.updated_at),
        steps,
        redriven_at,
        deaths,
        max(transition.expires_at, job.expires_at),
        transition.correlation_id or job.correlation_id,
        max(failure, job.failure) if failure and job.failure else failure or job.failure,
        job.purge,
        max(located, job.located) if located and job.located else located or job.located,
        max(transition.progress, job.progress) if transition.progress and job.progress else transition.progress or job.progress,
        max(transition.priority, job.priority),
        max(transition.group, job.group),
    )


def _death_before(redriven_at: int, deaths: tuple[int, ...]) -> int:
    """End of the run before the redrive; 0 if unknown."""
    return max((at for at in deaths if at < redriven_at), default=0) if deaths else 0


def _with_step(steps: tuple[Step, ...], step: Step) -> tuple[Step, ...]:
    """Add the step, and drop steps below another one that is not earlier: no redrive can make them the highest."""
    if step > steps[0] and step.at >= steps[-1].at:
        return (step,)
    kept: list[Step] = []
    for one in sorted({*steps, step}, reverse=True):
        if not kept or one.at > kept[-1].at:
            kept.append(one)
    return tuple(kept)


def with_purge(job: JobRecord, first_purge: Purge | None) -> JobRecord:
    """Apply the first purge of the queue since the current run began, which dropped the message.

    A purge affects jobs that have not ended. An end that becomes known later stands: the work was done, or a dead letter exists.
    """
    known = [purge for purge in (first_purge, job.purge) if purge is not None and purge.at > job.begun_at]
    first = min(known, default=None)
    return job if first == job.purge else replace(job, purge=first)


class StatusUntil(NamedTuple):
    """The status of a job, and the time when it changes without an event; None if never."""

    status: str
    changes_at: int | None


def status_until(job: JobRecord, now: int) -> StatusUntil:
    """A delayed job that is due is queued, and so is a leased one whose lease has ended. An unfinished job past its expiry has
    expired."""
    step = job.step
    if step.is_end:
        return StatusUntil(step.status, None)
    expiry = 0 if job.redriven_at else job.expires_at  # of the message as first queued; that of a redriven one is unknown
    if job.purge is not None or 0 < expiry <= now:
        return StatusUntil("expired", None)
    turns_at = step.lease_until if step.status == "leased" else step.due_at if step.status == "delayed" else 0
    if turns_at > now:
        return StatusUntil(step.status, min(turns_at, expiry) if expiry else turns_at)
    return StatusUntil("queued" if step.status in ("leased", "delayed") else step.status, expiry or None)


def status_at(job: JobRecord, now: int) -> JobStatus:
    return JobStatus(status_until(job, now).status)


def expiry_of(job: JobRecord, now: int) -> int:
    """The time when the message of an unfinished job expired; 0 if it did not."""
    is_expired = not job.step.is_end and not job.is_purged and status_until(job, now).status == "expired"
    return job.expires_at if is_expired else 0


def ended_at(job: JobRecord, now: int) -> int | None:
    """Time when the job was done, dead or expired; None if it has not ended."""
    if status_at(job, now) in UNFINISHED:
        return None
    return job.changed_at if job.step.is_end or job.is_purged else max(job.changed_at, job.expires_at)


def ready_at(job: JobRecord) -> int:
    """The time when the message of the current run became, or becomes, ready for its first delivery."""
    step = job.step
    if step.rank == TRANSITIONS["job.promoted"].rank and not step.is_end:
        return step.at
    return max(job.begun_at, step.due_at if step.rank == 0 else 0)


def job_of(record: JobRecord, now: int) -> Job:
    status, step = status_at(record, now), record.step
    has_expiry = record.expires_at and not record.redriven_at and not step.is_end
    return Job(
        job_id=record.job_id,
        queue=record.queue,
        status=status,
        attempts=step.attempt,
        created_at=rfc3339(record.created_at),
        updated_at=rfc3339(record.changed_at),
        last_error=record.last_error,
        correlation_id=record.correlation_id,
        message_id=record.message_id,
        due_at=rfc3339(step.due_at) if status in (JobStatus.DELAYED, JobStatus.RETRYING) else None,
        lease_until=rfc3339(step.lease_until) if status is JobStatus.LEASED else None,
        expires_at=rfc3339(record.expires_at) if has_expiry else None,
        priority=_SHOWN_PRIORITIES.get(record.priority),
        group_id=record.group or None,
        progress=_progress_of(record.progress) if record.progress else None,
    )


def _progress_of(progress: Progress) -> JobProgress:
    return JobProgress(
        at=rfc3339(progress.at),
        percent=progress.percent if progress.percent >= 0 else None,
        note=progress.note or None,
    )
