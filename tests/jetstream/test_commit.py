import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import pytest
from tests.jetstream.streams import committer_of, entries_of, make_stream, new_message
from tests.servers import OpenConnection, Server, TcpProxy
from tests.waiting import eventually

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import CommitPolicy, Committer, Committers, PendingMessage, PublishAck
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.errors import Conflict, EngineFull, EngineRefused, EngineUnavailable, Overloaded, PostroadError, TooLarge
from postroad.kernel.ids import new_id

# The promises hold for any number of pending writes.
ALWAYS_SINGLE = CommitPolicy(batch_min_pending=10_000)
ALWAYS_BATCHED = CommitPolicy(batch_min_pending=1)
SMALL_BATCHES = CommitPolicy(batch_min_pending=2, batch_messages_max=7, batch_bytes_max=5_000)
policies = pytest.mark.parametrize(
    "policy",
    [CommitPolicy(), ALWAYS_SINGLE, ALWAYS_BATCHED, SMALL_BATCHES],
    ids=["default", "single", "batched", "small batches"],
)


async def _outcomes(committer: Committer, messages: Sequence[PendingMessage]) -> list[PublishAck | BaseException]:
    async with asyncio.timeout(30):
        return await asyncio.gather(*[committer.append(one) for one in messages], return_exceptions=True)


async def _all_stored(committer: Committer, messages: Sequence[PendingMessage]) -> list[PublishAck]:
    async with asyncio.timeout(30):
        return await asyncio.gather(*[committer.append(one) for one in messages])


async def _assert_stored_once(
    connection: Connection, stream: str, messages: Sequence[PendingMessage], stored: Sequence[PublishAck]
) -> None:
    """Each message is stored at its acknowledged sequence, and no other."""
    entries = {entry.sequence: entry for entry in await entries_of(connection, stream)}
    assert len(entries) == len(messages) == len(stored)
    for one, place in zip(messages, stored, strict=True):
        entry = entries.pop(place.sequence)
        assert (entry.subject, entry.payload, entry.headers["Nats-Msg-Id"]) == (one.subject, one.payload, one.id)
    assert not entries


# Storing


async def test_a_message_is_stored_with_its_headers(connection: Connection, committers: Committers, name: str) -> None:
    await make_stream(connection, name)
    headers = header_lines([("X-Kind", "größe"), ("X-Other", "a\r\nb")])
    stored = await committers.of(name).append(PendingMessage(f"{name}.a", b"body", "id-1", headers))
    assert stored == PublishAck(1, is_duplicate=False)
    entry = await stream_reader.at(connection, name, 1)
    assert entry is not None and (entry.subject, entry.payload) == (f"{name}.a", b"body")
    assert entry.headers == {"Nats-Msg-Id": "id-1", "X-Kind": "größe", "X-Other": "a  b"}


@policies
async def test_concurrent_messages_are_each_stored_once_at_their_acknowledged_sequence(
    connection: Connection, name: str, policy: CommitPolicy
) -> None:
    await make_stream(connection, name)
    messages = [new_message(f"{name}.{number % 7}", b"payload %d" % number) for number in range(200)]
    stored = await _all_stored(committer_of(connection, name, policy), messages)
    assert not any(place.is_duplicate for place in stored)
    await _assert_stored_once(connection, name, messages, stored)


async def test_two_committers_of_one_stream_receive_their_own_acks(
    connection: Connection, engine_url: str, open_connection: OpenConnection, name: str
) -> None:
    await make_stream(connection, name)
    committers = [committer_of(connection, name), committer_of(await open_connection(engine_url), name)]
    messages = [new_message(f"{name}.a", b"payload %d" % number) for number in range(400)]
    stored = await asyncio.gather(*[committers[number % 2].append(one) for number, one in enumerate(messages)])
    await _assert_stored_once(connection, name, messages, stored)


async def test_sequential_appends_are_stored_in_order(connection: Connection, committers: Committers, name: str) -> None:
    await make_stream(connection, name)
    assert [(await committers.of(name).append(new_message(f"{name}.a"))).sequence for _ in range(20)] == list(range(1, 21))


