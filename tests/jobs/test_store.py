"""The file: what it takes in, whole or not at all, and when it is made anew."""

import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroad.api.jobs import JobStatus
from postroad.jobs.queries import JobFilter, events, find, page
from postroad.jobs.rules import status_at
from postroad.jobs.store import ConcurrentWriter, InvalidStoreFile, Store, files_in, fresh_path, make_store, open_store, remove
from postroad.jobs.stream_follower import apply_frames
from postroad.queues.events import JobEvent
from tests.jobs.lifecycles import T0, Lifecycle, batch, frame, purged

NOW = T0 + 1000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = make_store(tmp_path / "1.sqlite", "s")
    yield made
    made.close()


def reopened(store: Store) -> Store:
    store.close()
    return open_store(store.path, "s")


def status_of(store: Store, lifecycle: Lifecycle, now: int = NOW) -> str | None:
    job = find(store, lifecycle.tenant, lifecycle.job_id)
    return status_at(job, now).value if job else None


def names(store: Store, lifecycle: Lifecycle) -> list[str]:
    found = events(store, lifecycle.tenant, lifecycle.job_id, (0, 0, ""), 100, 1 << 20)
    assert found is not None
    return [row.text.split(b'"')[3].decode() for row in found[0]]


# Taking in


def test_a_batch_is_folded_and_the_position_goes_with_it(store: Store) -> None:
    lifecycle = Lifecycle()
    store.apply(batch(7, lifecycle.queued(), lifecycle.leased(5)), NOW)
    store.apply(batch(8, lifecycle.done(9)), NOW)
    assert (status_of(store, lifecycle), store.position) == ("done", 8)
    again = reopened(store)
    assert (status_of(again, lifecycle), again.position) == ("done", 8)


def test_the_same_events_again_change_nothing(store: Store) -> None:
    lifecycle = Lifecycle()
    sent = batch(7, lifecycle.queued(), lifecycle.leased(5), lifecycle.done(9))
    store.apply(sent, NOW)
    before = list(store.connection.execute("SELECT * FROM jobs")), list(store.connection.execute("SELECT * FROM events"))
    store.apply(sent._replace(last=8), NOW)
    after = list(store.connection.execute("SELECT * FROM jobs")), list(store.connection.execute("SELECT * FROM events"))
    assert before == after


def test_a_batch_that_fails_at_its_end_leaves_nothing(store: Store) -> None:
    first, second = Lifecycle(), Lifecycle()
    store.apply(batch(1, first.queued()), NOW)
    store.connection.execute("CREATE TRIGGER no BEFORE UPDATE ON about BEGIN SELECT RAISE(ABORT, 'not today'); END")
    with pytest.raises(sqlite3.IntegrityError, match="not today"):
        store.apply(batch(2, second.queued(), purged(500), first.done(9)), NOW)
    again = reopened(store)
    assert (again.position, status_of(again, first), status_of(again, second)) == (1, "queued", None)
    assert (again.pending, names(again, first)) == ([], ["job.queued"])


def test_after_a_failure_the_store_has_to_be_opened_again(store: Store) -> None:
    lifecycle = Lifecycle()
    store.connection.execute("ALTER TABLE events RENAME TO gone")
    with pytest.raises(sqlite3.OperationalError):
        store.apply(batch(1, lifecycle.queued()), NOW)
    store.connection.execute("ALTER TABLE gone RENAME TO events")
    with pytest.raises(ConcurrentWriter):
        store.apply(batch(1, lifecycle.queued()), NOW)
    again = reopened(store)
    again.apply(batch(1, lifecycle.queued()), NOW)
    assert status_of(again, lifecycle) == "queued"


def test_the_second_of_two_that_write_is_refused(store: Store) -> None:
    other = open_store(store.path, "s")
    mine, theirs = Lifecycle(), Lifecycle()
    other.apply(batch(5, theirs.queued()), NOW)
    with pytest.raises(ConcurrentWriter):
        store.apply(batch(5, mine.queued()), NOW)
    again = reopened(store)
    assert again.position == 5
    again.apply(batch(6, mine.queued()), NOW)
    assert (status_of(again, mine), status_of(again, theirs)) == ("queued", "queued")
    other.close()


def test_events_are_kept_only_where_all_is_audited_and_stand_in_the_order_of_their_times(store: Store) -> None:
    full, only = Lifecycle(), Lifecycle(audit="jobs_only")
    store.apply(batch(1, full.done(9), full.queued()), NOW)
    store.apply(batch(2, full.leased(5), only.queued(), only.done(9)), NOW)
    assert names(store, full) == ["job.queued", "job.leased", "job.done"]
    assert (names(store, only), status_of(store, only)) == ([], "done")


