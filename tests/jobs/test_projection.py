"""The projection on a real engine: it follows, survives, and is made anew."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.management import StreamState, delete_stream, purge_stream, stream_info
from postroad.jobs import metrics, stream_follower
from postroad.jobs import projection as projection_module
from postroad.jobs.projection import Projection
from postroad.jobs.queries import JobFilter, find, page
from postroad.jobs.rules import status_at
from postroad.jobs.store import Store, files_in
from postroad.jobs.stream_follower import JobsStreamInfo, jobs_stream_info
from postroad.kernel.clock import now_ms
from postroad.kernel.errors import EngineUnavailable, PreconditionFailed
from postroad.kernel.ids import new_id
from postroad.telemetry.frames import frame_subject
from postroad.telemetry.outbox import Outbox
from tests.jetstream.streams import committer_of
from tests.jobs.conftest import Background, make_streams, outbox_on, send
from tests.jobs.lifecycles import Lifecycle, purged
from tests.servers import OpenConnection, Server, restart
from tests.waiting import eventually

NewLifecycle = Callable[..., Lifecycle]
Following = Callable[..., Projection]


async def caught_up(projection: Projection, connection: Connection, tenant: str) -> None:
    last = await stream_reader.last(connection, "JOBS", frame_subject("JOBS", tenant))
    assert last is not None
    assert await projection.wait_for(last.sequence, 10)


async def status_of(projection: Projection, lifecycle: Lifecycle) -> str | None:
    job = await projection.read(find, lifecycle.tenant, lifecycle.job_id)
    return status_at(job, now_ms()).value if job else None


async def test_it_reads_what_is_there_and_follows_what_comes(
    connection: Connection, outbox: Outbox, lifecycle: NewLifecycle, following: Following
) -> None:
    before, after = lifecycle(), lifecycle()
    await send(outbox, before.queued(), before.leased(5), before.done(9))
    projection = following()
    await caught_up(projection, connection, before.tenant)
    assert await status_of(projection, before) == "done"
    await send(outbox, after.queued())
    await caught_up(projection, connection, before.tenant)
    assert await status_of(projection, after) == "queued"


async def test_what_time_brings_is_swept(
    connection: Connection, outbox: Outbox, lifecycle: NewLifecycle, following: Following
) -> None:
    leased, purged_one = lifecycle(), lifecycle("other")
    projection = following()
    await send(outbox, leased.queued(), leased.leased(0, until=300), purged_one.queued())
    await send(outbox, purged(50, leased.tenant, "other", t0=now_ms()))
    await caught_up(projection, connection, leased.tenant)

    async def rows() -> bool:
        def statuses(store: Store) -> list[str]:
            text = "SELECT status FROM jobs WHERE job IN (?, ?) ORDER BY number"
            return [one for [one] in store.connection.execute(text, (leased.job_id, purged_one.job_id))]

        return await projection.read(statuses) == ["queued", "expired"]

    await eventually(rows)


async def test_an_existing_file_is_continued(
    connection: Connection, outbox: Outbox, lifecycle: NewLifecycle, following: Following, tmp_path: Path, background: Background
) -> None:
    first = lifecycle()
    await send(outbox, first.queued())
    projection = Projection(connection, now_ms, tmp_path / "jobs", 30)
    running = background(projection.run())
    await caught_up(projection, connection, first.tenant)
    position, [file] = projection.position, files_in(tmp_path / "jobs")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    with pytest.raises(EngineUnavailable):
        await projection.read(find, first.tenant, first.job_id)
    await send(outbox, first.done(5))
    again = following()
    await eventually(lambda: again.position >= position)
    await caught_up(again, connection, first.tenant)
    assert (await status_of(again, first), files_in(tmp_path / "jobs")) == ("done", [file])


async def test_many_events_under_cancellations_in_the_middle_are_all_there_once(
    connection: Connection, outbox: Outbox, lifecycle: NewLifecycle, tmp_path: Path, following: Following
) -> None:
    """Stopped again and again while batches are being written; each start goes on from the file."""
    lifecycles = [lifecycle() for _ in range(3000)]
    for start in range(0, len(lifecycles), 100):
        some = lifecycles[start : start + 100]
        await send(outbox, *(one.queued() for one in some), *(one.leased(1) for one in some), *(one.done(2) for one in some))
    for pause in (0.005, 0.01, 0.02, 0.001, 0.05, 0.03, 0.08, 0.015, 0.04):
        projection = Projection(connection, now_ms, tmp_path / "jobs", 30)
        running = asyncio.create_task(projection.run())
        await asyncio.sleep(pause)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    projection = following()
    await caught_up(projection, connection, lifecycles[0].tenant)
    found = await projection.read(page, JobFilter(lifecycles[0].tenant), now_ms(), 5000)
    assert sorted(job.job_id for job in found) == sorted(one.job_id for one in lifecycles)
    assert {job.step.status for job in found} == {"done"}

    def count_events(store: Store) -> int:
        text = "SELECT count(*) FROM events JOIN jobs ON jobs.number = events.job WHERE jobs.tenant = ?"
        return int(store.connection.execute(text, (store.tenant_number(lifecycles[0].tenant),)).fetchone()[0])

    assert await projection.read(count_events) == 9000


async def test_two_that_write_to_one_file_do_no_harm(
    connection: Connection, outbox: Outbox, lifecycle: NewLifecycle, following: Following, tmp_path: Path
) -> None:
    first = following("shared")
    await eventually(lambda: bool(files_in(tmp_path / "shared")))
    await asyncio.sleep(0.1)
    second = following("shared")
    lifecycles = [lifecycle() for _ in range(50)]
    for one in lifecycles:
        await send(outbox, one.queued(), one.done(5))
    for projection in (first, second):
        await caught_up(projection, connection, lifecycles[0].tenant)
        found = await projection.read(page, JobFilter(lifecycles[0].tenant), now_ms(), 100)
        assert len(found) == 50
    assert len(files_in(tmp_path / "shared")) == 1


async def test_what_cannot_be_read_is_skipped_and_counted(
    connection: Connection, outbox: Outbox, lifecycle: NewLifecycle, following: Following, name: str
) -> None:
    good = lifecycle()
    before = metrics.unreadable._value.get()
    jobs = committer_of(connection, "JOBS")
    await jobs.append(PendingMessage(frame_subject("JOBS", good.tenant), b"\x00nonsense", new_id()))
    await jobs.append(
        PendingMessage(frame_subject("JOBS", good.tenant), b'{"event":"job.done"}', new_id(), "Postroad-Frame: 1\r\n")
    )
    await send(outbox, good.queued())
    projection = following()
    await caught_up(projection, connection, good.tenant)
    assert await status_of(projection, good) == "queued"
    assert metrics.unreadable._value.get() >= before + 2


async def test_a_broken_file_is_made_anew(
    connection: Connection, outbox: Outbox, lifecycle: NewLifecycle, following: Following, tmp_path: Path
) -> None:
    one = lifecycle()
    await send(outbox, one.queued())
    folder = tmp_path / "jobs"
    folder.mkdir()
    (folder / "5.sqlite").write_bytes(b"not a database" * 1000)
    projection = following()
    await caught_up(projection, connection, one.tenant)
    assert await status_of(projection, one) == "queued"
    assert [path.name == "5.sqlite" for path in files_in(folder)] == [False]


async def test_a_file_that_breaks_while_it_is_used_is_made_anew(
    connection: Connection, outbox: Outbox, lifecycle: NewLifecycle, following: Following, tmp_path: Path
) -> None:
    one = lifecycle()
    await send(outbox, one.queued())
    projection = following()
    await caught_up(projection, connection, one.tenant)

    def breaks(store: Store) -> None:
        store.connection.execute("DROP TABLE about")

    [file] = files_in(tmp_path / "jobs")
    await projection.read(breaks)
    await send(outbox, one.done(5))
    await eventually(lambda: file not in files_in(tmp_path / "jobs"))
    await caught_up(projection, connection, one.tenant)
    assert await status_of(projection, one) == "done"


async def test_the_old_file_answers_while_a_new_one_is_made(
    connection: Connection, outbox: Outbox, lifecycle: NewLifecycle, following: Following, tmp_path: Path
) -> None:
    lifecycles = [lifecycle() for _ in range(2000)]
    for start in range(0, len(lifecycles), 100):
        await send(outbox, *(one.queued() for one in lifecycles[start : start + 100]))
    projection = following()
    await caught_up(projection, connection, lifecycles[0].tenant)
    [old] = files_in(tmp_path / "jobs")

    def spoils(store: Store) -> None:  # so that old and new can be told apart
        store.connection.execute("DELETE FROM jobs WHERE job = ?", (lifecycles[7].job_id,))

    await projection.read(spoils)
    await projection.rebuild()
    with pytest.raises(PreconditionFailed):
        await projection.rebuild()
    progress = await projection.progress()
    assert progress.rebuilt is not None and progress.target >= progress.position
    reads = 0
    while (await projection.progress()).rebuilt is not None:
        assert await status_of(projection, lifecycles[3]) == "queued"
        reads += 1
        await send(outbox, lifecycles[5].leased(reads, until=10**7))
    assert reads > 1
    await caught_up(projection, connection, lifecycles[0].tenant)
    assert [await status_of(projection, lifecycles[index]) for index in (3, 5, 7)] == ["queued", "leased", "queued"]
    await eventually(lambda: files_in(tmp_path / "jobs") != [old] and len(files_in(tmp_path / "jobs")) == 1)
    [new] = files_in(tmp_path / "jobs")
    another = following()  # as after a restart: the new file is the one that counts
    await caught_up(another, connection, lifecycles[0].tenant)
    assert files_in(tmp_path / "jobs") == [new]


async def test_a_rebuild_that_was_interrupted_leaves_the_old_file(
    connection: Connection, outbox: Outbox, lifecycle: NewLifecycle, following: Following, tmp_path: Path, background: Background
) -> None:
    one = lifecycle()
    await send(outbox, one.queued())
    projection = Projection(connection, now_ms, tmp_path / "jobs", 30)
    running = background(projection.run())
    await caught_up(projection, connection, one.tenant)
    [old] = files_in(tmp_path / "jobs")
    await projection.rebuild()
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    again = following()
    await caught_up(again, connection, one.tenant)
    assert old in files_in(tmp_path / "jobs") and len(files_in(tmp_path / "jobs")) == 1


@pytest.mark.parametrize("frames", [1, 20])  # fewer than the old stream had, and more
async def test_a_stream_that_was_made_anew_leads_to_a_new_file(
    own_server: Server, open_connection: OpenConnection, tmp_path: Path, background: Background, frames: int
) -> None:
    connection = await open_connection(own_server.url)
    await make_streams(connection)
    outbox = outbox_on(connection)
    old, new = Lifecycle("t", t0=now_ms()), Lifecycle("t", t0=now_ms())
    for at in range(5):
        await send(outbox, old.queued(), old.leased(at, at + 1))
    projection = Projection(connection, now_ms, tmp_path / "jobs", 30, poll_seconds=0.1)
    background(projection.run())
    await caught_up(projection, connection, "t")
    await delete_stream(connection, "JOBS")
    await make_streams(connection)
    for _ in range(frames):
        await send(outbox, new.queued())

    async def is_new() -> bool:
        try:
            return await status_of(projection, new) == "queued" and await status_of(projection, old) is None
        except EngineUnavailable:
            return False

    await eventually(is_new)
    await caught_up(projection, connection, "t")
    assert projection.position == (await jobs_stream_info(connection)).state.last_seq == frames
    assert len(files_in(tmp_path / "jobs")) == 1


@pytest.mark.parametrize("lasts", [False, True])
async def test_on_a_cluster_an_old_state_of_the_stream_is_a_loss_only_if_it_lasts(
    own_server: Server,
    open_connection: OpenConnection,
    tmp_path: Path,
    background: Background,
    monkeypatch: pytest.MonkeyPatch,
    lasts: bool,
) -> None:
    """A leader that has lost its majority answers with what it knew last. Frames may be gone from the stream, so a new file would
    have fewer jobs."""
    if lasts:
        monkeypatch.setattr(projection_module, "_BEHIND_SECONDS", 0.3)
    connection = await open_connection(ConnectionSettings((own_server.url,), name="tests", has_replicas=True))
    await make_streams(connection)
    one = Lifecycle("t", t0=now_ms())
    for at in range(5):
        await send(outbox_on(connection), one.queued(), one.leased(at, at + 1))
    projection = Projection(connection, now_ms, tmp_path / "jobs", 30, poll_seconds=0.02)
    background(projection.run())
    await caught_up(projection, connection, "t")
    [file] = files_in(tmp_path / "jobs")
    await purge_stream(connection, "JOBS")
    asked = []

    async def old_state(asked_connection: Connection) -> JobsStreamInfo:
        asked.append(1)
        found = await jobs_stream_info(asked_connection)
        return JobsStreamInfo(found.created, StreamState(messages=2, bytes=1, first_seq=1, last_seq=2))

    monkeypatch.setattr(projection_module, "jobs_stream_info", old_state)
    if lasts:
        await eventually(lambda: files_in(tmp_path / "jobs") not in ([file], []))
        return
    await eventually(lambda: len(asked) > 10)
    monkeypatch.setattr(projection_module, "jobs_stream_info", jobs_stream_info)
    assert files_in(tmp_path / "jobs") == [file]
    assert await status_of(projection, one) is not None


async def test_it_survives_the_engines_death(
    own_server: Server, open_connection: OpenConnection, tmp_path: Path, background: Background
) -> None:
    connection = await open_connection(own_server.url)
    await make_streams(connection)
    one, two = Lifecycle("t", t0=now_ms()), Lifecycle("t", t0=now_ms())
    await send(outbox_on(connection), one.queued())
    projection = Projection(connection, now_ms, tmp_path / "jobs", 30, poll_seconds=0.1)
    background(projection.run())
    await caught_up(projection, connection, "t")
    await restart(own_server, connection)
    await send(outbox_on(connection), two.queued())
    await caught_up(projection, connection, "t")
    assert [await status_of(projection, lifecycle) for lifecycle in (one, two)] == ["queued", "queued"]
    assert (await stream_info(connection, "JOBS")) is not None


async def test_while_nobody_asks_frames_wait_for_company_and_who_asks_is_not_kept_waiting(
    connection: Connection, outbox: Outbox, lifecycle: NewLifecycle, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_follower, "_PAUSE_SECONDS", 60)
    projection, jobs = following(), [lifecycle() for _ in range(3)]
    await send(outbox, jobs[0].queued())
    await caught_up(projection, connection, jobs[0].tenant)
    for number in (1, 2):
        await send(outbox, jobs[number].queued())
        assert await status_of(projection, jobs[number]) is None
        await caught_up(projection, connection, jobs[0].tenant)
        assert await status_of(projection, jobs[number]) == "queued"


async def test_there_is_no_rest_while_there_is_much_to_catch_up_with(
    connection: Connection, outbox: Outbox, lifecycle: NewLifecycle, following: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_follower, "_PAUSE_SECONDS", 60)
    monkeypatch.setattr(stream_follower, "_FRAMES_BEHIND", 64)
    jobs = [lifecycle() for _ in range(600)]
    for job in jobs:
        await send(outbox, job.queued())
    last = await stream_reader.last(connection, "JOBS", frame_subject("JOBS", jobs[0].tenant))
    assert last is not None
    projection = following()
    await eventually(lambda: projection.position >= last.sequence - stream_follower._FRAMES_BEHIND - 1)


async def test_waiting_has_an_end(connection: Connection, outbox: Outbox, following: Following) -> None:
    projection = following()
    await eventually(lambda: projection.position > 0)
    assert not await projection.wait_for(10**15, 0.05)
    assert projection._waiters == []
