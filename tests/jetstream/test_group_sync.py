"""With group sync nothing is answered, and nothing is shown, before it is durable."""

import asyncio
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from tests.jetstream.sync_disk import Disk, disk
from tests.servers import OpenConnection, Server
from tests.telemetry.samples import event
from tests.waiting import eventually

from postroad.jetstream import kernel_aio, stream_reader
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import CommitPolicy, Committer, Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.deliveries import ACK, nak
from postroad.jetstream.management import StreamSpec, delete_message, delete_stream, ensure_stream, pause_consumer, purge_stream
from postroad.jetstream.pull_consumer import PullConsumer, ensure_work_consumer
from postroad.jetstream.store_sync import StoreSync
from postroad.jetstream.submitted_write import Outcome
from postroad.jetstream.tail import Source, follow, republish
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.clock import now_ms
from postroad.kernel.errors import Conflict, EngineUnavailable
from postroad.kernel.futures import resolve
from postroad.runtime.embedded_server import EmbeddedServerSettings
from postroad.telemetry.outbox import Outbox

__all__ = ["disk"]

pytestmark = pytest.mark.skipif(not kernel_aio.is_supported(), reason="this kernel does not execute asynchronous syncs")


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """The embedded server, which does not sync its writes itself."""
    server = Server(EmbeddedServerSettings(tmp_path / "own", sync="group"))
    try:
        yield server.start()
    finally:
        server.stop()


@pytest.fixture
async def synced(own_server: Server, open_connection: OpenConnection, disk: Disk) -> AsyncIterator[Connection]:
    """A connection with a stream and a consumer, whose process syncs the store."""
    connection = await open_connection(own_server.url)
    connection.store_sync = store_sync = StoreSync(own_server.store)
    options = {"retention": "workqueue", "allow_atomic": True, "republish": republish("q.>")}
    await ensure_stream(connection, StreamSpec("Q", ("q.>",), options))
    await ensure_work_consumer(connection, "Q", "workers", "q.>")
    yield connection
    store_sync.close()


@pytest.fixture
def committers(synced: Connection) -> Committers:
    return Committers(synced, CommitPolicy(), WriteBufferLimit(2**20))


@pytest.fixture
def committer(committers: Committers) -> Committer:
    return committers.of("Q")


def message(number: int) -> PendingMessage:
    return PendingMessage("q.a", b"%d" % number, f"id-{number}")


async def store_unsynced(connection: Connection, own_server: Server, open_connection: OpenConnection, number: int) -> None:
    """Store a message as another process does that has not synced it yet."""
    other = await open_connection(own_server.url)
    await Committers(other, CommitPolicy(), WriteBufferLimit(2**20)).of("Q").append(message(number))


async def assert_waits(disk: Disk, call: Callable[[], Awaitable[object]]) -> object:
    """The call ends with the sync that it has asked for, and not before."""
    disk.is_holding = True
    before = len(disk.syncs)
    calling = asyncio.ensure_future(call())
    await eventually(lambda: disk.held or calling.done())
    assert not calling.done()
    assert len(disk.syncs) == before + 1
    disk.release()
    return await calling


async def test_a_write_is_acknowledged_after_the_sync(committer: Committer, disk: Disk) -> None:
    await assert_waits(disk, lambda: committer.append(message(1)))


async def test_writes_that_wait_share_a_sync(committer: Committer, disk: Disk) -> None:
    await committer.append(message(0))
    before = len(disk.syncs)

    await asyncio.gather(*(committer.append(message(number)) for number in range(1, 100)))

    assert len(disk.syncs) - before < 50


async def test_an_atomic_write_is_acknowledged_after_the_sync(committer: Committer, disk: Disk) -> None:
    acks = await assert_waits(disk, lambda: committer.append_together([message(1), message(2)]))

    assert [ack.sequence for ack in acks] == [1, 2]  # type: ignore[attr-defined]


