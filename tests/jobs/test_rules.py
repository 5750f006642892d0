"""What events make of a job, in whatever order they come."""

import random

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from postroad.api.jobs import JobStatus
from postroad.jobs.event_decoder import transition_of
from postroad.jobs.rules import JobRecord, Purge, ended_at, expiry_of, fold, status_at, status_until, with_purge
from postroad.queues.events import (
    JobCancelled,
    JobDead,
    JobDone,
    JobEvent,
    JobExtended,
    JobLeased,
    JobPromoted,
    JobQueued,
    JobRedriven,
    JobRequeued,
    JobRetried,
)
from tests.jobs.lifecycles import T0, Lifecycle, folded, lifecycles

LATE = T0 + 10**9


def status(job: JobRecord, at: int) -> str:
    return status_at(job, T0 + at).value


# One life


def test_a_job_is_queued_leased_and_done() -> None:
    lifecycle = Lifecycle()
    events = [lifecycle.queued(corr="c"), lifecycle.leased(5, until=100), lifecycle.done(20)]
    assert [status(folded(events[:count]), 21) for count in (1, 2, 3)] == ["queued", "leased", "done"]
    job = folded(events)
    assert (job.created_at, job.changed_at, job.step.attempt, job.correlation_id) == (T0, T0 + 20, 1, "c")
    assert (job.queue, job.message_id, job.last_error) == ("q", lifecycle.message_id, None)


def test_a_delayed_job_is_queued_when_its_time_has_come() -> None:
    job = folded([Lifecycle().queued(delay_ms=100)])
    assert (status(job, 99), status(job, 100)) == ("delayed", "queued")


def test_a_leased_job_is_queued_when_its_lease_has_passed() -> None:
    lifecycle = Lifecycle()
    job = folded([lifecycle.queued(), lifecycle.leased(5, until=50)])
    assert (status(job, 49), status(job, 50)) == ("leased", "queued")


def test_an_extended_lease_ends_later() -> None:
    lifecycle = Lifecycle()
    job = folded([lifecycle.queued(), lifecycle.leased(5, until=50), lifecycle.extended(40, until=90)])
    assert (status(job, 89), status(job, 90)) == ("leased", "queued")


def test_a_job_that_is_to_be_tried_again_says_why_and_when() -> None:
    lifecycle = Lifecycle()
    job = folded([lifecycle.queued(), lifecycle.leased(5), lifecycle.retried(9, next_at=200, reason="no route")])
    assert (status(job, 10), job.last_error, job.step.due_at) == ("retrying", "no route", T0 + 200)
    assert status(job, 300) == "retrying"


def test_the_last_error_stays_with_a_job_that_is_done_after_all() -> None:
    lifecycle = Lifecycle()
    job = folded(
        [lifecycle.queued(), lifecycle.retried(9, next_at=20, reason="no route"), lifecycle.leased(20, 2), lifecycle.done(30, 2)]
    )
    assert (status(job, 31), job.last_error, job.step.attempt) == ("done", "no route", 2)


def test_a_job_that_was_given_back_is_queued() -> None:
    lifecycle = Lifecycle()
    assert status(folded([lifecycle.queued(), lifecycle.leased(5), lifecycle.requeued(9)]), 10) == "queued"


def test_a_dead_job_has_the_consumers_error_or_else_the_reason() -> None:
    lifecycle = Lifecycle()
    assert folded([lifecycle.dead(5, last_error="boom")]).last_error == "boom"
    assert folded([lifecycle.dead(5, reason="too many tries")]).last_error == "too many tries"


def test_what_has_not_ended_expires() -> None:
    lifecycle = Lifecycle()
    job = folded([lifecycle.queued(expires_at=100), lifecycle.leased(90, until=500)])
    assert (status(job, 99), status(job, 100)) == ("leased", "expired")
    assert ended_at(job, T0 + 100) == T0 + 100
    assert status(folded([lifecycle.queued(expires_at=100), lifecycle.done(90)]), 100) == "done"


# Requests