async def test_more_bytes_than_fit_into_one_batch_are_all_stored(connection: Connection, name: str) -> None:
    await make_stream(connection, name)
    messages = [new_message(f"{name}.a", bytes([number]) * 300_000) for number in range(40)]
    stored = await _all_stored(committer_of(connection, name), messages)
    await _assert_stored_once(connection, name, messages, stored)


async def test_few_bytes_of_single_messages_are_in_flight_at_a_time(
    connection: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_stream(connection, name)
    committer = committer_of(connection, name, CommitPolicy(single_bytes_in_flight_max=1000))
    in_flight = 0
    most = 0
    send = Connection.send

    def count(self: Connection, commands: bytes, *, is_urgent: bool = True) -> None:
        nonlocal in_flight, most
        in_flight += name.encode() in commands
        most = max(most, in_flight)
        send(self, commands, is_urgent=is_urgent)

    async def append() -> None:
        nonlocal in_flight
        await committer.append(new_message(f"{name}.a", b"x" * 400))
        in_flight -= 1

    monkeypatch.setattr(Connection, "send", count)
    await asyncio.gather(*[append() for _ in range(10)])
    assert most <= 3  # two, and one whose caller has not run yet
    assert len(await entries_of(connection, name)) == 10


async def test_a_process_has_one_committer_per_stream(committers: Committers, name: str) -> None:
    assert committers.of(name) is committers.of(name) is not committers.of(name + "-other")
    first = committers.of(name)
    committers.forget(name)
    committers.forget(name + "-never-made")
    assert committers.of(name) is not first


# Preconditions


@policies
async def test_a_failing_precondition_in_a_batch_fails_only_its_message(
    connection: Connection, name: str, policy: CommitPolicy
) -> None:
    await make_stream(connection, name)
    committer = committer_of(connection, name, policy)
    used = await committer.append(new_message(f"{name}.used"))
    messages = [new_message(f"{name}.plain.{number % 3}", b"%d" % number) for number in range(60)]
    messages[20:20] = [new_message(f"{name}.new", b"holds", after=0)]
    messages[30:30] = [new_message(f"{name}.used", b"does not hold", after=0)]
    messages[40:40] = [new_message(f"{name}.used", b"holds too", after=used.sequence)]
    outcomes = await _outcomes(committer, messages)
    failed = [one.payload for one, outcome in zip(messages, outcomes, strict=True) if isinstance(outcome, BaseException)]
    assert failed == [b"does not hold"]
    assert [type(outcome) for outcome in outcomes if isinstance(outcome, BaseException)] == [Conflict]
    payloads = [entry.payload for entry in await entries_of(connection, name)]
    assert sorted(payloads) == sorted([b"x", *(one.payload for one in messages if one.payload != b"does not hold")])
    for one, outcome in zip(messages, outcomes, strict=True):
        if isinstance(outcome, PublishAck):
            assert payloads[outcome.sequence - 1] == one.payload


@policies
async def test_of_concurrent_writes_that_require_an_empty_subject_one_succeeds(
    connection: Connection, name: str, policy: CommitPolicy
) -> None:
    await make_stream(connection, name)
    outcomes = await _outcomes(
        committer_of(connection, name, policy), [new_message(f"{name}.a", b"%d" % number, after=0) for number in range(30)]
    )
    assert Counter(type(outcome) for outcome in outcomes) == {PublishAck: 1, Conflict: 29}
    winner = next(number for number, outcome in enumerate(outcomes) if isinstance(outcome, PublishAck))
    assert [entry.payload for entry in await entries_of(connection, name)] == [b"%d" % winner]


async def test_a_precondition_can_cover_another_subject(connection: Connection, name: str) -> None:
    await make_stream(connection, name)
    committer = committer_of(connection, name)
    meta = (await committer.append(new_message(f"{name}.meta"))).sequence

    def conditional(number: int) -> PendingMessage:
        headers = [
            ("Nats-Expected-Last-Subject-Sequence", str(meta)),
            ("Nats-Expected-Last-Subject-Sequence-Subject", f"{name}.meta"),
        ]
        return PendingMessage(f"{name}.data", b"%d" % number, new_id(), header_lines(headers), is_conditional=True)

    assert {type(outcome) for outcome in await _outcomes(committer, [conditional(number) for number in range(30)])} == {
        PublishAck
    }
    await committer.append(new_message(f"{name}.meta"))
    assert {type(outcome) for outcome in await _outcomes(committer, [conditional(number) for number in range(30)])} == {Conflict}


# Ids


async def test_a_known_id_is_a_duplicate_with_the_sequence_of_the_first_message(connection: Connection, name: str) -> None:
    await make_stream(connection, name)
    committer = committer_of(connection, name)
    await committer.append(new_message(f"{name}.a"))
    first = await committer.append(new_message(f"{name}.a", b"first", message_id="same"))
    again = await committer.append(new_message(f"{name}.a", b"again", message_id="same"))
    assert (first, again) == (PublishAck(2), PublishAck(2, is_duplicate=True, is_known=True))
    assert [entry.payload for entry in await entries_of(connection, name)] == [b"x", b"first"]


@policies
async def test_a_known_id_is_detected_among_many_new_ones(connection: Connection, name: str, policy: CommitPolicy) -> None:
    await make_stream(connection, name)
    committer = committer_of(connection, name, policy)
    first = await committer.append(new_message(f"{name}.a", b"first", message_id="same"))
    messages = [new_message(f"{name}.a", b"%d" % number) for number in range(60)]
    messages[30:30] = [new_message(f"{name}.a", b"again", message_id="same")]
    outcomes = await _outcomes(committer, messages)
    assert outcomes.pop(30) == PublishAck(first.sequence, is_duplicate=True, is_known=True)
    del messages[30]
    stored = [outcome for outcome in outcomes if isinstance(outcome, PublishAck)]
    assert not any(place.is_duplicate for place in stored)
    await _assert_stored_once(
        connection, name, [new_message(f"{name}.a", b"first", message_id="same"), *messages], [first, *stored]
    )


@policies
async def test_an_id_sent_twice_concurrently_is_stored_once(connection: Connection, name: str, policy: CommitPolicy) -> None:
    await make_stream(connection, name)
    messages = [new_message(f"{name}.a", b"%d" % number) for number in range(40)]
    messages += [new_message(f"{name}.a", b"twin", message_id="twin"), new_message(f"{name}.a", b"twin", message_id="twin")]
    outcomes = [
        outcome
        for outcome in await _outcomes(committer_of(connection, name, policy), messages)
        if isinstance(outcome, PublishAck)
    ]
    assert len(outcomes) == 42
    twins = outcomes[-2:]
    assert twins[0].sequence == twins[1].sequence
    assert sorted(twin.is_duplicate for twin in twins) == [False, True]
    assert len(await entries_of(connection, name)) == 41


@pytest.mark.parametrize("after", [None, 0], ids=["plain", "conditional"])
@pytest.mark.parametrize("others", [0, 30])
async def test_a_message_whose_ack_was_lost_is_sent_again_and_is_not_reported_as_a_duplicate(
    connection: Connection, proxy: TcpProxy, open_connection: OpenConnection, name: str, others: int, after: int | None
) -> None:
    """The attempt whose ack was lost stored the message. A precondition no longer holds for that reason."""
    await make_stream(connection, name)
    committer = committer_of(await open_connection(proxy.url), name)
    proxy.drops_replies = True
    messages = [new_message(f"{name}.{number}", b"%d" % number, after=after) for number in range(1 + others)]
    appending = asyncio.ensure_future(_outcomes(committer, messages))
    await asyncio.wait_for(proxy.dropped.wait(), 30)
    await eventually(lambda: _count(connection, name))
    proxy.cut()
    outcomes = [outcome for outcome in await appending if isinstance(outcome, PublishAck)]
    assert not any(outcome.is_duplicate for outcome in outcomes)
    await _assert_stored_once(connection, name, messages, outcomes)


async def _count(connection: Connection, stream: str) -> int:
    info = await stream_info(connection, stream)
    return info.state.messages if info else 0


# Atomic writes


async def test_an_atomic_write_is_stored_as_a_whole(connection: Connection, name: str) -> None:
    await make_stream(connection, name)
    messages = [new_message(f"{name}.marker", b"marker", after=0), new_message(f"{name}.ready", b"message")]
    stored = await committer_of(connection, name).append_together(messages)
    await _assert_stored_once(connection, name, messages, stored)


@policies
async def test_an_atomic_write_is_rejected_as_a_whole(connection: Connection, name: str, policy: CommitPolicy) -> None:
    await make_stream(connection, name)
    committer = committer_of(connection, name, policy)
    await committer.append(new_message(f"{name}.marker", b"first"))
    refused = [new_message(f"{name}.ready", b"never"), new_message(f"{name}.marker", b"never", after=0)]
    others = [new_message(f"{name}.ready", b"other") for _ in range(30)]
    atomic = asyncio.ensure_future(committer.append_together(refused))
    outcomes = await _outcomes(committer, others)
    with pytest.raises(Conflict):
        await atomic
    assert {type(outcome) for outcome in outcomes} == {PublishAck}
    assert Counter(entry.payload for entry in await entries_of(connection, name)) == {b"first": 1, b"other": 30}


@policies
async def test_concurrent_atomic_writes_are_stored_at_their_acknowledged_sequences(
    connection: Connection, name: str, policy: CommitPolicy
) -> None:
    await make_stream(connection, name)
    committer = committer_of(connection, name, policy)
    units = [[new_message(f"{name}.a", b"%d of %d" % (part, number)) for part in range(1 + number % 3)] for number in range(60)]
    stored = await asyncio.gather(*[committer.append_together(unit) for unit in units])
    assert [len(places) for places in stored] == [len(unit) for unit in units]
    for places in stored:
        assert [place.sequence for place in places] == list(range(places[0].sequence, places[0].sequence + len(places)))
    flat = [place for places in stored for place in places]
    await _assert_stored_once(connection, name, [one for unit in units for one in unit], flat)


async def test_concurrent_atomic_pairs_are_stored_completely_or_not_at_all(connection: Connection, name: str) -> None:
    await make_stream(connection, name)
    committer = committer_of(connection, name)
    pairs = [
        [new_message(f"{name}.marker.{number % 20}", after=0), new_message(f"{name}.ready", b"%d" % number)]
        for number in range(60)
    ]
    outcomes = await asyncio.gather(*[committer.append_together(pair) for pair in pairs], return_exceptions=True)
    assert Counter(type(outcome) for outcome in outcomes) == {tuple: 20, Conflict: 40}
    won = {b"%d" % number for number, outcome in enumerate(outcomes) if isinstance(outcome, tuple)}
    assert {entry.payload for entry in await entries_of(connection, name, f"{name}.ready")} == won
    assert len(await entries_of(connection, name, f"{name}.marker.*")) == 20


@pytest.mark.parametrize("after", [None, 0], ids=["plain", "conditional"])
@pytest.mark.parametrize("others", [0, 30])
async def test_an_atomic_write_whose_ack_was_lost_is_sent_again(
    connection: Connection, proxy: TcpProxy, open_connection: OpenConnection, name: str, after: int | None, others: int
) -> None:
    await make_stream(connection, name)
    committer = committer_of(await open_connection(proxy.url), name)
    proxy.drops_replies = True
    messages = [new_message(f"{name}.a", b"one", after=after), new_message(f"{name}.b", b"two")]
    more = [new_message(f"{name}.c", b"%d" % number) for number in range(others)]
    atomic = asyncio.ensure_future(committer.append_together(messages))
    appending = asyncio.ensure_future(_all_stored(committer, more))
    await asyncio.wait_for(proxy.dropped.wait(), 30)
    await eventually(lambda: _count(connection, name))
    proxy.cut()
    stored = [*await asyncio.wait_for(atomic, 30), *await asyncio.wait_for(appending, 30)]
    assert not any(place.is_duplicate for place in stored)
    await _assert_stored_once(connection, name, messages + more, stored)


@pytest.mark.parametrize("allow_rollup_hdrs", [True, False])
async def test_an_atomic_write_that_is_sent_again_is_a_duplicate(
    connection: Connection, name: str, allow_rollup_hdrs: bool
) -> None:
    await make_stream(connection, name, allow_rollup_hdrs=allow_rollup_hdrs)
    committer = committer_of(connection, name)
    messages = [new_message(f"{name}.a", b"one"), new_message(f"{name}.b", b"two")]
    assert list(await committer.append_together(messages)) == [PublishAck(1), PublishAck(2)]
    assert list(await committer.append_together(messages)) == [
        PublishAck(1, is_duplicate=True, is_known=True),
        PublishAck(2, is_duplicate=True, is_known=True),
    ]
    assert await _count(connection, name) == 2


@pytest.mark.parametrize("allow_rollup_hdrs", [True, False])
@pytest.mark.parametrize("known_first", [False, True])
async def test_an_atomic_write_with_a_known_id_stores_nothing(
    connection: Connection, name: str, known_first: bool, allow_rollup_hdrs: bool
) -> None:
    await make_stream(connection, name, allow_rollup_hdrs=allow_rollup_hdrs)
    committer = committer_of(connection, name)
    known = new_message(f"{name}.a", b"known")
    await committer.append(known)
    with pytest.raises(EngineRefused):
        await committer.append_together([known, new_message(f"{name}.b")] if known_first else [new_message(f"{name}.b"), known])
    assert await _count(connection, name) == 1


async def test_each_of_many_writes_gets_its_own_outcome(connection: Connection, name: str) -> None:
    await make_stream(connection, name)
    committer = committer_of(connection, name)
    await committer.append(new_message(f"{name}.used"))
    units = [[new_message(f"{name}.a", b"%d" % number)] for number in range(30)]
    units[10:10] = [[new_message(f"{name}.b", b"never"), new_message(f"{name}.used", b"never", after=0)]]
    units[20:20] = [[new_message(f"{name}.a", b"x" * connection.max_payload)]]
    outcomes = await committer.append_each(units)
    assert [type(outcome) for outcome in outcomes] == [tuple] * 10 + [Conflict] + [tuple] * 9 + [TooLarge] + [tuple] * 11
    payloads = {entry.sequence: entry.payload for entry in await entries_of(connection, name)}
    for unit, outcome in zip(units, outcomes, strict=True):
        if not isinstance(outcome, PostroadError):
            assert [payloads[place.sequence] for place in outcome] == [one.payload for one in unit]
    assert len(payloads) == 31


# Limits


@policies
async def test_a_stream_stores_exactly_as_many_messages_as_its_limit(
    connection: Connection, name: str, policy: CommitPolicy
) -> None:
    await make_stream(connection, name, max_msgs=25, discard="new")
    messages = [new_message(f"{name}.a", b"%d" % number) for number in range(60)]
    outcomes = await _outcomes(committer_of(connection, name, policy), messages)
    assert Counter(type(outcome) for outcome in outcomes) == {PublishAck: 25, EngineFull: 35}
    accepted = [(one, outcome) for one, outcome in zip(messages, outcomes, strict=True) if isinstance(outcome, PublishAck)]
    await _assert_stored_once(connection, name, [one for one, _ in accepted], [place for _, place in accepted])
    problem = next(outcome for outcome in outcomes if isinstance(outcome, EngineFull))
    assert problem.retry_after


async def test_a_stream_with_a_byte_limit_rejects_what_exceeds_it(connection: Connection, name: str) -> None:
    await make_stream(connection, name, max_bytes=5000, discard="new")
    committer = committer_of(connection, name)
    outcomes = await _outcomes(committer, [new_message(f"{name}.a", b"x" * 1000) for _ in range(20)])
    assert Counter(type(outcome) for outcome in outcomes) == {PublishAck: 4, EngineFull: 16}


async def test_a_message_over_the_engines_limit_is_not_sent(connection: Connection, name: str) -> None:
    await make_stream(connection, name)
    backlog = WriteBufferLimit(100 * 1024 * 1024)
    committer = Committer(connection, name, CommitPolicy(), backlog)
    with pytest.raises(TooLarge):
        await committer.append(new_message(f"{name}.a", b"x" * connection.max_payload))
    with pytest.raises(TooLarge):
        await committer.append_together([new_message(f"{name}.a"), new_message(f"{name}.a", b"x" * connection.max_payload)])
    assert connection.is_up
    assert (await committer.append(new_message(f"{name}.a"))).sequence == 1
    assert backlog.bytes == 0


@pytest.mark.parametrize("letter", ["x", "é", "€", "😀"])
async def test_the_largest_accepted_message_is_not_too_large_for_the_engine(
    own_server: Server, open_connection: OpenConnection, name: str, letter: str
) -> None:
    """The engine counts bytes, headers included, and closes the connection of a client that sends more."""
    connection = await open_connection(own_server.url)
    await make_stream(connection, name)
    disconnects: list[None] = []
    connection.on_reconnect(lambda: disconnects.append(None))
    headers = header_lines([("X-Note", letter * 5000)])
    empty = PendingMessage(f"{name}.a", b"", new_id(), headers)
    largest = PendingMessage(f"{name}.a", b"x" * (connection.max_payload - empty.size), new_id(), headers)
    assert largest.size == connection.max_payload
    committer = committer_of(connection, name, CommitPolicy(attempt_seconds=0.5, deadline_seconds=2))
    outcomes = await _outcomes(committer, [largest, *[new_message(f"{name}.a") for _ in range(20)]])
    assert {type(outcome) for outcome in outcomes} == {PublishAck}
    assert not disconnects


async def test_a_message_over_the_limit_of_its_stream_fails_alone(connection: Connection, name: str) -> None:
    await make_stream(connection, name, max_msg_size=1000)
    outcomes = await _outcomes(
        committer_of(connection, name), [new_message(f"{name}.a", b"x" * size) for size in [10] * 20 + [2000] + [10] * 20]
    )
    assert Counter(type(outcome) for outcome in outcomes) == {PublishAck: 40, TooLarge: 1}
    assert isinstance(outcomes[20], TooLarge)


async def test_appends_over_the_write_buffer_limit_are_rejected_and_can_be_repeated(connection: Connection, name: str) -> None:
    await make_stream(connection, name)
    backlog = WriteBufferLimit(20_000)
    committer = Committer(connection, name, CommitPolicy(), backlog)
    outcomes = await _outcomes(committer, [new_message(f"{name}.a", b"x" * 1000) for _ in range(50)])
    counted = Counter(type(outcome) for outcome in outcomes)
    assert counted[PublishAck] + counted[Overloaded] == 50 and 5 <= counted[PublishAck] <= 20
    assert all(outcome.retry_after for outcome in outcomes if isinstance(outcome, Overloaded))
    assert len(await entries_of(connection, name)) == counted[PublishAck], "a rejected append stores nothing"
    assert backlog.bytes == 0
    assert isinstance(await committer.append(new_message(f"{name}.a", b"x" * 1000)), PublishAck)
    with pytest.raises(Overloaded):
        await committer.append(new_message(f"{name}.a", b"x" * 20_000))


async def test_the_write_buffer_limit_covers_all_streams(connection: Connection, name: str) -> None:
    await make_stream(connection, name)
    committers = Committers(connection, CommitPolicy(), WriteBufferLimit(10_000))
    first = asyncio.ensure_future(committers.of(name).append(new_message(f"{name}.a", b"x" * 8000)))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded):
        await committers.of(name + "-other").append(new_message("elsewhere", b"x" * 8000))
    await first


