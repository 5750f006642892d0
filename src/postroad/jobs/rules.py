"""What a job is, and what each step makes of it. Pure: no I/O, no clock.

The state of a job is a function of the *set* of its events: not of their order, nor of how often each one came. Events come at
least once, from processes that do not wait for each other, so `job.done` may be stored before the `job.leased` of its attempt.

- Steps of one life are ordered: what ends it (`done`, `dead`) is above what does not, then by attempt, by kind, by time. The
  highest one is the job's state. An end counts whatever its attempt is: the message is gone, so nothing can follow.
- `job.redriven` begins a new life, in which attempts count from 1 again. No event says which life it is of, so its time does:
  what is later than the death before the redrive is of the new life. Between the two the message lay among the dead letters, so
  nothing happened to it, and clocks need not agree to the millisecond. Only if that death is not known, the redrive's own time
  is what counts. Repeated by a task that was taken up again, a redrive changes nothing.
- The redrive's event may come late. So a job keeps, below its highest step, those that are later: each would be the highest if
  a redrive between them came to light. Nearly always there is one step and no more.
"""

from enum import StrEnum
from typing import NamedTuple

import msgspec
from msgspec.structs import replace


class JobStatus(StrEnum):
    QUEUED = "queued"
    DELAYED = "delayed"
    LEASED = "leased"
    RETRYING = "retrying"
    DONE = "done"
    DEAD = "dead"
    EXPIRED = "expired"


UNFINISHED = (JobStatus.QUEUED, JobStatus.DELAYED, JobStatus.LEASED, JobStatus.RETRYING)


class Step(NamedTuple):
    """One step of a life. The order of its fields is the order of steps; a time of 0 is none."""

    is_end: bool
    attempt: int
    rank: int
    at: int
    status: str
    due_at: int = 0
    lease_until: int = 0


class Failure(NamedTuple):
    """What went wrong last: the latest one counts, in whichever life it was."""

    at: int
    attempt: int
    rank: int
    error: str


class Purge(NamedTuple):
    """All that was in a queue was dropped at this moment."""

    at: int
    why: str


class JobTransition(NamedTuple):
    """What one event tells of one job. `is_first`: it begins the job; `is_death`, `is_redrive`: it ends a life, or begins one."""

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


class Job(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The stored state of a job, from which its status at any time follows. Times are milliseconds; 0 is none."""

    tenant: str
    job_id: str
    queue: str
    message_id: str
    first_at: int  # of all events that came
    queued_at: int  # of job.queued: 0 while that is missing
    updated_at: int
    steps: tuple[Step, ...]  # the highest first; those below it are later
    redriven_at: int = 0
    deaths: tuple[int, ...] = ()  # in order; those before the one that the latest redrive followed no longer matter
    expires_at: int = 0
    correlation_id: str | None = None
    failure: Failure | None = None
    purge: Purge | None = None

    @property
    def created_at(self) -> int:
        return self.queued_at or self.first_at

    @property
    def begun_at(self) -> int:
        """When its present life began."""
        return self.redriven_at or self.created_at

    @property
    def step(self) -> Step:
        """The highest one of its present life."""
        if not self.redriven_at or _death_before(self.redriven_at, self.deaths):
            return self.steps[0]  # none is kept of a life before
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
        """The time of its last event, or of the purge that ended it."""
        return max(self.updated_at, self.purge.at) if self.purge is not None and self.is_purged else self.updated_at


def fold(job: Job | None, told: JobTransition) -> Job:
    """The job after what was told; made of it if there was none."""
    step, at = told.step, told.step.at
    failure = Failure(at, step.attempt, step.rank, told.error) if told.error else None
    if job is None:
        return Job(
            told.tenant,
            told.job_id,
            told.queue,
            told.message_id,
            at,
            at if told.is_first else 0,
            at,
            (step,),
            at if told.is_redrive else 0,
            (at,) if told.is_death else (),
            told.expires_at,
            told.correlation_id,
            failure,
        )
    is_later = (at, told.queue, told.message_id) > (job.updated_at, job.queue, job.message_id)
    redriven_at, deaths = job.redriven_at, job.deaths
    if told.is_redrive:
        redriven_at = max(at, redriven_at)
    if told.is_death and at not in deaths:
        deaths = tuple(sorted((*deaths, at)))
    steps = _with_step(job.steps, step)
    ended_at = _death_before(redriven_at, deaths)
    if ended_at:
        steps = tuple(one for one in steps if one.at > ended_at)
        deaths = tuple(one for one in deaths if one >= ended_at)
    return Job(
        job.tenant,
        job.job_id,
        told.queue if is_later else job.queue,
        told.message_id if is_later else job.message_id,
        min(at, job.first_at),
        min(at, job.queued_at or at) if told.is_first else job.queued_at,
        max(at, job.updated_at),
        steps,
        redriven_at,
        deaths,
        max(told.expires_at, job.expires_at),
        told.correlation_id or job.correlation_id,
        max(failure, job.failure) if failure and job.failure else failure or job.failure,
        job.purge,
    )


def _death_before(redriven_at: int, deaths: tuple[int, ...]) -> int:
    """The end of the life before the redrive; 0 if it is not known."""
    return max((at for at in deaths if at < redriven_at), default=0) if deaths else 0


def _with_step(steps: tuple[Step, ...], step: Step) -> tuple[Step, ...]:
    """Without those that another one is both above and not before: whatever redrive comes to light, they would not count."""
    if step > steps[0] and step.at >= steps[-1].at:
        return (step,)
    kept: list[Step] = []
    for one in sorted({*steps, step}, reverse=True):
        if not kept or one.at > kept[-1].at:
            kept.append(one)
    return tuple(kept)


def settle(job: Job, first_purge: Purge | None) -> Job:
    """The job, knowing the first purge of its queue since its present life began, which dropped its message.

    It shows on what has not ended. An end that comes to light later stands: the work was done, or there is a dead letter.
    """
    known = [purge for purge in (first_purge, job.purge) if purge is not None and purge.at > job.begun_at]
    first = min(known, default=None)
    return job if first == job.purge else replace(job, purge=first)


class StatusUntil(NamedTuple):
    """What a job is, and when it will be something else if no event comes; None if never."""

    status: str
    changes_at: int | None


def standing_at(job: Job, now: int) -> StatusUntil:
    """A delayed job whose time has come is queued; so is a leased one whose lease has passed. What has not ended and is past
    its expiry has expired."""
    step = job.step
    if step.is_end:
        return StatusUntil(step.status, None)
    expiry = 0 if job.redriven_at else job.expires_at  # of the message as first queued; one put back has none that is known
    if job.purge is not None or 0 < expiry <= now:
        return StatusUntil("expired", None)
    turns_at = step.lease_until if step.status == "leased" else step.due_at if step.status == "delayed" else 0
    if turns_at > now:
        return StatusUntil(step.status, min(turns_at, expiry) if expiry else turns_at)
    return StatusUntil("queued" if step.status in ("leased", "delayed") else step.status, expiry or None)


def status_at(job: Job, now: int) -> JobStatus:
    return JobStatus(standing_at(job, now).status)


def ended_at(job: Job, now: int) -> int | None:
    """Since when it has been done, dead or expired; None if it is none of these."""
    if status_at(job, now) in UNFINISHED:
        return None
    return job.changed_at if job.step.is_end or job.is_purged else max(job.changed_at, job.expires_at)