def test_events_come_in_pages_bounded_by_count_and_bytes(store: Store) -> None:
    lifecycle = Lifecycle()
    store.apply(batch(1, lifecycle.queued(), *(lifecycle.extended(at, until=at + 50) for at in range(1, 20))), NOW)
    seen: list[bytes] = []
    key, has_more = (0, 0, ""), True
    while has_more:
        found = events(store, "t", lifecycle.job_id, key, 6, 1 << 20)
        assert found is not None
        rows, has_more = found
        assert len(rows) <= 6
        seen += [row.text for row in rows]
        key = rows[-1].key
    assert len(seen) == len(set(seen)) == 20
    found = events(store, "t", lifecycle.job_id, (0, 0, ""), 100, 1000)
    assert found is not None and len(found[0]) < 5 and found[1]


def test_tenants_are_apart_even_with_the_same_ids(store: Store) -> None:
    mine, theirs = Lifecycle("a", job_id="same"), Lifecycle("b", job_id="same")
    store.apply(batch(1, mine.queued(), theirs.queued(), theirs.done(5)), NOW)
    assert (status_of(store, mine), status_of(store, theirs)) == ("queued", "done")
    assert [job.tenant for job in page(store, JobFilter("a"), NOW, 10)] == ["a"]
    assert find(store, "c", "same") is None
    assert events(store, "a", "other", (0, 0, ""), 10, 1000) is None


def test_a_job_whose_first_event_comes_late_moves_to_its_place(store: Store) -> None:
    lifecycle, other = Lifecycle(), Lifecycle()
    store.apply(batch(1, lifecycle.done(50), other.queued(20)), NOW)
    store.apply(batch(2, lifecycle.queued(10, corr="c")), NOW)
    assert [job.job_id for job in page(store, JobFilter("t"), NOW, 10)] == [other.job_id, lifecycle.job_id]
    assert [job.job_id for job in page(store, JobFilter("t", correlation_id="c"), NOW, 10)] == [lifecycle.job_id]


_WRITES = """
import sys
from pathlib import Path
from postroad.jobs.store import make_store
from tests.jobs.lifecycles import T0, Lifecycle, batch
store = make_store(Path(sys.argv[1]), "s")
for number in range(1, 10**6):
    life = Lifecycle(job_id=str(number))
    store.apply(batch(number, life.queued(number), life.leased(number), life.done(number)), T0)
"""


@pytest.mark.engine
def test_a_process_that_is_killed_in_the_middle_of_a_batch_leaves_whole_batches(tmp_path: Path) -> None:
    path = tmp_path / "1.sqlite"
    writer = subprocess.Popen([sys.executable, "-c", _WRITES, str(path)], cwd=Path(__file__).parent.parent.parent)
    give_up_at = time.monotonic() + 20
    written = path.with_name("1.sqlite-wal")
    while not written.exists() or written.stat().st_size < 1_000_000:
        assert time.monotonic() < give_up_at and writer.poll() is None
        time.sleep(0.005)
    writer.kill()
    writer.wait()
    found = open_store(path, "s")
    jobs = page(found, JobFilter("t"), NOW, 10**6)
    assert found.position == len(jobs) > 10
    assert {status_at(job, NOW) for job in jobs} == {JobStatus.DONE}
    assert found.connection.execute("SELECT count(*) FROM events").fetchone() == (3 * len(jobs),)
    lifecycle = Lifecycle()
    found.apply(batch(found.position + 1, lifecycle.queued()), NOW)
    assert status_of(found, lifecycle) == "queued"
    found.close()


# Time and purges


def sweep(store: Store, now: int, limit: int = 2) -> int:
    bites = 1
    while store.sweep(now, limit) == limit:
        bites += 1
    return bites


def stored(store: Store) -> list[str]:
    return [status for [status] in store.connection.execute("SELECT status FROM jobs ORDER BY number")]


def test_the_sweep_keeps_rows_up_with_time(store: Store) -> None:
    delayed, leased, expiring, plain = Lifecycle(), Lifecycle(), Lifecycle(), Lifecycle()
    sent: list[JobEvent] = [
        delayed.queued(delay_ms=5000),
        leased.queued(),
        leased.leased(5, until=6000),
        expiring.queued(expires_at=7000),
        plain.queued(),
    ]
    store.apply(batch(1, *sent), NOW)
    assert stored(store) == ["delayed", "leased", "queued", "queued"]
    assert sweep(store, NOW) == 1 and stored(store) == ["delayed", "leased", "queued", "queued"]
    sweep(store, T0 + 6500)
    assert stored(store) == ["queued", "queued", "queued", "queued"]
    sweep(store, T0 + 7000)
    assert stored(store) == ["queued", "queued", "expired", "queued"]
    assert store.sweep(T0 + 10**9, 10) == 0