# Cancelled callers, and failures of the engine


@policies
async def test_cancelled_callers_do_not_affect_the_others(connection: Connection, name: str, policy: CommitPolicy) -> None:
    await make_stream(connection, name)
    backlog = WriteBufferLimit(64 * 1024 * 1024)
    committer = Committer(connection, name, policy, backlog)
    messages = [new_message(f"{name}.a", b"%d" % number) for number in range(200)]
    tasks = [asyncio.create_task(committer.append(one)) for one in messages]
    await asyncio.sleep(0)  # they have started, and none is acknowledged
    for number in range(0, 200, 2):
        tasks[number].cancel()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes[::2])
    by_payload = {entry.payload: entry.sequence for entry in await entries_of(connection, name)}
    for one, outcome in zip(messages[1::2], outcomes[1::2], strict=True):
        assert isinstance(outcome, PublishAck) and by_payload[one.payload] == outcome.sequence
    await eventually(lambda: backlog.bytes == 0)


async def test_the_next_append_succeeds_after_all_callers_were_cancelled(connection: Connection, name: str) -> None:
    await make_stream(connection, name)
    backlog = WriteBufferLimit(64 * 1024 * 1024)
    committer = Committer(connection, name, CommitPolicy(), backlog)
    tasks = [asyncio.create_task(committer.append(new_message(f"{name}.a"))) for _ in range(50)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    async with asyncio.timeout(30):
        assert isinstance(await committer.append(new_message(f"{name}.a", b"last")), PublishAck)
    await eventually(lambda: backlog.bytes == 0)
    assert b"last" in [entry.payload for entry in await entries_of(connection, name)]


async def test_every_kind_of_failure_releases_the_write_buffer(connection: Connection, name: str) -> None:
    await make_stream(connection, name, max_msgs=3, discard="new")
    backlog = WriteBufferLimit(64 * 1024 * 1024)
    committer = Committer(connection, name, CommitPolicy(), backlog)
    for messages in (
        [new_message(f"{name}.a")],
        [new_message(f"{name}.a", after=0), new_message(f"{name}.a", after=0)],
        [new_message(f"{name}.a") for _ in range(50)],
    ):
        await _outcomes(committer, messages)
        assert backlog.bytes == 0
    with pytest.raises(EngineFull):
        await committer.append_together([new_message(f"{name}.b"), new_message(f"{name}.c")])
    assert backlog.bytes == 0


async def test_a_message_that_cannot_be_encoded_fails_alone(connection: Connection, name: str) -> None:
    """No code should send such a message, but a mistake must not block its caller or others forever."""
    await make_stream(connection, name)
    backlog = WriteBufferLimit(64 * 1024 * 1024)
    messages = [new_message(f"{name}.a") for _ in range(30)]
    messages[10] = new_message(f"{name}.a", message_id="lone \ud800 surrogate")
    outcomes = await _outcomes(Committer(connection, name, CommitPolicy(), backlog), messages)
    assert Counter(type(outcome) for outcome in outcomes) == {PublishAck: 29, UnicodeEncodeError: 1}
    assert isinstance(outcomes[10], UnicodeEncodeError)
    assert backlog.bytes == 0


@pytest.mark.parametrize("waiting", [1, 50])
async def test_appends_fail_as_unavailable_at_the_deadline_while_the_engine_is_down(
    own_server: Server, open_connection: OpenConnection, name: str, waiting: int
) -> None:
    connection = await open_connection(own_server.url)
    await make_stream(connection, name)
    backlog = WriteBufferLimit(64 * 1024 * 1024)
    committer = Committer(connection, name, CommitPolicy(deadline_seconds=0.5), backlog)
    own_server.kill()
    started = time.monotonic()
    outcomes = await _outcomes(committer, [new_message(f"{name}.a") for _ in range(waiting)])
    assert time.monotonic() - started >= 0.3
    assert {type(outcome) for outcome in outcomes} == {EngineUnavailable}
    assert all(outcome.retry_after for outcome in outcomes if isinstance(outcome, EngineUnavailable))
    assert backlog.bytes == 0
    own_server.start()
    async with asyncio.timeout(30):
        await connection.wait_up()
        assert isinstance(await committer.append(new_message(f"{name}.a")), PublishAck)


async def test_a_suspended_engine_is_unavailable_at_the_deadline(
    own_server: Server, open_connection: OpenConnection, name: str
) -> None:
    """The connection is up, but there is no answer: the deadline applies although one attempt may last longer."""
    connection = await open_connection(own_server.url)
    await make_stream(connection, name)
    committer = committer_of(connection, name, CommitPolicy(attempt_seconds=600, deadline_seconds=0.5))
    with own_server.suspended(), pytest.raises(EngineUnavailable):
        await committer.append(new_message(f"{name}.a"))


@pytest.mark.parametrize("waiting", [1, 50])
async def test_an_attempt_without_an_answer_is_repeated_before_the_deadline(
    connection: Connection, proxy: TcpProxy, open_connection: OpenConnection, name: str, waiting: int
) -> None:
    """The connection is up, but the first answers are lost: each message is sent again, and stored once."""
    await make_stream(connection, name)
    policy = CommitPolicy(batch_min_pending=10_000, attempt_seconds=0.3, deadline_seconds=20)
    committer = committer_of(await open_connection(proxy.url), name, policy)
    proxy.drops_replies = True
    messages = [new_message(f"{name}.a", b"%d" % number) for number in range(waiting)]
    appending = asyncio.ensure_future(_all_stored(committer, messages))
    await asyncio.wait_for(proxy.dropped.wait(), 30)
    await eventually(lambda: _has(connection, name, waiting))
    proxy.drops_replies = False
    stored = await appending
    assert not any(one.is_duplicate for one in stored)
    await _assert_stored_once(connection, name, messages, stored)
    assert (committer._singles, committer._in_flight.count) == ({}, 0)


async def _has(connection: Connection, stream: str, count: int) -> bool:
    return await _count(connection, stream) == count


async def test_closing_a_committer_fails_its_unanswered_writes(
    own_server: Server, open_connection: OpenConnection, name: str
) -> None:
    connection = await open_connection(own_server.url)
    await make_stream(connection, name)
    committer = committer_of(connection, name, CommitPolicy(attempt_seconds=0.3, deadline_seconds=20))
    with own_server.suspended():
        appending = asyncio.ensure_future(committer.append(new_message(f"{name}.a")))
        await eventually(lambda: committer._singles)
        committer.close(EngineRefused("the stream was deleted"))
        with pytest.raises(EngineRefused, match="the stream was deleted"):
            async with asyncio.timeout(30):
                await appending


async def test_a_missing_stream_is_unavailable(connection: Connection, name: str) -> None:
    with pytest.raises(EngineUnavailable):
        await committer_of(connection, name, CommitPolicy(deadline_seconds=0.3)).append(new_message(f"{name}.a"))


async def test_acknowledged_messages_are_neither_lost_nor_duplicated_when_the_engine_is_killed(
    own_server: Server, open_connection: OpenConnection, name: str
) -> None:
    connection = await open_connection(own_server.url)
    await make_stream(connection, name)
    committer = committer_of(connection, name, CommitPolicy(deadline_seconds=30))
    acknowledged: dict[int, PendingMessage] = {}
    messages = iter([new_message(f"{name}.{number % 5}", b"message %d" % number) for number in range(2000)])

    async def write_on() -> None:
        for one in messages:
            place = await committer.append(one)
            assert place.sequence not in acknowledged
            acknowledged[place.sequence] = one

    async def kill_twice() -> None:
        for at in (400, 1200):
            await eventually(lambda at=at: len(acknowledged) >= at, seconds=20)  # type: ignore[misc]
            own_server.kill()
            await eventually(lambda: not connection.is_up)
            own_server.start()

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(kill_twice())
        for _ in range(64):
            group.create_task(write_on())
    assert len(acknowledged) == 2000
    stored = {entry.sequence: entry for entry in await entries_of(connection, name)}
    assert len(stored) == 2000
    for sequence, one in acknowledged.items():
        assert (stored[sequence].payload, stored[sequence].headers["Nats-Msg-Id"]) == (one.payload, one.id)
