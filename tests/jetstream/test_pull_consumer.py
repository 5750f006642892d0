import asyncio
import time
from collections import Counter
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.jetstream.streams import committer_of, entries_of, make_stream, new_message
from tests.servers import OpenConnection, Server, TcpProxy, restart
from tests.waiting import eventually

from postroad.jetstream import pull_consumer, stream_reader
from postroad.jetstream.commit import Committer
from postroad.jetstream.connection import Connection
from postroad.jetstream.deliveries import ACK, Delivery, DeliveryRef, nak
from postroad.jetstream.management import consumer_state
from postroad.jetstream.pull_consumer import PullConsumer, ensure_work_consumer
from postroad.kernel.errors import Draining, EngineUnavailable, Maintenance
from postroad.kernel.futures import resolve

LONG_MS = 60_000


class _Queue:
    """A process's view of a queue."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection, self.name = connection, name
        self.work = PullConsumer(connection, name, "work")
        self._committer: Committer = committer_of(connection, name)

    async def publish(self, *payloads: bytes) -> None:
        await asyncio.gather(*[self._committer.append(new_message(f"{self.name}.ready", payload)) for payload in payloads])

    async def pull(self, want: int = 10, wait_seconds: float = 0, lease_ms: int = LONG_MS) -> list[Delivery]:
        """Pull and lease messages."""
        async with asyncio.timeout(wait_seconds + 10):
            found = await self.work.pull(want, wait_seconds)
        await self.work.acknowledge([(one.ref, nak(lease_ms)) for one in found])
        return found

    async def take(self, count: int, lease_ms: int = LONG_MS) -> list[Delivery]:
        """Pull until there are `count` messages. (A new message may reach the consumer a moment after it was acknowledged.)"""
        found: list[Delivery] = []
        while len(found) < count:
            more = await self.pull(count - len(found), 5, lease_ms)
            assert more, f"received only {len(found)} of {count}"
            found += more
        return found

    async def ack(self, *found: Delivery) -> None:
        await self.work.acknowledge([(one.ref, ACK) for one in found])

    async def ack_by_callback(self, *found: Delivery) -> None:
        acknowledged: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.work.acknowledge_callback([(one.ref, ACK) for one in found], partial(resolve, acknowledged))
        await acknowledged

    async def left(self) -> list[bytes]:
        return [entry.payload for entry in await entries_of(self.connection, self.name)]


async def _make_queue(connection: Connection, name: str) -> _Queue:
    await make_stream(connection, name, retention="workqueue")
    await ensure_work_consumer(connection, name, "work", f"{name}.ready")
    return _Queue(connection, name)


@pytest.fixture
async def queue(connection: Connection, name: str) -> _Queue:
    return await _make_queue(connection, name)


def _ignore(message: object) -> None:
    """A subscriber without interest in what it receives."""


def _payloads(found: list[Delivery]) -> list[bytes]:
    return [one.payload for one in found]


# Pulling


async def test_ready_messages_are_pulled_oldest_first(queue: _Queue) -> None:
    for payload in (b"1", b"2", b"3"):
        await queue.publish(payload)
    assert _payloads(await queue.take(2)) == [b"1", b"2"]
    assert _payloads(await queue.take(1)) == [b"3"]
    assert await queue.pull() == []


async def test_a_delivery_is_parsed_from_its_ack_subject(queue: _Queue) -> None:
    before = time.time_ns()
    await queue.publish(b"1")
    await queue.publish(b"2")
    found = await queue.take(2)
    assert [one.ref.stream_sequence for one in found] == [1, 2]
    assert [one.ref.attempt for one in found] == [1, 1]
    assert all(before <= one.ref.stored_at_ns <= time.time_ns() for one in found)


async def test_an_empty_queue_returns_no_messages_after_the_wait(queue: _Queue) -> None:
    for wait_seconds in (0.0, 0.3):
        started = time.monotonic()
        assert await queue.pull(10, wait_seconds) == []
        assert time.monotonic() - started >= wait_seconds


async def test_a_waiting_pull_receives_a_new_message_at_once(queue: _Queue) -> None:
    for round_number in range(5):
        waiting = asyncio.create_task(queue.pull(10, 20))
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        assert not done
        await queue.publish(b"%d" % round_number)
        found = await asyncio.wait_for(waiting, 15)  # before its wait is over
        assert _payloads(found) == [b"%d" % round_number]
        await queue.ack(*found)


async def test_a_waiting_pull_returns_with_the_first_message(queue: _Queue) -> None:
    await queue.publish(b"1")
    assert _payloads(await asyncio.wait_for(queue.pull(100, 20), 15)) == [b"1"]


async def test_a_message_published_after_an_empty_pull_is_delivered_as_its_first_attempt(queue: _Queue) -> None:
    """A delivery that no caller received must not count as an attempt."""
    assert await queue.pull(10, 0.1) == []
    await queue.publish(b"1")
    [found] = await queue.pull(10, 5)
    assert found.ref.attempt == 1


async def test_a_pull_beside_waiting_ones_does_not_use_attempts(
    queue: _Queue, engine_url: str, open_connection: OpenConnection
) -> None:
    """Two pulls, three messages: the third must not be delivered, released and counted as an attempt."""
    publisher = _Queue(await open_connection(engine_url), queue.name)
    for round_number in range(60):
        first = asyncio.create_task(queue.pull(1, 5))
        await asyncio.wait({first}, timeout=0.003)
        publishing = asyncio.create_task(publisher.publish(b"1", b"2", b"3"))
        await asyncio.wait({publishing}, timeout=round_number * 0.00005)  # the second pull starts a little later each time
        found = [*await queue.pull(1, 5), *await first, *await queue.take(1)]
        await publishing
        assert [one.ref.attempt for one in found] == [1, 1, 1]
        await queue.ack(*found)


async def test_repeated_empty_pulls_do_not_use_attempts(queue: _Queue) -> None:
    for _ in range(5):
        assert await queue.pull(10, 0.02) == []
    await queue.publish(b"1")
    [found] = await queue.pull(10, 5)
    assert found.ref.attempt == 1


async def test_a_pull_over_the_limit_of_one_request_is_served_completely(queue: _Queue) -> None:
    await queue.publish(*[b"%d" % number for number in range(1500)])
    found = await queue.take(1500)
    assert sorted(one.ref.stream_sequence for one in found) == list(range(1, 1501))


async def test_concurrent_pulls_share_the_messages(queue: _Queue) -> None:
    await queue.publish(*[b"%d" % number for number in range(200)])
    found = await asyncio.gather(*[queue.pull(10, 5) for _ in range(20)])
    got = [payload for one in found for payload in _payloads(one)]
    assert len(got) == len(set(got)) == 200
    assert await queue.pull() == []


async def test_two_processes_share_the_messages(queue: _Queue, engine_url: str, open_connection: OpenConnection) -> None:
    other = _Queue(await open_connection(engine_url), queue.name)
    got: Counter[bytes] = Counter()
    attempts: Counter[int] = Counter()

    async def consume(by: _Queue) -> None:
        while sum(got.values()) < 500:
            found = await by.pull(7, 0.2)
            got.update(_payloads(found))
            attempts.update(one.ref.attempt for one in found)
            await by.ack(*found)

    consumers = [asyncio.create_task(consume(by)) for by in (queue, other) for _ in range(5)]
    for first in range(0, 500, 50):
        await queue.publish(*[b"%d" % number for number in range(first, first + 50)])
    async with asyncio.timeout(30):
        await asyncio.gather(*consumers)
    assert got == {b"%d" % number: 1 for number in range(500)}
    assert attempts == {1: 500}, "a delivery that no caller received must not count"
    assert await queue.left() == []


async def test_each_message_is_delivered_to_one_of_the_waiting_callers(queue: _Queue) -> None:
    waiting = [asyncio.create_task(queue.pull(1, 20)) for _ in range(10)]
    await asyncio.wait(waiting, timeout=0.05)
    for number in range(10):
        await queue.publish(b"%d" % number)
        await eventually(lambda number=number: sum(task.done() for task in waiting) == number + 1)  # type: ignore[misc]
    assert sorted(_payloads([one for task in waiting for one in task.result()])) == [b"%d" % number for number in range(10)]


# Leases


async def test_a_leased_message_is_redelivered_after_the_lease_expires(queue: _Queue) -> None:
    await queue.publish(b"1")
    leased_at = time.monotonic()
    [first] = await queue.take(1, lease_ms=400)
    assert await queue.pull() == []
    [second] = await queue.pull(wait_seconds=20)
    assert time.monotonic() - leased_at >= 0.35
    assert (first.ref.attempt, second.ref.attempt) == (1, 2)
    assert first.ref.stream_sequence == second.ref.stream_sequence


async def test_an_acknowledged_message_is_removed(queue: _Queue) -> None:
    await queue.publish(b"1", b"2")
    found = await queue.take(2, lease_ms=300)
    await queue.ack(found[0])
    assert await queue.left() == [found[1].payload]
    assert _payloads(await queue.pull(wait_seconds=5)) == [found[1].payload]
    state = await consumer_state(queue.connection, queue.name, "work")
    assert state is not None and (state.num_pending, state.num_ack_pending) == (0, 1)


async def test_acknowledging_twice_is_the_same_as_once(queue: _Queue) -> None:
    await queue.publish(b"1")
    [found] = await queue.take(1)
    await queue.ack(found, found)
    await queue.ack(found)
    assert await queue.left() == []


async def test_a_lease_can_be_extended(queue: _Queue) -> None:
    await queue.publish(b"1")
    await queue.publish(b"witness")
    extended, witness = await queue.take(2, lease_ms=300)
    await queue.work.acknowledge([(extended.ref, nak(LONG_MS))])
    [back] = await queue.pull(wait_seconds=5)
    assert back.payload == witness.payload == b"witness"
    assert await queue.pull() == []


async def test_a_lease_can_be_released_early(queue: _Queue) -> None:
    await queue.publish(b"1")
    [found] = await queue.take(1)
    await queue.work.acknowledge([(found.ref, nak(0))])
    [again] = await queue.pull(wait_seconds=5)
    assert again.ref.attempt == 2


async def test_an_unconfirmed_lease_is_effective(queue: _Queue) -> None:
    await queue.publish(b"1")
    found = await queue.work.pull(1, 5)
    queue.work.send_acknowledgements([(one.ref, nak(LONG_MS)) for one in found])
    queue.work.send_acknowledgements([])
    state = await consumer_state(queue.connection, queue.name, "work")
    assert state is not None and state.num_ack_pending == 1
    assert await queue.pull(wait_seconds=0.1) == []


async def test_a_message_can_be_acknowledged_by_another_process(
    queue: _Queue, engine_url: str, open_connection: OpenConnection
) -> None:
    other = _Queue(await open_connection(engine_url), queue.name)
    await queue.publish(b"1", b"2")
    one, two = await queue.take(2)
    await other.ack(one)
    assert await queue.left() == [two.payload]
    await other.work.acknowledge([(two.ref, nak(0))])
    [again] = await other.pull(wait_seconds=5)
    assert (again.payload, again.ref.attempt) == (two.payload, 2)


async def test_acks_of_concurrent_callers_are_sent_together_and_end_separately(
    queue: _Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await queue.publish(*[b"%d" % number for number in range(40)])
    found = await queue.take(40)
    really, writes = Connection.send, list[int]()

    def spy(connection: Connection, commands: bytes, *, is_urgent: bool = True) -> None:
        writes.append(commands.count(f"$JS.ACK.{queue.name}.".encode()))
        really(connection, commands, is_urgent=is_urgent)

    monkeypatch.setattr(Connection, "send", spy)
    cancelled = asyncio.create_task(queue.ack(*found[:3]))
    acking = [asyncio.create_task(queue.ack(one)) for one in found[3:]]
    asyncio.get_running_loop().call_soon(cancelled.cancel)
    await asyncio.wait_for(asyncio.gather(*acking), 10)
    assert cancelled.cancelled()
    assert [count for count in writes if count] == [40]
    await eventually(lambda: _is_empty(queue))


async def test_many_messages_are_acknowledged_together(queue: _Queue) -> None:
    await queue.publish(*[b"%d" % number for number in range(300)])
    await queue.ack(*await queue.take(300))
    assert await queue.left() == []


# Cancellation and failures


async def test_messages_of_a_cancelled_pull_are_delivered_to_another_caller(queue: _Queue) -> None:
    for _ in range(20):
        leaving = asyncio.create_task(queue.work.pull(1, 20))
        staying = asyncio.create_task(queue.pull(1, 20))
        await asyncio.wait({leaving, staying}, timeout=0.01)
        publishing = asyncio.create_task(queue.publish(b"1"))
        await asyncio.sleep(0)
        leaving.cancel()
        outcomes = await asyncio.gather(leaving, staying, publishing, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        assert isinstance(outcomes[1], list) and _payloads(outcomes[1]) == [b"1"]
        await queue.ack(*outcomes[1])


async def test_a_message_for_a_cancelled_pull_is_delivered_to_the_next(queue: _Queue) -> None:
    for pause in (0, 0.001, 0.002, 0.003, 0.005, 0.01):
        waiting = asyncio.create_task(queue.work.pull(5, 20))
        await asyncio.wait({waiting}, timeout=0.01)
        publishing = asyncio.create_task(queue.publish(b"1", b"2", b"3"))
        await asyncio.wait({waiting}, timeout=pause)
        waiting.cancel()
        outcomes = await asyncio.gather(waiting, publishing, return_exceptions=True)
        if isinstance(outcomes[0], list):  # it returned before it was cancelled
            await queue.work.acknowledge([(one.ref, nak(0)) for one in outcomes[0]])
        got: list[bytes] = []
        while len(got) < 3:
            found = await queue.pull(5, 5)
            assert found
            got += _payloads(found)
            await queue.ack(*found)
        assert sorted(got) == [b"1", b"2", b"3"]


class _DelayingProxy(TcpProxy):
    """Delays each message until the next status of the consumer, which preserves the order of the consumer's own messages.

    Everything else overtakes them, such as the confirmation that a subscription has ended.
    """

    def __init__(self, server_url: str) -> None:
        super().__init__(server_url)
        self.has_delayed = asyncio.Event()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, are_replies: bool = False) -> None:
        delayed = b""
        try:
            while are_replies and (line := await reader.readline()):
                tokens = line.split()
                if tokens[0] in (b"MSG", b"HMSG"):
                    line += await reader.readexactly(int(tokens[-1]) + 2)
                if tokens[0] in (b"MSG", b"HMSG") and tokens[3].startswith(b"$JS.ACK."):
                    delayed += line
                    self.has_delayed.set()
                    continue
                if tokens[0] == b"HMSG":
                    line, delayed = delayed + line, b""
                writer.write(line)
        except (OSError, asyncio.IncompleteReadError):
            pass
        await super()._forward(reader, writer, are_replies=are_replies)


async def test_a_message_that_arrives_for_a_cancelled_pull_is_released_at_once(
    connection: Connection, engine_url: str, open_connection: OpenConnection, name: str
) -> None:
    """The server may send a message after it has confirmed the end of the subscription, if it had chosen the receiver before."""
    delaying = _DelayingProxy(engine_url)
    near, far = await _make_queue(connection, name), _Queue(await open_connection((await delaying.start()).url), name)
    try:
        waiting = asyncio.create_task(far.work.pull(1, 20))
        await eventually(lambda: _has_waiting_pull(near))
        await near.publish(b"1")
        await asyncio.wait_for(delaying.has_delayed.wait(), 30)
        waiting.cancel()
        async with asyncio.timeout(8):  # without the release, it is redelivered after the 10 s of `ack_wait`
            assert _payloads(await near.pull(1, 20)) == [b"1"]
    finally:
        delaying.stop()


async def test_an_empty_pull_leaves_no_pull_request_open(queue: _Queue) -> None:
    """The waiting pull ends with the wait, so the subscription can be reused."""
    inboxes = set()
    for wait_seconds in (0.05, 0.1, 0.15):
        assert await queue.pull(10, wait_seconds) == []
        assert not queue.work._has_waiting_pull
        inboxes.add(queue.work._inbox_subject)
    assert len(inboxes) == 1


async def test_closing_fails_waiting_callers(queue: _Queue) -> None:
    waiting = [asyncio.create_task(queue.work.pull(1, 20)) for _ in range(3)]
    await asyncio.wait(waiting, timeout=0.05)
    queue.work.close(Draining("stopping"))
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Draining] * 3


async def _has_waiting_pull(queue: _Queue) -> bool:
    """The consumer has a waiting pull."""
    state = await consumer_state(queue.connection, queue.name, "work")
    return state is not None and state.num_waiting == 1


async def _has_pending(queue: _Queue, count: int) -> bool:
    state = await consumer_state(queue.connection, queue.name, "work")
    return state is not None and state.num_pending == count


async def _is_on_disk(server: Server) -> None:
    """Wait until the consumer's state is on disk: the server writes it some milliseconds after its answer."""
    [state] = server.store.rglob("obs/*/o.dat")
    before = state.stat().st_mtime_ns
    # The server writes at least every 0.1 s, so the state is complete when the file has not changed for longer than that.
    seen, since = before, time.monotonic()

    def is_unchanged() -> bool:
        nonlocal seen, since
        if (now := state.stat().st_mtime_ns) != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > 0.2

    await eventually(is_unchanged)


