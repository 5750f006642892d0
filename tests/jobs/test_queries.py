"""Pages of jobs: exactly those that the rules say, in order, by indexes."""

import random
from pathlib import Path

import pytest

from postroad.api.jobs import JobStatus
from postroad.jobs.page_merge import Key
from postroad.jobs.queries import JobFilter, page
from postroad.jobs.rules import JobRecord, status_at
from postroad.jobs.store import Store, make_store
from postroad.jobs.unfinished import oldest
from postroad.kernel.event import Event
from postroad.kernel.matching import glob_matches
from tests.jobs.lifecycles import T0, Lifecycle, batch, purged

SPAN = 20_000


def some_events(chance: random.Random, count: int) -> list[Event]:
    sent: list[Event] = []
    for _ in range(count):
        lifecycle = Lifecycle(chance.choice("ab"), chance.choice(["x.1", "x.2", "y"]))
        at = chance.randrange(0, SPAN, 500)  # many in the same millisecond
        expires_at = chance.choice([None, at + chance.randrange(1, SPAN)])
        keys = {"corr": chance.choice([None, "c"]), "group": chance.choice([None, "g"])}
        sent.append(lifecycle.queued(at, delay_ms=chance.choice([0, 5000]), expires_at=expires_at, **keys))
        if chance.random() < 0.7:
            sent.append(lifecycle.leased(at + 10, until=at + chance.randrange(20, SPAN)))
            sent += chance.choice(
                [[], [lifecycle.done(at + 50)], [lifecycle.dead(at + 50)], [lifecycle.retried(at + 50, next_at=at + 900)]]
            )
    if chance.random() < 0.7:
        sent.append(purged(chance.randrange(SPAN), "a", "x.1"))
    return sent


def expected(jobs: list[JobRecord], wanted: JobFilter, now: int) -> list[str]:
    found = [
        job
        for job in jobs
        if job.tenant == wanted.tenant
        and (wanted.queue is None or job.queue == wanted.queue)
        and (wanted.status is None or status_at(job, now) is wanted.status)
        and wanted.since <= job.created_at < wanted.until
        and (wanted.correlation_id is None or job.correlation_id == wanted.correlation_id)
        and (wanted.message_id is None or job.message_id == wanted.message_id)
        and (wanted.group_id is None or job.group == wanted.group_id)
        and (wanted.globs is None or any(glob_matches(glob, job.queue) for glob in wanted.globs))
    ]
    return [job.job_id for job in sorted(found, key=lambda job: (job.created_at, job.job_id), reverse=True)]


def all_pages(store: Store, wanted: JobFilter, now: int, limit: int) -> list[str]:
    found: list[str] = []
    before: Key | None = None
    while True:
        some = page(store, wanted, now, limit, before)
        found += [job.job_id for job in some]
        if len(some) < limit:
            return found
        before = (some[-1].created_at, some[-1].job_id)


@pytest.mark.parametrize("seed", range(25))
def test_pages_have_what_the_rules_say_whatever_was_swept(tmp_path: Path, seed: int) -> None:
    """Many small worlds, sent in any order, at any time; nothing of it is worth shrinking."""
    chance = random.Random(seed)
    store = make_store(tmp_path / "1.sqlite", "s")
    try:
        sent = some_events(chance, 40)
        chance.shuffle(sent)
        times = sorted(T0 + chance.randrange(2 * SPAN) for _ in range(4))
        store.apply(batch(1, *sent[:50]), times[0])
        store.apply(batch(2, *sent[50:]), times[1])
        if chance.random() < 0.5:
            store.sweep(times[2], chance.choice([5, 1000]))
        now = times[3]
        jobs = page(store, JobFilter("a"), now, 1000) + page(store, JobFilter("b"), now, 1000)
        assert len(jobs) == len({event.job_id for event in sent if hasattr(event, "job_id")})
        since, until = sorted(T0 + chance.randrange(SPAN) for _ in range(2))
        for tenant in "ab":
            for status in (None, *JobStatus):
                for queue, globs in ((None, None), ("x.1", None), (None, ("x.*",)), ("y", ("x.*",)), (None, ()), (None, ("*",))):
                    wanted = JobFilter(tenant, queue, status, globs=globs)
                    assert all_pages(store, wanted, now, 3) == expected(jobs, wanted, now)
            for wanted in (
                JobFilter(tenant, since=since, until=until),
                JobFilter(tenant, status=JobStatus.QUEUED, since=since, until=until),
                JobFilter(tenant, correlation_id="c", status=JobStatus.DONE),
                JobFilter(tenant, message_id=jobs[0].message_id),
                JobFilter(tenant, group_id="g", status=JobStatus.DONE),
            ):
                assert all_pages(store, wanted, now, 3) == expected(jobs, wanted, now)
    finally:
        store.close()


def test_very_many_queues_are_looked_through_together(tmp_path: Path) -> None:
    store = make_store(tmp_path / "1.sqlite", "s")
    lifecycles = [Lifecycle(queue=f"{'a' if number % 2 else 'b'}-{number}") for number in range(500)]
    store.apply(batch(1, *(lifecycle.queued(number) for number, lifecycle in enumerate(lifecycles))), T0)
    found = all_pages(store, JobFilter("t", globs=("a-*",)), T0, 100)
    assert found == [lifecycle.job_id for lifecycle in lifecycles[::-1] if lifecycle.queue.startswith("a")]
    store.close()


def test_no_question_looks_at_everything(tmp_path: Path) -> None:
    """Each reads an index in order; at most the jobs of one millisecond are sorted, or the few that a sweep has not reached."""
    store = make_store(tmp_path / "1.sqlite", "s")
    lifecycle = Lifecycle()
    store.apply(batch(1, lifecycle.queued()), T0)
    asked: list[str] = []
    store.connection.set_trace_callback(asked.append)
    for wanted in (
        JobFilter("t"),
        JobFilter("t", queue="q"),
        JobFilter("t", status=JobStatus.DONE),
        JobFilter("t", queue="q", status=JobStatus.EXPIRED),
        JobFilter("t", correlation_id="c"),
        JobFilter("t", message_id="m"),
        JobFilter("t", group_id="g"),
    ):
        page(store, wanted, T0, 10)
    store.connection.set_trace_callback(None)
    plans = [row[3] for text in asked for row in store.connection.execute(f"EXPLAIN QUERY PLAN {text}")]
    assert len(asked) == 9
    assert not [plan for plan in plans if plan.startswith("SCAN")]
    whole_sorts = [plan for plan in plans if plan == "USE TEMP B-TREE FOR ORDER BY"]
    assert len(whole_sorts) == 3  # by message, and twice those whose time has come
    store.close()


def test_the_oldest_unfinished_job_of_a_queue_is_found(tmp_path: Path) -> None:
    store = make_store(tmp_path / "1.sqlite", "s")
    done, first, second, other = Lifecycle("a", "x"), Lifecycle("a", "x"), Lifecycle("a", "x"), Lifecycle("a", "y")
    events = [
        done.queued(0),
        done.done(50),
        first.queued(100),
        first.leased(200, until=9000),
        second.queued(300),
        other.queued(0),
    ]
    store.apply(batch(1, *events), T0 + 1000)
    found = oldest(store, "a", "x", T0 + 1000)
    assert found is not None and found.created_at == T0 + 100
    store.apply(batch(2, purged(250, "a", "x")), T0 + 1000)
    found = oldest(store, "a", "x", T0 + 1000)
    assert found is not None and found.created_at == T0 + 300
    assert oldest(store, "a", "none", T0) is None
    store.close()
