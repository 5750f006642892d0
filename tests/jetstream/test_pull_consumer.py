import asyncio
import time
from collections import Counter
from dataclasses import replace

import pytest
from tests.jetstream.streams import committer_of, draft, entries_of, make_stream
from tests.servers import Cable, OpenConnection, Server, restart
from tests.waiting import eventually

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committer
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import consumer_state
from postroad.jetstream.pull_consumer import ACK, Delivery, DeliveryRef, PullConsumer, ensure_work_consumer, nak
from postroad.kernel.errors import Draining, EngineUnavailable

LONG_MS = 60_000


class _Queue:
    """A queue as one process sees it."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection, self.name = connection, name
        self.work = PullConsumer(connection, name, "work")
        self._committer: Committer = committer_of(connection, name)

    async def publish(self, *payloads: bytes) -> None:
        await asyncio.gather(*[self._committer.append(draft(f"{self.name}.ready", payload)) for payload in payloads])

    async def pull(self, want: int = 10, wait_seconds: float = 0, lease_ms: int = LONG_MS) -> list[Delivery]:
        """Pull, and lease what came."""
        async with asyncio.timeout(wait_seconds + 10):
            found = await self.work.pull(want, wait_seconds)
        await self.work.acknowledge([(one.ref, nak(lease_ms)) for one in found])
        return found

    async def take(self, count: int, lease_ms: int = LONG_MS) -> list[Delivery]:
        """Pull until there are so many. (A message just stored may reach the consumer a moment after the writer's answer.)"""
        found: list[Delivery] = []
        while len(found) < count:
            more = await self.pull(count - len(found), 5, lease_ms)
            assert more, f"only {len(found)} of {count} came"
            found += more
        return found

    async def ack(self, *found: Delivery) -> None:
        await self.work.acknowledge([(one.ref, ACK) for one in found])

    async def left(self) -> list[bytes]:
        return [entry.payload for entry in await entries_of(self.connection, self.name)]


async def _make_queue(connection: Connection, name: str) -> _Queue:
    await make_stream(connection, name, retention="workqueue")
    await ensure_work_consumer(connection, name, "work", f"{name}.ready")
    return _Queue(connection, name)


@pytest.fixture
async def queue(connection: Connection, name: str) -> _Queue:
    return await _make_queue(connection, name)


def _payloads(found: list[Delivery]) -> list[bytes]:
    return [one.payload for one in found]


# Pulling


async def test_what_is_ready_is_pulled_oldest_first(queue: _Queue) -> None:
    for payload in (b"1", b"2", b"3"):
        await queue.publish(payload)
    assert _payloads(await queue.take(2)) == [b"1", b"2"]
    assert _payloads(await queue.take(1)) == [b"3"]
    assert await queue.pull() == []


async def test_a_delivery_says_which_message_it_is_and_how_often_it_came(queue: _Queue) -> None:
    before = time.time_ns()
    await queue.publish(b"1")
    await queue.publish(b"2")
    found = await queue.take(2)
    assert [one.ref.stream_sequence for one in found] == [1, 2]
    assert [one.ref.attempt for one in found] == [1, 1]
    assert all(before <= one.ref.stored_at_ns <= time.time_ns() for one in found)


async def test_an_empty_queue_answers_empty_at_once_or_when_the_wait_is_over(queue: _Queue) -> None:
    for wait_seconds in (0.0, 0.3):
        started = time.monotonic()
        assert await queue.pull(10, wait_seconds) == []
        assert wait_seconds <= time.monotonic() - started < wait_seconds + 1


async def test_who_waits_is_woken_at_once(queue: _Queue) -> None:
    for round_number in range(5):
        waiting = asyncio.create_task(queue.pull(10, 20))
        done, _ = await asyncio.wait({waiting}, timeout=0.05)
        assert not done
        started = time.monotonic()
        await queue.publish(b"%d" % round_number)
        found = await waiting
        assert _payloads(found) == [b"%d" % round_number]
        assert time.monotonic() - started < 0.5
        await queue.ack(*found)


async def test_who_waits_does_not_wait_for_more(queue: _Queue) -> None:
    await queue.publish(b"1")
    started = time.monotonic()
    assert _payloads(await queue.pull(100, 20)) == [b"1"]
    assert time.monotonic() - started < 1


async def test_a_message_published_after_an_empty_pull_comes_as_its_first_attempt(queue: _Queue) -> None:
    """Nobody was handed it before: an attempt that no consumer saw must not count."""
    assert await queue.pull(10, 0.1) == []
    await queue.publish(b"1")
    [found] = await queue.pull(10, 5)
    assert found.ref.attempt == 1


async def test_who_comes_while_others_wait_does_not_use_up_attempts(
    queue: _Queue, engine_url: str, open_connection: OpenConnection
) -> None:
    """Two ask, three messages come: the third must not be sent here, given back and counted."""
    publisher = _Queue(await open_connection(engine_url), queue.name)
    for round_number in range(60):
        first = asyncio.create_task(queue.pull(1, 5))
        await asyncio.wait({first}, timeout=0.003)
        publishing = asyncio.create_task(publisher.publish(b"1", b"2", b"3"))
        await asyncio.wait({publishing}, timeout=round_number * 0.00005)  # the second comes a little later each time
        found = [*await queue.pull(1, 5), *await first, *await queue.take(1)]
        await publishing
        assert [one.ref.attempt for one in found] == [1, 1, 1]
        await queue.ack(*found)


async def test_one_empty_pull_after_another_does_not_use_up_attempts(queue: _Queue) -> None:
    for _ in range(5):
        assert await queue.pull(10, 0.02) == []
    await queue.publish(b"1")
    [found] = await queue.pull(10, 5)
    assert found.ref.attempt == 1


async def test_a_pull_of_more_than_one_request_takes_gets_a_full_answer(queue: _Queue) -> None:
    await queue.publish(*[b"%d" % number for number in range(1500)])
    found = await queue.take(1500)
    assert sorted(one.ref.stream_sequence for one in found) == list(range(1, 1501))


async def test_many_at_once_share_what_there_is(queue: _Queue) -> None:
    await queue.publish(*[b"%d" % number for number in range(200)])
    found = await asyncio.gather(*[queue.pull(10, 5) for _ in range(20)])
    got = [payload for one in found for payload in _payloads(one)]
    assert len(got) == len(set(got)) == 200
    assert await queue.pull() == []


async def test_two_processes_share_what_there_is(queue: _Queue, engine_url: str, open_connection: OpenConnection) -> None:
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
    async with asyncio.timeout(20):
        await asyncio.gather(*consumers)
    assert got == {b"%d" % number: 1 for number in range(500)}
    assert attempts == {1: 500}, "an attempt that no consumer saw must not count"
    assert await queue.left() == []


async def test_of_many_who_wait_each_message_wakes_one(queue: _Queue) -> None:
    waiting = [asyncio.create_task(queue.pull(1, 20)) for _ in range(10)]
    await asyncio.wait(waiting, timeout=0.05)
    for number in range(10):
        await queue.publish(b"%d" % number)
        await eventually(lambda number=number: sum(task.done() for task in waiting) == number + 1)  # type: ignore[misc]
    assert sorted(_payloads([one for task in waiting for one in task.result()])) == [b"%d" % number for number in range(10)]


# Leases


async def test_a_lease_keeps_a_message_away_and_then_it_comes_again(queue: _Queue) -> None:
    await queue.publish(b"1")
    leased_at = time.monotonic()
    [first] = await queue.take(1, lease_ms=400)
    assert await queue.pull() == []
    [second] = await queue.pull(wait_seconds=5)
    assert 0.35 <= time.monotonic() - leased_at < 2
    assert (first.ref.attempt, second.ref.attempt) == (1, 2)
    assert first.ref.stream_sequence == second.ref.stream_sequence


async def test_an_acknowledged_message_is_gone(queue: _Queue) -> None:
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


async def test_a_lease_can_be_cut_short(queue: _Queue) -> None:
    await queue.publish(b"1")
    [found] = await queue.take(1)
    await queue.work.acknowledge([(found.ref, nak(0))])
    [again] = await queue.pull(wait_seconds=5)
    assert again.ref.attempt == 2


async def test_a_lease_sent_without_waiting_for_an_answer_holds(queue: _Queue) -> None:
    await queue.publish(b"1")
    found = await queue.work.pull(1, 5)
    await queue.work.send_acknowledgements([(one.ref, nak(LONG_MS)) for one in found])
    await queue.work.send_acknowledgements([])
    state = await consumer_state(queue.connection, queue.name, "work")
    assert state is not None and state.num_ack_pending == 1
    assert await queue.pull(wait_seconds=0.1) == []


async def test_a_message_can_be_settled_by_another_process(
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


async def test_many_are_settled_at_once(queue: _Queue) -> None:
    await queue.publish(*[b"%d" % number for number in range(300)])
    await queue.ack(*await queue.take(300))
    assert await queue.left() == []


# Who leaves, and what breaks


async def test_what_a_leaving_puller_had_in_hand_goes_to_another(queue: _Queue) -> None:
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


async def test_what_came_for_a_puller_who_left_comes_back_for_the_next(queue: _Queue) -> None:
    for pause in (0, 0.001, 0.002, 0.003, 0.005, 0.01):
        waiting = asyncio.create_task(queue.work.pull(5, 20))
        await asyncio.wait({waiting}, timeout=0.01)
        publishing = asyncio.create_task(queue.publish(b"1", b"2", b"3"))
        await asyncio.wait({waiting}, timeout=pause)
        waiting.cancel()
        outcomes = await asyncio.gather(waiting, publishing, return_exceptions=True)
        if isinstance(outcomes[0], list):  # it was answered before it could leave
            await queue.work.acknowledge([(one.ref, nak(0)) for one in outcomes[0]])
        got: list[bytes] = []
        while len(got) < 3:
            found = await queue.pull(5, 5)
            assert found
            got += _payloads(found)
            await queue.ack(*found)
        assert sorted(got) == [b"1", b"2", b"3"]


class _LateLine(Cable):
    """On which messages are late: each comes only just before the next status that the engine sends. That is the order of the
    engine's own line; all else may overtake it, such as word that a subscription has ended."""

    def __init__(self, server_url: str) -> None:
        super().__init__(server_url)
        self.holds_one = asyncio.Event()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, are_answers: bool = False) -> None:
        held = b""
        try:
            while are_answers and (line := await reader.readline()):
                words = line.split()
                if words[0] in (b"MSG", b"HMSG"):
                    line += await reader.readexactly(int(words[-1]) + 2)
                if words[0] in (b"MSG", b"HMSG") and words[3].startswith(b"$JS.ACK."):
                    held += line
                    self.holds_one.set()
                    continue
                if words[0] == b"HMSG":
                    line, held = held + line, b""
                writer.write(line)
        except (OSError, asyncio.IncompleteReadError):
            pass
        await super()._carry(reader, writer, are_answers=are_answers)


async def test_a_message_that_is_late_for_a_puller_who_left_comes_back_at_once(
    connection: Connection, engine_url: str, open_connection: OpenConnection, name: str
) -> None:
    """The engine sends it although it has confirmed that nobody listens any more, if it had chosen whom to send it to before."""
    line = _LateLine(engine_url)
    near, far = await _make_queue(connection, name), _Queue(await open_connection((await line.lay()).url), name)
    try:
        waiting = asyncio.create_task(far.work.pull(1, 20))
        await eventually(lambda: _is_asked(near))
        await near.publish(b"1")
        await asyncio.wait_for(line.holds_one.wait(), 5)
        waiting.cancel()
        started = time.monotonic()
        assert _payloads(await near.pull(1, 20)) == [b"1"]
        assert time.monotonic() - started < 5, "it came when the engine had waited for a lease long enough"
    finally:
        line.remove()


async def test_an_empty_pull_leaves_nothing_open(queue: _Queue) -> None:
    """What the engine was asked for is over when the wait is. So nothing is taken back, and the subscription can be kept."""
    inboxes = set()
    for wait_seconds in (0.05, 0.1, 0.15):
        assert await queue.pull(10, wait_seconds) == []
        assert not queue.work._has_waiting_pull
        inboxes.add(queue.work._inbox_subject)
    assert len(inboxes) == 1


async def test_closing_tells_whoever_waits(queue: _Queue) -> None:
    waiting = [asyncio.create_task(queue.work.pull(1, 20)) for _ in range(3)]
    await asyncio.wait(waiting, timeout=0.05)
    queue.work.close(Draining("stopping"))
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Draining] * 3