async def test_stored_writes_of_a_batch_with_a_conflict_are_done_after_the_sync(
    committers: Committers, committer: Committer, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that waits for the sync is not judged again, by what it has stored itself."""
    await committer.append(PendingMessage("q.3", b"", "first"))
    headers = "Nats-Expected-Last-Subject-Sequence: 0\r\n"
    writes = [PendingMessage(f"q.{number}", b"", f"id-{number}", headers, is_conditional=True) for number in range(30)]
    really, reads = stream_reader.last_sequences_of, list[int]()

    async def spy(connection: Connection, stream: str, subjects: Sequence[str]) -> list[tuple[str, int]]:
        reads.append(len(subjects))
        return await really(connection, stream, subjects)

    monkeypatch.setattr(stream_reader, "last_sequences_of", spy)
    outcomes: list[object] = []

    async def write() -> None:
        outcomes.extend(await asyncio.gather(*(committer.append(one) for one in writes), return_exceptions=True))

    await assert_waits(disk, write)

    assert [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Exception)] == [3]
    assert isinstance(outcomes[3], Conflict)
    assert reads == [30]
    assert committers.buffer_limit.bytes == 0


async def test_a_key_is_written_after_the_sync(synced: Connection, committers: Committers, disk: Disk) -> None:
    bucket = Bucket(synced, "settings", committers)
    await bucket.ensure()

    await assert_waits(disk, lambda: bucket.put("a", b"1"))


async def test_an_acknowledged_message_is_removed_after_the_sync(synced: Connection, committer: Committer, disk: Disk) -> None:
    await committer.append(message(1))
    consumer = PullConsumer(synced, "Q", "workers")
    [delivery] = await consumer.pull(1, 1)

    await assert_waits(disk, lambda: consumer.acknowledge([(delivery.ref, ACK)]))


async def test_a_nak_needs_no_sync(synced: Connection, committer: Committer, disk: Disk) -> None:
    await committer.append(message(1))
    consumer = PullConsumer(synced, "Q", "workers")
    [delivery] = await consumer.pull(1, 1)
    before = len(disk.syncs)

    await consumer.acknowledge([(delivery.ref, nak(1000))])

    assert len(disk.syncs) == before


async def test_removals_wait_for_the_sync(synced: Connection, committer: Committer, disk: Disk) -> None:
    for number in range(3):
        await committer.append(message(number))

    await assert_waits(disk, lambda: delete_message(synced, "Q", 1, timeout=5))
    await assert_waits(disk, lambda: purge_stream(synced, "Q", "q.a", before=3))


@pytest.mark.parametrize(
    "change",
    [
        lambda connection: ensure_stream(connection, StreamSpec("Q2", ("q2.>",))),
        lambda connection: ensure_work_consumer(connection, "Q", "workers", "q.b"),
        lambda connection: pause_consumer(connection, "Q", "workers", is_paused=True),
        lambda connection: purge_stream(connection, "Q"),
        lambda connection: delete_stream(connection, "Q"),
    ],
    ids=["stream", "consumer", "pause", "purge", "delete"],
)
async def test_changes_of_streams_and_consumers_sync_the_filesystem(
    synced: Connection, disk: Disk, change: Callable[[Connection], Awaitable[object]]
) -> None:
    before = disk.filesystem_syncs

    await change(synced)

    assert disk.filesystem_syncs == before + 1


async def test_readers_wait_for_entries_that_are_not_durable(
    synced: Connection, own_server: Server, open_connection: OpenConnection, disk: Disk
) -> None:
    async def read() -> object:
        return (await stream_reader.read(synced, "Q", "q.a")).entries

    await synced.store_sync.wait("Q")
    reads: list[Callable[[], Awaitable[object]]] = [
        read,
        lambda: stream_reader.last(synced, "Q", "q.a"),
        lambda: stream_reader.newest(synced, "Q", ["q.a"]),
    ]
    for number, reading in enumerate(reads):
        await store_unsynced(synced, own_server, open_connection, number)
        assert await assert_waits(disk, reading)
        syncs = len(disk.syncs)
        assert await reading()  # durable by now
        assert len(disk.syncs) == syncs


async def test_a_pull_waits_for_messages_that_are_not_durable(
    synced: Connection, own_server: Server, open_connection: OpenConnection, disk: Disk
) -> None:
    await synced.store_sync.wait("Q")
    await store_unsynced(synced, own_server, open_connection, 1)
    consumer = PullConsumer(synced, "Q", "workers")

    deliveries = await assert_waits(disk, lambda: consumer.pull(1, 1))

    assert len(deliveries) == 1  # type: ignore[arg-type]


async def test_a_cancelled_pull_releases_messages_that_are_not_durable(
    synced: Connection, own_server: Server, open_connection: OpenConnection, disk: Disk
) -> None:
    await synced.store_sync.wait("Q")
    await store_unsynced(synced, own_server, open_connection, 1)
    consumer = PullConsumer(synced, "Q", "workers")
    disk.is_holding = True
    pulling = asyncio.ensure_future(consumer.pull(1, 1))
    await eventually(lambda: disk.held)
    pulling.cancel()
    await asyncio.gather(pulling, return_exceptions=True)
    disk.release()

    assert await consumer.pull(1, 5)


async def test_a_live_reader_sees_a_message_after_the_sync(
    synced: Connection, own_server: Server, open_connection: OpenConnection, disk: Disk
) -> None:
    await synced.store_sync.wait("Q")
    entries = follow(synced, Source("Q", "q.>"), 0)
    try:
        await store_unsynced(synced, own_server, open_connection, 1)
        assert (await anext(entries)).payload == b"1"
        disk.is_holding = True
        await store_unsynced(synced, own_server, open_connection, 2)
        coming = asyncio.ensure_future(anext(entries))
        await eventually(lambda: disk.held)
        assert not coming.done()
        disk.release()
        assert (await coming).payload == b"2"
    finally:
        await entries.aclose()


async def test_a_write_fails_if_its_sync_does(committer: Committer, disk: Disk) -> None:
    disk.error = 5

    with pytest.raises(EngineUnavailable):
        await committer.append(message(1))
    with pytest.raises(EngineUnavailable):
        await committer.append(message(2))


# A message and the event that reports it


@pytest.fixture
async def outbox(synced: Connection, committers: Committers) -> Outbox:
    await ensure_stream(synced, StreamSpec("TELEMETRY", ("telemetry.>",)))
    return Outbox(committers, now_ms)


async def publish(committer: Committer, outbox: Outbox, number: int) -> None:
    """Store a message, then its event, and return when both are durable. Raises EngineUnavailable."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_stored(outcome: Outcome) -> None:
        assert not isinstance(outcome, Exception)
        outbox.commit_callback(None, [event("a")], partial(resolve, done), ("Q", outcome[-1].sequence))

    committer.submit_callback([message(number)], on_stored, is_synced=False)
    await done


async def test_a_message_and_its_event_share_a_sync(committer: Committer, outbox: Outbox, disk: Disk) -> None:
    await publish(committer, outbox, 1)
    await assert_waits(disk, lambda: publish(committer, outbox, 2))
    assert [name for name in disk.syncs[-1] if name.endswith(".blk")] == ["1.blk", "1.blk"]  # of both streams


async def test_a_message_is_synced_although_its_event_is_not_stored(
    committer: Committer, outbox: Outbox, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Outbox, "is_full", True)
    with pytest.raises(EngineUnavailable, match="too many events"):
        await assert_waits(disk, lambda: publish(committer, outbox, 1))


async def test_a_publish_fails_if_the_shared_sync_does(committer: Committer, outbox: Outbox, disk: Disk) -> None:
    disk.error = errno.EIO
    with pytest.raises(EngineUnavailable, match="may or may not be durable"):
        await publish(committer, outbox, 1)


async def test_a_frame_does_not_wait_for_the_sync_of_the_one_before(committer: Committer, outbox: Outbox, disk: Disk) -> None:
    await publish(committer, outbox, 0)
    disk.is_holding = True
    first = asyncio.ensure_future(publish(committer, outbox, 1))
    await eventually(lambda: disk.held)
    second = asyncio.ensure_future(publish(committer, outbox, 2))
    await eventually(lambda: not outbox._buffers and outbox._syncing == 2)
    assert not first.done() and not second.done()
    disk.release()
    await asyncio.gather(first, second)
    await outbox.drain()
