"""What events make of a job, in whatever order they come."""

import random

from hypothesis import given
from hypothesis import strategies as st

from postroad.api.jobs import JobStatus
from postroad.jobs.event_decoder import transition_of
from postroad.jobs.rules import JobRecord, Purge, ended_at, fold, status_at, status_until, with_purge
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
)
from tests.jobs.lifecycles import T0, Life, folded, lives

LATE = T0 + 10**9


def status(job: JobRecord, at: int) -> str:
    return status_at(job, T0 + at).value


# One life


def test_a_job_is_queued_leased_and_done() -> None:
    life = Life()
    events = [life.queued(corr="c"), life.leased(5, until=100), life.done(20)]
    assert [status(folded(events[:count]), 21) for count in (1, 2, 3)] == ["queued", "leased", "done"]
    job = folded(events)
    assert (job.created_at, job.changed_at, job.step.attempt, job.correlation_id) == (T0, T0 + 20, 1, "c")
    assert (job.queue, job.message_id, job.last_error) == ("q", life.message_id, None)


def test_a_delayed_job_is_queued_when_its_time_has_come() -> None:
    job = folded([Life().queued(delay_ms=100)])
    assert (status(job, 99), status(job, 100)) == ("delayed", "queued")


def test_a_leased_job_is_queued_when_its_lease_has_passed() -> None:
    life = Life()
    job = folded([life.queued(), life.leased(5, until=50)])
    assert (status(job, 49), status(job, 50)) == ("leased", "queued")


def test_an_extended_lease_ends_later() -> None:
    life = Life()
    job = folded([life.queued(), life.leased(5, until=50), life.extended(40, until=90)])
    assert (status(job, 89), status(job, 90)) == ("leased", "queued")


def test_a_job_that_is_to_be_tried_again_says_why_and_when() -> None:
    life = Life()
    job = folded([life.queued(), life.leased(5), life.retried(9, next_at=200, reason="no route")])
    assert (status(job, 10), job.last_error, job.step.due_at) == ("retrying", "no route", T0 + 200)
    assert status(job, 300) == "retrying"


def test_the_last_error_stays_with_a_job_that_is_done_after_all() -> None:
    life = Life()
    job = folded([life.queued(), life.retried(9, next_at=20, reason="no route"), life.leased(20, 2), life.done(30, 2)])
    assert (status(job, 31), job.last_error, job.step.attempt) == ("done", "no route", 2)


def test_a_job_that_was_given_back_is_queued() -> None:
    life = Life()
    assert status(folded([life.queued(), life.leased(5), life.requeued(9)]), 10) == "queued"


def test_a_dead_job_has_the_consumers_error_or_else_the_reason() -> None:
    life = Life()
    assert folded([life.dead(5, last_error="boom")]).last_error == "boom"
    assert folded([life.dead(5, reason="too many tries")]).last_error == "too many tries"


def test_what_has_not_ended_expires() -> None:
    life = Life()
    job = folded([life.queued(expires_at=100), life.leased(90, until=500)])
    assert (status(job, 99), status(job, 100)) == ("leased", "expired")
    assert ended_at(job, T0 + 100) == T0 + 100
    assert status(folded([life.queued(expires_at=100), life.done(90)]), 100) == "done"


# Out of order


def test_a_lease_that_comes_to_light_after_its_end_changes_nothing() -> None:
    life = Life()
    queued, leased, done = life.queued(), life.leased(5), life.done(20)
    assert status(folded([queued, done, leased]), 21) == "done"
    assert status(folded([queued, life.retried(20, next_at=50), leased]), 21) == "retrying"


def test_an_end_counts_whatever_its_attempt() -> None:
    """The acknowledgement of the first delivery came just in time; the second delivery was on its way already."""
    life = Life()
    job = folded([life.queued(), life.leased(5, until=50), life.leased(51, 2, until=90), life.done(52, 1)])
    assert status(job, 1000) == "done"


def test_a_job_is_made_of_whatever_comes_first() -> None:
    life = Life()
    job = folded([life.done(20)])
    assert (status(job, 21), job.created_at) == ("done", T0 + 20)
    later = fold(job, transition_of(life.queued(0, corr="c")))
    assert (status(later, 21), later.created_at, later.correlation_id) == ("done", T0, "c")


# Redrives


def test_a_redriven_job_begins_a_new_life() -> None:
    life = Life()
    first = [life.queued(expires_at=100), life.leased(5, 3), life.dead(20, 3, last_error="boom")]
    again = [*first, life.redriven(200), life.leased(210, 1, until=300)]
    assert status(folded(first), 500) == "dead"
    job = folded(again)
    assert (status(job, 250), job.step.attempt, job.last_error, job.created_at) == ("leased", 1, "boom", T0)
    assert status(folded([*again, life.done(220)]), 10_000) == "done"


def test_a_redrive_may_come_to_light_after_what_followed_it() -> None:
    life = Life()
    dead, redriven, leased, done = life.dead(20, 5), life.redriven(200), life.leased(210, until=300), life.done(220)
    assert status(folded([dead, leased]), 250) == "dead"
    assert status(folded([dead, leased, redriven]), 250) == "leased"
    assert status(folded([dead, done, leased, redriven]), 250) == "done"


def test_what_is_older_than_the_death_is_of_the_life_before() -> None:
    life = Life()
    assert status(folded([life.dead(20, 5), life.redriven(200), life.leased(19, 5, until=10**6)]), 250) == "queued"