async def _is_asked(queue: _Queue) -> bool:
    """Somebody waits at the engine."""
    state = await consumer_state(queue.connection, queue.name, "work")
    return state is not None and state.num_waiting == 1


async def _is_on_disk(server: Server) -> None:
    """The engine writes a consumer's state a few milliseconds after it has answered."""
    [state] = server.store.rglob("obs/*/o.dat")
    before = state.stat().st_mtime_ns
    # Its writer wakes within a tenth of a second; it has written all when it has stood still for longer than that.
    seen, since = before, time.monotonic()

    def has_settled() -> bool:
        nonlocal seen, since
        if (now := state.stat().st_mtime_ns) != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > 0.2

    await eventually(has_settled)


async def test_a_long_poll_outlasts_a_restart_of_the_server(
    own_server: Server, open_connection: OpenConnection, name: str
) -> None:
    connection = await open_connection(own_server.url)
    queue = await _make_queue(connection, name)
    waiting = asyncio.create_task(queue.pull(10, 20))
    await asyncio.wait({waiting}, timeout=0.05)
    await restart(own_server, connection)
    done, _ = await asyncio.wait({waiting}, timeout=0.1)
    assert not done
    started = time.monotonic()
    await queue.publish(b"1")
    assert _payloads(await waiting) == [b"1"]
    assert time.monotonic() - started < 2