def test_a_purge_shows_at_once_and_is_swept_in_bites(store: Store) -> None:
    old, others = [Lifecycle() for _ in range(7)], [Lifecycle(queue="other"), Lifecycle("u")]
    done, young, back = Lifecycle(), Lifecycle(), Lifecycle()
    sent = [*(lifecycle.queued() for lifecycle in (*old, *others)), done.queued(), done.done(5), young.queued(200)]
    store.apply(batch(1, *sent, back.dead(50), back.redriven(150)), NOW)
    store.apply(batch(2, purged(100)), NOW)
    expected = {"expired": 7, "queued": 3 - 1, "done": 1}

    def counts() -> dict[str, int]:
        found = {name: len(page(store, JobFilter("t", queue="q", status=JobStatus(name)), NOW, 100)) for name in expected}
        assert len(page(store, JobFilter("t", status=JobStatus.EXPIRED), NOW, 100)) == 7
        return found

    assert counts() == expected and status_of(store, old[0]) == "expired"
    assert stored(store).count("expired") == 0
    again = reopened(store)
    assert len(again.pending) == 1
    assert sweep(again, NOW, 2) > 3
    assert stored(again).count("expired") == 7 and again.pending == []
    assert status_of(again, others[0]) == "queued"
    assert reopened(again).pending == []


def test_a_job_that_comes_to_light_after_the_purge_is_purged_too(store: Store) -> None:
    lifecycle, late = Lifecycle(), Lifecycle()
    store.apply(batch(1, lifecycle.queued(), purged(100, is_deleted=True)), NOW)
    sweep(store, NOW)
    store.apply(batch(2, late.queued(50)), NOW)
    again = reopened(store)
    again.apply(batch(3, late.leased(60, until=10**6)), NOW)
    job = find(again, "t", late.job_id)
    assert job is not None and job.last_error == "the queue was deleted"
    assert (status_of(again, lifecycle), status_of(again, late)) == ("expired", "expired")
    assert stored(again) == ["expired", "expired"]  # there is no sweep that would do it later


def test_what_ended_long_ago_is_forgotten_in_bites(store: Store) -> None:
    old, dead, open_still, young = [Lifecycle() for _ in range(5)], Lifecycle(), Lifecycle(), Lifecycle()
    sent = [*(lifecycle.done(5) for lifecycle in old), dead.dead(6), open_still.queued(), young.queued(5000), young.done(6000)]
    store.apply(batch(1, *sent, purged(1)), T0 + 6000)
    sweep(store, T0 + 6000)
    after: int | None = 0
    count = bites = 0
    while after is not None:
        some, after = store.prune(T0 + 9000, T0 + 5000, after, 3)
        count, bites = count + some, bites + 1
    assert (count, bites > 1) == (6 + 1, True)  # what was purged has ended, too
    assert [status_of(store, lifecycle) for lifecycle in (old[0], dead, open_still, young)] == [None, None, None, "done"]
    assert store.connection.execute("SELECT count(*) FROM events").fetchone() == (2,)


def test_a_number_is_not_given_out_twice(store: Store) -> None:
    first, second = Lifecycle(), Lifecycle()
    store.apply(batch(1, first.queued(), first.done(5)), NOW)
    store.prune(T0 + 9000, T0 + 8000, 0, 10)
    again = reopened(store)
    again.apply(batch(2, second.queued()), NOW)
    assert again.connection.execute("SELECT number FROM jobs").fetchone() == (2,)


# Files


def test_a_file_of_another_schema_stream_or_kind_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "1.sqlite"
    make_store(path, "s").close()
    with pytest.raises(InvalidStoreFile, match="another stream"):
        open_store(path, "other")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(InvalidStoreFile, match="schema 99"):
        open_store(path, "s")
    path.write_bytes(b"this is not a database, and long enough to be looked at" * 100)
    with pytest.raises(InvalidStoreFile):
        open_store(path, "s")
    make_store(tmp_path / "2.sqlite", "s", is_complete=False).close()
    with pytest.raises(InvalidStoreFile, match="incomplete"):
        open_store(tmp_path / "2.sqlite", "s")


def test_the_newest_file_comes_first_and_no_name_comes_twice(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.sqlite" for name in (9, 10, 11)]
    for path in paths:
        make_store(path, "s").close()
    assert files_in(tmp_path) == paths[::-1]
    assert fresh_path(tmp_path, 5).name == "12.sqlite"
    assert fresh_path(tmp_path, 500).name == "500.sqlite"
    for path in paths:
        remove(path)
    assert list(tmp_path.iterdir()) == []


def test_only_its_owner_may_read_it(store: Store) -> None:
    assert store.path.stat().st_mode & 0o077 == 0


def test_a_gap_in_the_events_is_remembered(tmp_path: Path) -> None:
    path = tmp_path / "1.sqlite"
    store = make_store(path, "s")
    apply_frames(store, [frame(1, Lifecycle().queued()), frame(2, Lifecycle().queued())], T0)
    assert store.complete_since == 0
    apply_frames(store, [frame(3, Lifecycle().queued())], T0)
    assert store.complete_since == 0
    apply_frames(store, [frame(7, Lifecycle().queued())], T0)
    assert store.complete_since == T0
    store.close()
    again = open_store(path, "s")
    assert (again.complete_since, again.position) == (T0, 7)
    again.close()


def test_a_file_of_before_there_were_gaps_has_none(tmp_path: Path) -> None:
    path = tmp_path / "1.sqlite"
    store = make_store(path, "s")
    store.connection.execute("DROP TABLE gaps")
    store.close()
    again = open_store(path, "s")
    assert again.complete_since == 0
    again.close()