def test_a_consumer_may_be_done_before_the_redrives_clock_was_read() -> None:
    life = Life()
    dead, redriven, leased, done = life.dead(20, 5), life.redriven(200), life.leased(197), life.done(199)
    for events in ([dead, redriven, leased, done], [dead, leased, done, redriven], [redriven, done, dead, leased]):
        assert status(folded(events), 10**6) == "done"


def test_without_the_death_the_redrives_own_time_counts() -> None:
    life = Life()
    events = [life.leased(19, 5, until=10**6), life.redriven(200)]
    assert status(folded(events), 250) == "queued"
    assert status(folded([*events, life.leased(210, until=300)]), 250) == "leased"


def test_a_redrive_that_is_told_again_later_changes_nothing() -> None:
    """The task was taken up again after a crash; the message was back already, and was done meanwhile."""
    life = Life()
    events = [life.dead(20, 5), life.redriven(200), life.leased(210), life.done(220), life.redriven(5000)]
    assert status(folded(events), 10**6) == "done"


def test_a_job_can_be_redriven_again_and_again() -> None:
    life = Life()
    events = [life.dead(20, 5), life.redriven(200), life.dead(300), life.redriven(400)]
    assert [status(folded(events[:count]), 500) for count in (1, 2, 3, 4)] == ["dead", "queued", "dead", "queued"]
    assert folded(events[::-1]) == folded(events)


def test_a_job_is_where_its_message_was_put_last() -> None:
    here, there = Life(queue="here", job_id="j"), Life(queue="there", job_id="j")
    events: list[JobEvent] = [here.queued(), here.dead(20), there.redriven(200), there.leased(210)]
    for sent in (events, events[::-1], [events[2], events[0], events[3], events[1]]):
        assert (folded(sent).queue, folded(sent).message_id) == ("there", there.message_id)


# Purges


def test_a_purge_ends_what_was_created_before_it() -> None:
    life = Life()
    job = with_purge(folded([life.queued(), life.leased(5)]), Purge(T0 + 10, "purged"))
    assert (status(job, 11), job.last_error, job.changed_at) == ("expired", "purged", T0 + 10)
    assert with_purge(job, Purge(T0 + 10, "purged")) == job
    assert with_purge(folded([life.queued(10)]), Purge(T0 + 10, "purged")).purge is None


def test_an_end_stands_whether_it_comes_to_light_before_or_after_the_purge() -> None:
    life = Life()
    purge = Purge(T0 + 10, "purged")
    before = with_purge(folded([life.queued(), life.done(9)]), purge)
    after = fold(with_purge(folded([life.queued()]), purge), transition_of(life.done(9)))
    assert (status(before, 11), status(after, 11)) == ("done", "done")
    assert before.last_error is after.last_error is None


def test_a_purge_is_of_one_life() -> None:
    life = Life()
    job = with_purge(folded([life.queued(), life.dead(20)]), Purge(T0 + 30, "purged"))
    again = with_purge(fold(job, transition_of(life.redriven(40))), None)
    assert status(again, 50) == "queued"


# Properties


def naive(events: list[JobEvent], now: int) -> tuple[str, int]:
    """Status and attempts by the last event alone, which is right when they are sent in the order of their happening."""
    last = events[-1]
    first = next((event for event in events if isinstance(event, JobQueued)), None)
    job = folded([last])
    attempt = 0 if isinstance(last, JobQueued | JobRedriven) else last.attempt  # type: ignore[attr-defined]
    names = {JobDone: "done", JobDead: "dead", JobRetried: "retrying", JobRequeued: "queued", JobRedriven: "queued"}
    name = names.get(type(last), "")
    is_redriven = any(isinstance(event, JobRedriven) for event in events)
    if name not in ("done", "dead") and first is not None and first.expires_at and not is_redriven:
        expires_at = folded([first]).expires_at
        if expires_at <= now:
            return "expired", attempt
    if isinstance(last, JobLeased | JobExtended):
        name = "leased" if job.step.lease_until > now else "queued"
    if isinstance(last, JobQueued):
        name = "delayed" if job.step.due_at > now else "queued"
    return name, attempt


@given(lives(), st.integers(0, 100_000))
def test_told_in_order_the_last_event_says_what_a_job_is(events: list[JobEvent], later: int) -> None:
    if not events:
        return
    job = folded(events)
    now = job.updated_at + later
    assert (status_at(job, now).value, job.step.attempt) == naive(events, now)


@given(lives(), st.randoms(use_true_random=False))
def test_any_order_and_any_repetition_end_in_the_same_state(events: list[JobEvent], chance: random.Random) -> None:
    sent = [*events, *chance.choices(events, k=len(events))] if events else []
    chance.shuffle(sent)
    if events:
        assert folded(sent) == folded(events)


@given(lives(), st.lists(st.integers(1, 40_000), max_size=3), st.randoms(use_true_random=False))
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


@given(lives())
def test_folding_an_event_twice_changes_nothing(events: list[JobEvent]) -> None:
    job: JobRecord | None = None
    for event in events:
        once = fold(job, transition_of(event))
        assert fold(once, transition_of(event)) == once
        job = once


@given(lives(), st.integers(0, 300_000))
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


@given(lives())
def test_few_steps_are_kept(events: list[JobEvent]) -> None:
    if events:
        job = folded(events)
        assert len(job.steps) == (2 if job.steps[-1].at == job.redriven_at != job.steps[0].at else 1)
        assert len(job.deaths) <= 2