def test_a_promoted_job_is_queued_and_not_due_later() -> None:
    lifecycle = Lifecycle()
    job = folded([lifecycle.queued(delay_ms=1000), lifecycle.promoted(5)])
    assert (status(job, 6), status(job, 2000), job.step.due_at) == ("queued", "queued", 0)
    retrying = [lifecycle.queued(), lifecycle.leased(5), lifecycle.retried(9, next_at=500), lifecycle.promoted(20, 1)]
    assert status(folded(retrying), 21) == "queued"
    assert status(folded([*retrying, lifecycle.leased(30, 2, until=100)]), 40) == "leased"


def test_a_cancelled_job_says_why() -> None:
    lifecycle = Lifecycle()
    job = folded([lifecycle.queued(expires_at=100), lifecycle.cancelled(50, reason="not needed")])
    assert (status(job, 51), status(job, 500), job.last_error) == ("cancelled", "cancelled", "not needed")
    assert ended_at(job, T0 + 500) == T0 + 50


def test_a_worker_that_was_faster_than_a_cancellation_has_done_the_job() -> None:
    lifecycle = Lifecycle()
    events = [lifecycle.queued(), lifecycle.leased(5), lifecycle.cancelled(50, 0), lifecycle.done(60)]
    for some in (events, events[::-1]):
        assert status(folded(some), 61) == "done"


def test_a_cancelled_job_that_was_retried_begins_a_new_life() -> None:
    lifecycle = Lifecycle()
    events = [lifecycle.queued(), lifecycle.leased(5, 3), lifecycle.cancelled(50, 3), lifecycle.redriven(60)]
    for some in (events, events[::-1]):
        job = folded(some)
        assert (status(job, 61), job.step.attempt) == ("queued", 0)
    assert status(folded([*events, lifecycle.done(70)]), 71) == "done"


def test_an_expired_job_is_expired_unless_it_was_done() -> None:
    lifecycle = Lifecycle()
    events = [lifecycle.queued(expires_at=100), lifecycle.leased(50, until=500), lifecycle.expired(100, 1)]
    job = folded(events)
    assert (status(job, 101), ended_at(job, T0 + 600)) == ("expired", T0 + 100)
    assert (expiry_of(folded(events[:2]), T0 + 99), expiry_of(folded(events[:2]), T0 + 100)) == (0, T0 + 100)
    assert expiry_of(job, T0 + 200) == 0, "its event is there"
    assert status(folded([*events, lifecycle.done(120)]), 121) == "done"


def test_the_latest_event_knows_where_the_message_is() -> None:
    lifecycle = Lifecycle()
    queued, leased = replace(lifecycle.queued(), message_sequence=7), replace(lifecycle.leased(5), message_sequence=9)
    for some in ([queued, leased], [leased, queued], [queued, leased, lifecycle.done(8)]):
        assert folded(some).located == (T0 + 5, 9)


# Out of order


def test_a_lease_that_comes_to_light_after_its_end_changes_nothing() -> None:
    lifecycle = Lifecycle()
    queued, leased, done = lifecycle.queued(), lifecycle.leased(5), lifecycle.done(20)
    assert status(folded([queued, done, leased]), 21) == "done"
    assert status(folded([queued, lifecycle.retried(20, next_at=50), leased]), 21) == "retrying"


def test_an_end_counts_whatever_its_attempt() -> None:
    """The acknowledgement of the first delivery came just in time; the second delivery was on its way already."""
    lifecycle = Lifecycle()
    job = folded([lifecycle.queued(), lifecycle.leased(5, until=50), lifecycle.leased(51, 2, until=90), lifecycle.done(52, 1)])
    assert status(job, 1000) == "done"


def test_a_job_is_made_of_whatever_comes_first() -> None:
    lifecycle = Lifecycle()
    job = folded([lifecycle.done(20)])
    assert (status(job, 21), job.created_at) == ("done", T0 + 20)
    later = fold(job, transition_of(lifecycle.queued(0, corr="c")))
    assert (status(later, 21), later.created_at, later.correlation_id) == ("done", T0, "c")


# Redrives


def test_a_redriven_job_begins_a_new_life() -> None:
    lifecycle = Lifecycle()
    first = [lifecycle.queued(expires_at=100), lifecycle.leased(5, 3), lifecycle.dead(20, 3, last_error="boom")]
    again = [*first, lifecycle.redriven(200), lifecycle.leased(210, 1, until=300)]
    assert status(folded(first), 500) == "dead"
    job = folded(again)
    assert (status(job, 250), job.step.attempt, job.last_error, job.created_at) == ("leased", 1, "boom", T0)
    assert status(folded([*again, lifecycle.done(220)]), 10_000) == "done"