async def test_a_long_poll_whose_request_is_lost_is_asked_again(
    connection: Connection, cable: Cable, open_connection: OpenConnection, name: str
) -> None:
    near = await _make_queue(connection, name)
    far = _Queue(await open_connection(cable.url), name)
    cable.is_deaf = True
    waiting = asyncio.create_task(far.pull(10, 20))
    await asyncio.wait_for(cable.swallowed.wait(), 5)
    cable.cut()
    started = time.monotonic()
    await near.publish(b"1")
    assert _payloads(await waiting) == [b"1"]
    assert time.monotonic() - started < 2


async def test_leases_and_attempts_outlast_a_restart_of_the_server(
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
    assert time.monotonic() - leased_at >= 1.4, "the engine keeps the time of a delivery in whole seconds"
    assert (back.payload, back.ref.attempt) == (held.payload, 2)
    assert await queue.left() == [held.payload]


async def test_while_the_server_is_away_a_pull_and_a_settle_are_unavailable(
    own_server: Server, open_connection: OpenConnection, name: str
) -> None:
    connection = await open_connection(own_server.url)
    queue = await _make_queue(connection, name)
    await queue.publish(b"1")
    [found] = await queue.take(1)
    await _is_on_disk(own_server)
    own_server.kill()
    await eventually(lambda: not connection.is_up)
    started = time.monotonic()
    with pytest.raises(EngineUnavailable):
        await queue.work.pull(1, 0)
    with pytest.raises(EngineUnavailable):
        await queue.work.acknowledge([(found.ref, ACK)], deadline_seconds=0.3)
    assert time.monotonic() - started < 4
    own_server.start()
    await asyncio.wait_for(connection.wait_up(), 5)
    await queue.ack(found)
    assert await queue.left() == []


async def test_an_ack_outlasts_a_lost_answer(
    connection: Connection, cable: Cable, open_connection: OpenConnection, name: str
) -> None:
    near = await _make_queue(connection, name)
    far = _Queue(await open_connection(cable.url), name)
    await near.publish(b"1")
    found = await near.take(1)
    cable.is_deaf = True
    acking = asyncio.create_task(far.ack(*found))
    await asyncio.wait_for(cable.swallowed.wait(), 5)
    cable.cut()
    await asyncio.wait_for(acking, 5)
    assert await near.left() == []


async def test_a_queue_that_does_not_exist_cannot_be_pulled(connection: Connection, name: str) -> None:
    with pytest.raises(EngineUnavailable):
        await asyncio.wait_for(PullConsumer(connection, name, "work").pull(1, 0), 5)


async def test_every_message_is_worked_on_though_the_server_is_killed_again_and_again(
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
                    # The engine confirms no delivery that it forgot when it was killed: it may or may not be settled.
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


async def test_what_was_acknowledged_stays_gone_though_the_server_is_killed_that_moment(
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
    await asyncio.wait_for(connection.wait_up(), 5)
    left = await queue.left()
    assert acknowledged.isdisjoint(left)
    assert 300 - 8 <= len(acknowledged) + len(left) <= 300


async def _is_empty(queue: _Queue) -> bool:
    return await queue.left() == []


def test_a_delay_is_sent_in_nanoseconds_and_none_at_all_when_there_is_none() -> None:
    assert nak(1500) == b'-NAK {"delay": 1500000000}'
    assert nak(0) == nak(-5) == b"-NAK"


async def test_an_ack_of_a_delivery_that_the_engine_forgot_removes_the_message(queue: _Queue) -> None:
    """A crash right after a lease may cost the engine its memory of the delivery; its consumer is done all the same."""
    await queue.publish(b"done", b"not done")
    [done] = await queue.take(1)
    stored = await stream_reader.at(queue.connection, queue.name, 2)
    assert stored is not None
    numbers = replace(done.ref, stream_sequence=2, consumer_sequence=99, stored_at_ns=stored.at_ms * 1_000_000)

    await queue.ack(Delivery(numbers, b""))
    await queue.ack(Delivery(numbers, b""))

    assert await queue.left() == [b"done"]


async def test_an_ack_of_an_earlier_streams_message_does_not_remove_its_successor(queue: _Queue) -> None:
    await queue.publish(b"of the new stream")
    earlier = DeliveryRef(stream_sequence=1, consumer_sequence=99, attempt=1, stored_at_ns=1_700_000_000_000_000_000)

    await queue.ack(Delivery(earlier, b""))

    assert await queue.left() == [b"of the new stream"]