async def test_a_long_poll_survives_a_restart_of_the_server(
    own_server: Server, open_connection: OpenConnection, name: str
) -> None:
    connection = await open_connection(own_server.url)
    queue = await _make_queue(connection, name)
    waiting = asyncio.create_task(queue.pull(10, 20))
    await asyncio.wait({waiting}, timeout=0.05)
    await restart(own_server, connection)
    done, _ = await asyncio.wait({waiting}, timeout=0.1)
    assert not done
    await queue.publish(b"1")
    assert _payloads(await waiting) == [b"1"]


async def test_a_long_poll_whose_pull_request_was_lost_is_repeated(
    connection: Connection, proxy: TcpProxy, open_connection: OpenConnection, name: str
) -> None:
    near = await _make_queue(connection, name)
    far = _Queue(await open_connection(proxy.url), name)
    proxy.drops_replies = True
    waiting = asyncio.create_task(far.pull(10, 20))
    await asyncio.wait_for(proxy.dropped.wait(), 30)
    proxy.cut()
    await near.publish(b"1")
    assert _payloads(await waiting) == [b"1"]


async def test_a_pull_that_a_replicated_consumer_cannot_fill_returns_at_once(
    queue: _Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server ends the request with 408, where a single one sends 404; a waiting pull that expires ends with 408 as well."""
    monkeypatch.setattr(pull_consumer, "_PULL_ANSWER_SECONDS", 60)
    on_message = PullConsumer._on_message

    def replicated(consumer: PullConsumer, message: Any) -> None:
        if (message.headers or {}).get("Status") == "404":
            message.headers.update({"Status": "408", "Nats-Pending-Messages": "9", "Nats-Pending-Bytes": "262000"})
        on_message(consumer, message)

    monkeypatch.setattr(PullConsumer, "_on_message", replicated)
    await queue.publish(b"1", b"2")
    assert len(await queue.take(2)) == 2
    assert await queue.pull(10, 0) == []
    waiting = asyncio.create_task(queue.pull(10, 5))
    await eventually(lambda: queue.work._has_waiting_pull)
    await queue.publish(b"3")
    assert _payloads(await waiting) == [b"3"]


@pytest.fixture
def lost_pulls(queue: _Queue, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The first pull requests of the queue, which get no answer, as while a consumer has no leader."""
    monkeypatch.setattr(pull_consumer, "_PULL_ANSWER_SECONDS", 0.1)
    publish = Connection.publish
    lost: list[dict[str, Any]] = []

    def lossy(connection: Connection, subject: str, payload: bytes, reply_subject: str = "") -> None:
        if subject.startswith("$JS.API.CONSUMER.MSG.NEXT.") and queue.name in subject and len(lost) < 3:
            lost.append(msgspec.json.decode(payload))
        else:
            publish(connection, subject, payload, reply_subject)

    monkeypatch.setattr(Connection, "publish", lossy)
    return lost


async def test_a_pull_of_messages_that_belong_to_the_request_of_another_process_returns_at_once(
    connection: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_stream(connection, name, retention="workqueue")
    await ensure_work_consumer(connection, name, "work", f"{name}.ready", max_in_flight=1)
    queue = _Queue(connection, name)
    await queue.publish(b"1", b"2")
    await queue.take(1)
    monkeypatch.setattr(pull_consumer, "_PULL_ANSWER_SECONDS", 3600)
    request = msgspec.json.encode({"batch": 5, "expires": 60_000_000_000})
    unsubscribe = connection.subscribe("_INBOX.another-process", _ignore)
    connection.publish(f"$JS.API.CONSUMER.MSG.NEXT.{name}.work", request, "_INBOX.another-process")

    async def has_request() -> bool:
        state = await consumer_state(connection, name, "work")
        return state is not None and state.num_waiting == 1

    await eventually(has_request)
    assert await queue.pull(10) == []
    assert await queue.pull(1) == []
    await unsubscribe()


async def test_a_pull_without_an_answer_is_repeated_before_it_waits(queue: _Queue, lost_pulls: list[dict[str, Any]]) -> None:
    """A waiting pull would be lost as well, and nothing would be sent until it has expired."""
    await queue.publish(b"1")
    assert _payloads(await queue.pull(10, 30)) == [b"1"]
    assert [request.get("no_wait") for request in lost_pulls] == [True] * 3


@pytest.mark.usefixtures("lost_pulls")
async def test_a_pull_that_does_not_wait_is_unavailable_without_an_answer(queue: _Queue) -> None:
    await queue.publish(b"1")
    with pytest.raises(EngineUnavailable):
        await queue.pull(10, 0)


async def test_leases_and_attempts_survive_a_restart_of_the_server(
    own_server: Server, open_connection: OpenConnection, name: str
) -> None:
    connection = await open_connection(own_server.url)
    queue = await _make_queue(connection, name)
    await queue.publish(b"1", b"2")
    acked, held = await queue.take(2, lease_ms=2500)
    leased_at = time.monotonic()
    await _is_on_disk(own_server)
    await restart(own_server, connection)
    assert await queue.pull(wait_seconds=0.1) == []
    await queue.ack(acked)
    [back] = await queue.pull(wait_seconds=5)
    assert time.monotonic() - leased_at >= 1.4, "the server stores the time of a delivery in whole seconds"
    assert (back.payload, back.ref.attempt) == (held.payload, 2)
    assert await queue.left() == [held.payload]


async def test_pulls_and_acks_are_unavailable_while_the_server_is_down(
    own_server: Server, open_connection: OpenConnection, name: str
) -> None:
    connection = await open_connection(own_server.url)
    queue = await _make_queue(connection, name)
    await queue.publish(b"1")
    [found] = await queue.take(1)
    await _is_on_disk(own_server)
    own_server.kill()
    await eventually(lambda: not connection.is_up)
    with pytest.raises(EngineUnavailable):
        await queue.work.pull(1, 0)
    with pytest.raises(EngineUnavailable):
        await queue.work.acknowledge([(found.ref, ACK)], deadline_seconds=0.3)
    own_server.start()
    await asyncio.wait_for(connection.wait_up(), 30)
    await queue.ack(found)
    assert await queue.left() == []


async def test_an_ack_whose_confirmation_was_lost_is_repeated(
    connection: Connection, proxy: TcpProxy, open_connection: OpenConnection, name: str
) -> None:
    near = await _make_queue(connection, name)
    far = _Queue(await open_connection(proxy.url), name)
    await near.publish(b"1")
    found = await near.take(1)
    proxy.drops_replies = True
    acking = asyncio.create_task(far.ack(*found))
    await asyncio.wait_for(proxy.dropped.wait(), 30)
    proxy.cut()
    await asyncio.wait_for(acking, 30)
    assert await near.left() == []


async def test_a_queue_that_does_not_exist_cannot_be_pulled(connection: Connection, name: str) -> None:
    with pytest.raises(EngineUnavailable):
        await asyncio.wait_for(PullConsumer(connection, name, "work").pull(1, 0), 30)


async def test_every_message_is_processed_although_the_server_is_killed_repeatedly(
    own_server: Server, open_connection: OpenConnection, name: str
) -> None:
    connection = await open_connection(own_server.url)
    queue = await _make_queue(connection, name)
    await queue.publish(*[b"%d" % number for number in range(300)])
    handed_out: set[bytes] = set()
    is_empty = asyncio.Event()

    async def consume() -> None:
        while not is_empty.is_set():
            try:
                for one in await queue.pull(5, 0.2, lease_ms=500):
                    handed_out.add(one.payload)
                    # A killed server does not confirm deliveries that it forgot: the ack may or may not be stored.
                    await queue.work.acknowledge([(one.ref, ACK)], deadline_seconds=0.5)
            except EngineUnavailable:
                pass

    async def disturb() -> None:
        for at in (50, 150):
            await eventually(lambda at=at: len(handed_out) >= at, seconds=20)  # type: ignore[misc]
            await restart(own_server, connection)
        await eventually(lambda: _is_empty(queue), seconds=30)
        is_empty.set()

    async with asyncio.timeout(40), asyncio.TaskGroup() as group:
        group.create_task(disturb())
        for _ in range(8):
            group.create_task(consume())
    assert handed_out == {b"%d" % number for number in range(300)}
    await restart(own_server, connection)
    assert await queue.left() == []


async def test_an_acknowledged_message_stays_removed_although_the_server_is_killed(
    own_server: Server, open_connection: OpenConnection, name: str
) -> None:
    connection = await open_connection(own_server.url)
    queue = await _make_queue(connection, name)
    await queue.publish(*[b"%d" % number for number in range(300)])
    found = await queue.take(300)
    acknowledged: set[bytes] = set()

    async def acknowledge() -> None:
        while found:
            one = found.pop()
            await queue.work.acknowledge([(one.ref, ACK)], deadline_seconds=0.2)
            acknowledged.add(one.payload)

    working = [asyncio.create_task(acknowledge()) for _ in range(8)]
    await eventually(lambda: len(acknowledged) > 80)
    own_server.kill()
    outcomes = await asyncio.gather(*working, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {EngineUnavailable}
    own_server.start()
    await asyncio.wait_for(connection.wait_up(), 30)
    left = await queue.left()
    assert acknowledged.isdisjoint(left)
    assert 300 - 8 <= len(acknowledged) + len(left) <= 300


async def _is_empty(queue: _Queue) -> bool:
    return await queue.left() == []


def test_a_nak_has_its_delay_in_nanoseconds_or_none() -> None:
    assert nak(1500) == b'-NAK {"delay": 1500000000}'
    assert nak(0) == nak(-5) == b"-NAK"


@pytest.mark.parametrize("ack", [_Queue.ack, _Queue.ack_by_callback])
async def test_an_ack_of_a_delivery_unknown_to_the_engine_deletes_the_message(queue: _Queue, ack: Any) -> None:
    """The server may forget a delivery in a crash right after the lease, although its consumer has processed the message."""
    await queue.publish(b"done", b"not done")
    [done] = await queue.take(1)
    stored = await stream_reader.at(queue.connection, queue.name, 2)
    assert stored is not None
    numbers = replace(done.ref, stream_sequence=2, consumer_sequence=99, stored_at_ns=stored.at_ms * 1_000_000)

    await ack(queue, Delivery(numbers, b""))
    await ack(queue, Delivery(numbers, b""))

    assert await queue.left() == [b"done"]
    assert queue.connection.writes.in_progress == 0


async def test_acks_by_callback_are_confirmed_and_refused_during_maintenance(queue: _Queue) -> None:
    await queue.publish(*[b"%d" % number for number in range(4)])
    first, *others = await queue.take(4)
    await queue.ack_by_callback(*others)
    assert await queue.left() == [first.payload]
    queue.connection.writes.hold("a backup", 1)
    with pytest.raises(Maintenance):
        await queue.ack_by_callback(first)
    queue.connection.writes.release()
    assert await queue.left() == [first.payload]
    assert queue.connection.writes.in_progress == 0


async def test_an_ack_by_callback_is_repeated_after_a_loss_of_the_connection(queue: _Queue) -> None:
    await queue.publish(b"1", b"2")
    found = await queue.take(2)
    queue.connection._client.drop()
    await queue.ack_by_callback(*found)
    assert await queue.left() == []
    assert queue.connection.writes.in_progress == 0


async def test_a_pull_by_callback_gets_what_is_ready_or_the_error(queue: _Queue) -> None:
    await queue.publish(b"1", b"2")

    def pull(count: int) -> "asyncio.Future[list[Delivery]]":
        pulled: asyncio.Future[list[Delivery]] = asyncio.get_running_loop().create_future()
        queue.work.pull_callback(count, partial(resolve, pulled))
        return pulled

    found = list[Delivery]()
    while len(found) < 2:
        found += await pull(3 - len(found))
    assert [one.payload for one in found] == [b"1", b"2"]
    assert await pull(1) == []
    pulling = pull(1)
    queue.work.close(EngineUnavailable("closed"))
    with pytest.raises(EngineUnavailable):
        await pulling


async def test_an_ack_of_a_message_of_a_deleted_stream_does_not_affect_the_recreated_one(queue: _Queue) -> None:
    await queue.publish(b"of the new stream")
    earlier = DeliveryRef(stream_sequence=1, consumer_sequence=99, attempt=1, stored_at_ns=1_700_000_000_000_000_000)

    await queue.ack(Delivery(earlier, b""))

    assert await queue.left() == [b"of the new stream"]


# Bytes


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_consumer, "_FIRST_PULL_BYTES_MAX", 1000)
    monkeypatch.setattr(pull_consumer, "PULL_BYTES_MAX", 5000)


async def _requests(queue: _Queue) -> list[dict[str, Any]]:
    """The pull requests that follow."""
    seen: list[dict[str, Any]] = []
    subject = f"$JS.API.CONSUMER.MSG.NEXT.{queue.name}.work"
    queue.connection.listen(subject, lambda body: seen.append(msgspec.json.decode(body)))
    return seen


@pytest.mark.usefixtures("small_limits")
async def test_a_pull_is_limited_in_bytes_and_the_next_one_continues(queue: _Queue) -> None:
    await queue.publish(*[b"x" * 1200 for _ in range(6)])
    requests = await _requests(queue)
    first, second = await queue.pull(500), await queue.pull(500)
    assert (len(first), len(second)) == (4, 2)
    await eventually(lambda: len(requests) >= 4)
    assert all(request["max_bytes"] <= 5000 for request in requests)


@pytest.mark.usefixtures("small_limits")
async def test_a_message_over_the_limit_is_delivered_alone(queue: _Queue) -> None:
    await queue.publish(b"x" * 6000)
    await queue.publish(b"y")
    assert [len(one.payload) for one in await queue.pull(500)] == [6000]
    assert [len(one.payload) for one in await queue.pull(500)] == [1]


@pytest.mark.usefixtures("small_limits")
async def test_the_last_message_of_a_pull_is_limited_too(queue: _Queue) -> None:
    await queue.publish(b"x" * 700)
    await queue.publish(b"y" * 4500)
    assert [len(one.payload) for one in await queue.pull(2)] == [700]
    assert [len(one.payload) for one in await queue.pull(2)] == [4500]


@pytest.mark.usefixtures("small_limits")
async def test_every_waiting_caller_receives_messages_that_did_not_fit_for_the_first(queue: _Queue) -> None:
    pulls = [asyncio.create_task(queue.pull(3, 5)) for _ in range(3)]
    await queue.publish(*[b"x" * 1200 for _ in range(9)])
    found = await asyncio.gather(*pulls)
    assert all(found)
    assert all(sum(len(one.payload) for one in each) <= 5000 for each in found)
    left = 9 - sum(map(len, found))
    assert len(await queue.take(left) if left else []) == left


@pytest.mark.usefixtures("small_limits")
async def test_a_request_that_ends_exactly_at_the_limit_does_not_lose_messages(queue: _Queue) -> None:
    """The server sends no status then."""
    await queue.publish(b"x")
    [sample] = await queue.pull(1)
    await queue.ack(sample)
    for size in range(780, 940):
        await queue.publish(b"x" * size)
    assert len(await queue.take(160)) == 160


async def test_a_large_pull_is_fetched_in_slices(queue: _Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies to other requests on the connection wait for one slice at most."""
    monkeypatch.setattr(pull_consumer, "_FIRST_PULL_BYTES_MAX", 1000)
    monkeypatch.setattr(pull_consumer, "_SLICE_BYTES_MAX", 2000)
    await queue.publish(*[b"x" * 500 for _ in range(10)], b"y" * 5000, *[b"z" * 500 for _ in range(4)])
    requests = await _requests(queue)
    assert sum(len(one.payload) for one in await queue.pull(15)) == 12_000
    limits = [request["max_bytes"] for request in requests]
    assert (limits[0], set(limits[1:4])) == (1000, {2000})
    assert len([limit for limit in limits if limit > 2000]) >= 1, "a message that is larger than a slice is delivered, too"


async def test_one_slice_is_in_flight_at_a_time(queue: _Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_consumer, "_FIRST_PULL_BYTES_MAX", 1000)
    await queue.publish(*[b"x" * 500 for _ in range(10)])
    await eventually(lambda: _has_pending(queue, 10))
    async with queue.connection.large_transfer:
        pulling = asyncio.create_task(queue.pull(10))
        await eventually(lambda: bool(queue.connection.large_transfer._waiters))
        assert not pulling.done()
    assert len(await pulling) == 10