def test_a_redrive_may_come_to_light_after_what_followed_it() -> None:
    lifecycle = Lifecycle()
    dead, redriven, leased, done = (
        lifecycle.dead(20, 5),
        lifecycle.redriven(200),
        lifecycle.leased(210, until=300),
        lifecycle.done(220),
    )
    assert status(folded([dead, leased]), 250) == "dead"
    assert status(folded([dead, leased, redriven]), 250) == "leased"
    assert status(folded([dead, done, leased, redriven]), 250) == "done"


def test_what_is_older_than_the_death_is_of_the_life_before() -> None:
    lifecycle = Lifecycle()
    assert status(folded([lifecycle.dead(20, 5), lifecycle.redriven(200), lifecycle.leased(19, 5, until=10**6)]), 250) == "queued"


def test_a_consumer_may_be_done_before_the_redrives_clock_was_read() -> None:
    lifecycle = Lifecycle()
    dead, redriven, leased, done = lifecycle.dead(20, 5), lifecycle.redriven(200), lifecycle.leased(197), lifecycle.done(199)
    for events in ([dead, redriven, leased, done], [dead, leased, done, redriven], [redriven, done, dead, leased]):
        assert status(folded(events), 10**6) == "done"


def test_without_the_death_the_redrives_own_time_counts() -> None:
    lifecycle = Lifecycle()
    events = [lifecycle.leased(19, 5, until=10**6), lifecycle.redriven(200)]
    assert status(folded(events), 250) == "queued"
    assert status(folded([*events, lifecycle.leased(210, until=300)]), 250) == "leased"


def test_a_redrive_that_is_told_again_later_changes_nothing() -> None:
    """The task was taken up again after a crash; the message was back already, and was done meanwhile."""
    lifecycle = Lifecycle()
    events = [
        lifecycle.dead(20, 5),
        lifecycle.redriven(200),
        lifecycle.leased(210),
        lifecycle.done(220),
        lifecycle.redriven(5000),
    ]
    assert status(folded(events), 10**6) == "done"


def test_a_job_can_be_redriven_again_and_again() -> None:
    lifecycle = Lifecycle()
    events = [lifecycle.dead(20, 5), lifecycle.redriven(200), lifecycle.dead(300), lifecycle.redriven(400)]
    assert [status(folded(events[:count]), 500) for count in (1, 2, 3, 4)] == ["dead", "queued", "dead", "queued"]
    assert folded(events[::-1]) == folded(events)


def test_a_job_is_where_its_message_was_put_last() -> None:
    here, there = Lifecycle(queue="here", job_id="j"), Lifecycle(queue="there", job_id="j")
    events: list[JobEvent] = [here.queued(), here.dead(20), there.redriven(200), there.leased(210)]
    for sent in (events, events[::-1], [events[2], events[0], events[3], events[1]]):
        assert (folded(sent).queue, folded(sent).message_id) == ("there", there.message_id)


# Purges


def test_a_purge_ends_what_was_created_before_it() -> None:
    lifecycle = Lifecycle()
    job = with_purge(folded([lifecycle.queued(), lifecycle.leased(5)]), Purge(T0 + 10, "purged"))
    assert (status(job, 11), job.last_error, job.changed_at) == ("expired", "purged", T0 + 10)
    assert with_purge(job, Purge(T0 + 10, "purged")) == job
    assert with_purge(folded([lifecycle.queued(10)]), Purge(T0 + 10, "purged")).purge is None


def test_an_end_stands_whether_it_comes_to_light_before_or_after_the_purge() -> None:
    lifecycle = Lifecycle()
    purge = Purge(T0 + 10, "purged")
    before = with_purge(folded([lifecycle.queued(), lifecycle.done(9)]), purge)
    after = fold(with_purge(folded([lifecycle.queued()]), purge), transition_of(lifecycle.done(9)))
    assert (status(before, 11), status(after, 11)) == ("done", "done")
    assert before.last_error is after.last_error is None


def test_a_purge_is_of_one_life() -> None:
    lifecycle = Lifecycle()
    job = with_purge(folded([lifecycle.queued(), lifecycle.dead(20)]), Purge(T0 + 30, "purged"))
    again = with_purge(fold(job, transition_of(lifecycle.redriven(40))), None)
    assert status(again, 50) == "queued"


# Properties


def naive(events: list[JobEvent], now: int) -> tuple[str, int]:
    """Status and attempts by the last event alone, which is right when they are sent in the order of their happening."""
    last = events[-1]
    first = next((event for event in events if isinstance(event, JobQueued)), None)
    job = folded([last])
    attempt = 0 if isinstance(last, JobQueued | JobRedriven) else last.attempt  # type: ignore[attr-defined]
    names: dict[type[JobEvent], str] = {
        JobDone: "done",
        JobDead: "dead",
        JobCancelled: "cancelled",
        JobRetried: "retrying",
        JobRequeued: "queued",
        JobRedriven: "queued",
        JobPromoted: "queued",
    }
    name = names.get(type(last), "")
    is_redriven = any(isinstance(event, JobRedriven) for event in events)
    if name not in ("done", "dead", "cancelled") and first is not None and first.expires_at and not is_redriven:
        expires_at = folded([first]).expires_at
        if expires_at <= now:
            return "expired", attempt
    if isinstance(last, JobLeased | JobExtended):
        name = "leased" if job.step.lease_until > now else "queued"
    if isinstance(last, JobQueued):
        name = "delayed" if job.step.due_at > now else "queued"
    return name, attempt


@given(lifecycles(), st.integers(0, 100_000))
def test_told_in_order_the_last_event_says_what_a_job_is(events: list[JobEvent], later: int) -> None:
    if not events:
        return
    job = folded(events)
    now = job.updated_at + later
    assert (status_at(job, now).value, job.step.attempt) == naive(events, now)


@given(lifecycles(), st.randoms(use_true_random=False))
def test_any_order_and_any_repetition_end_in_the_same_state(events: list[JobEvent], chance: random.Random) -> None:
    sent = [*events, *chance.choices(events, k=len(events))] if events else []
    chance.shuffle(sent)
    if events:
        assert folded(sent) == folded(events)


@given(lifecycles(), st.lists(st.integers(1, 40_000), max_size=3), st.randoms(use_true_random=False))
def test_purges_that_become_known_at_any_time_end_in_the_same_state(
    events: list[JobEvent], times: list[int], chance: random.Random
) -> None:
    purges = sorted(Purge(T0 + at, "purged") for at in times)

    def known(job: JobRecord, some: list[Purge]) -> JobRecord:
        return with_purge(job, min((purge for purge in some if purge.at > job.begun_at), default=None))

    if not events:
        return
    expected = known(folded(events), purges)
    sent: list[JobEvent | Purge] = [*events, *purges]
    chance.shuffle(sent)
    job: JobRecord | None = None
    heard: list[Purge] = []
    for one in sent:
        if isinstance(one, Purge):
            heard.append(one)
        else:
            job = fold(job, transition_of(one))
        job = known(job, heard) if job else None
    assert job == expected


@given(lifecycles())
def test_folding_an_event_twice_changes_nothing(events: list[JobEvent]) -> None:
    job: JobRecord | None = None
    for event in events:
        once = fold(job, transition_of(event))
        assert fold(once, transition_of(event)) == once
        job = once


@given(lifecycles(), st.integers(0, 300_000))
def test_the_status_holds_until_it_is_said_to_change(events: list[JobEvent], later: int) -> None:
    if not events:
        return
    job, now = folded(events), T0 + later
    found = status_until(job, now)
    assert JobStatus(found.status)
    if found.changes_at is None:
        assert status_at(job, LATE) == found.status
    else:
        assert found.changes_at > now
        assert status_at(job, found.changes_at - 1) == found.status
        assert status_at(job, found.changes_at) != found.status


@given(lifecycles())
def test_few_steps_are_kept(events: list[JobEvent]) -> None:
    if events:
        job = folded(events)
        assert len(job.steps) == (2 if job.steps[-1].at == job.redriven_at != job.steps[0].at else 1)
        assert len(job.deaths) <= 2
