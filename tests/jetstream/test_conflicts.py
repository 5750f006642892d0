"""Batches of which some preconditions fail, on one server and on a cluster of three."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.cluster import Cluster
from tests.jetstream.streams import committer_of, entries_of, make_stream, new_message, wait_replicated
from tests.servers import OpenConnection, TcpProxy
from tests.waiting import eventually

from postroad.jetstream import commit, metrics, stream_reader
from postroad.jetstream.commit import Committer, PendingMessage, PublishAck
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.protocol import header_lines
from postroad.kernel.errors import Conflict, EngineUnavailable
from postroad.kernel.ids import new_id

Outcome = Sequence[PublishAck] | BaseException


async def _opened(open_connection: OpenConnection, place: ConnectionSettings, stream: str) -> Connection:
    connection = await open_connection(place)
    await make_stream(connection, stream, num_replicas=3 if place.has_replicas else 1, allow_direct=True)
    return connection


def _keyed(stream: str, key: int, number: int) -> list[PendingMessage]:
    """Like a message with an idempotency key: a marker that must be the first one, and the message."""
    return [
        new_message(f"{stream}.idem.{key}", b"%d" % number, after=0),
        new_message(f"{stream}.ready", b"%d" % number),
    ]


async def _outcomes(committer: Committer, writes: Sequence[Sequence[PendingMessage]]) -> list[Outcome]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*[committer.append_together(write) for write in writes], return_exceptions=True)


def _sent_alone() -> float:
    return float(metrics.commit_separate_writes._value.get())


async def _assert_one_message_per_key(connection: Connection, stream: str, won: dict[int, int]) -> None:
    """`won`: number of the stored message by key."""
    markers = await _entries_by_subject(connection, stream, f"{stream}.idem.*")
    messages = [int(entry.payload) for entry in await entries_of(connection, stream, f"{stream}.ready")]
    assert markers == {f"{stream}.idem.{key}": [number] for key, number in won.items()}
    assert sorted(messages) == sorted(won.values())


async def _entries_by_subject(connection: Connection, stream: str, pattern: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for entry in await entries_of(connection, stream, pattern):
        found.setdefault(entry.subject, []).append(int(entry.payload))
    return found


@pytest.mark.parametrize("repeated", [1, 10, 128])
async def test_repeated_keys_fail_alone_and_the_others_are_stored_together(
    place: ConnectionSettings, open_connection: OpenConnection, name: str, repeated: int
) -> None:
    connection = await _opened(open_connection, place, name)
    committer = committer_of(connection, name)
    await _outcomes(committer, [_keyed(name, key, key) for key in range(repeated)])
    await wait_replicated(connection, name)
    sent_alone = _sent_alone()
    order = list(range(256))
    random.Random(7).shuffle(order)
    outcomes = await _outcomes(committer, [_keyed(name, key, 1000 + key) for key in order])
    failed = {key for key, outcome in zip(order, outcomes, strict=True) if isinstance(outcome, Conflict)}
    assert failed == set(range(repeated))
    assert Counter(type(outcome) for outcome in outcomes) == {tuple: 256 - repeated, Conflict: repeated}
    assert _sent_alone() == sent_alone
    await wait_replicated(connection, name)
    await _assert_one_message_per_key(connection, name, {key: key if key < repeated else 1000 + key for key in range(256)})


async def test_while_keys_are_repeated_a_batch_is_sent_once(
    place: ConnectionSettings, open_connection: OpenConnection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read before a batch replaces its rejection, until some reads have found nothing."""
    monkeypatch.setattr(commit, "_READS_FIRST", 2)
    connection = await _opened(open_connection, place, name)
    committer = committer_of(connection, name)
    await _outcomes(committer, [_keyed(name, key, key) for key in range(10)])
    await wait_replicated(connection, name)
    really, reads = stream_reader.last_sequences_of, list[int]()

    async def spy(connection: Connection, stream: str, subjects: Sequence[str]) -> list[tuple[str, int]]:
        reads.append(len(subjects))
        return await really(connection, stream, subjects)

    monkeypatch.setattr(stream_reader, "last_sequences_of", spy)
    counted = []
    for batch, first in enumerate((0, 5, 100, 200, 300)):  # with ten repeated keys, five, none, none and none
        rejected = metrics.commit_rejected_batches._value.get()
        keys = [*range(first, first + 10), *range(1000 + 100 * batch, 1090 + 100 * batch)]
        outcomes = await _outcomes(committer, [_keyed(name, key, key) for key in keys])
        conflicts = sum(isinstance(outcome, Conflict) for outcome in outcomes)
        await wait_replicated(connection, name)
        counted.append((conflicts, metrics.commit_rejected_batches._value.get() - rejected, list(reads)))
        reads.clear()
    assert counted == [(10, 1, [100]), (5, 0, [100]), (0, 0, [100]), (0, 0, [100]), (0, 0, [])]


async def test_a_batch_of_cancelled_writes_after_a_conflict_does_no_harm(connection: Connection, name: str) -> None:
    await make_stream(connection, name)
    committer = committer_of(connection, name)
    for expected in (20, 0):
        outcomes = await _outcomes(committer, [_keyed(name, key, key) for key in range(20)])
        assert sum(not isinstance(outcome, BaseException) for outcome in outcomes) == expected
    cancelled = [committer.submit(_keyed(name, key, key)) for key in range(20, 40)]
    for one in cancelled:
        one.cancel()
    await asyncio.sleep(0)
    assert [type(outcome) for outcome in await _outcomes(committer, [_keyed(name, 100, 100)])] == [tuple]


async def test_the_first_of_a_batch_with_a_key_wins(
    place: ConnectionSettings, open_connection: OpenConnection, name: str
) -> None:
    connection = await _opened(open_connection, place, name)
    sent_alone = _sent_alone()
    outcomes = await _outcomes(committer_of(connection, name), [_keyed(name, number % 20, number) for number in range(200)])
    assert [type(outcome) for outcome in outcomes] == [tuple] * 20 + [Conflict] * 180
    assert _sent_alone() == sent_alone
    await wait_replicated(connection, name)
    await _assert_one_message_per_key(connection, name, {key: key for key in range(20)})


async def test_gateways_that_compete_for_keys_store_each_once(
    place: ConnectionSettings, open_connection: OpenConnection, name: str
) -> None:
    connection = await _opened(open_connection, place, name)
    committers = [committer_of(connection, name), *[committer_of(await open_connection(place), name) for _ in range(2)]]
    won: dict[int, int] = {}

    async def write(number: int) -> None:
        key = number % 150
        try:
            await committers[number % 3].append_together(_keyed(name, key, number))
        except Conflict:
            return
        assert won.setdefault(key, number) == number, "a key is won once"

    async with asyncio.timeout(120):
        await asyncio.gather(*[write(number) for number in range(600)])
    assert len(won) == 150
    await wait_replicated(connection, name)
    await _assert_one_message_per_key(connection, name, won)


async def test_appends_with_a_pattern_as_precondition_are_judged_by_all_subjects_under_it(
    connection: Connection, name: str
) -> None:
    await make_stream(connection, name)
    committer = committer_of(connection, name)
    last = [
        (await committer.append_together([new_message(f"{name}.{number}.d"), new_message(f"{name}.{number}.m")]))[1].sequence
        for number in range(20)
    ]
    for number in range(5):  # changes by others: of the data, or of the record
        await committer.append(new_message(f"{name}.{number}.{'dm'[number % 2]}"))
    sent_alone = _sent_alone()
    outcomes = await _outcomes(committer, [[_under(name, number, last[number])] for number in range(20)])
    assert [type(outcome) for outcome in outcomes] == [Conflict] * 5 + [tuple] * 15
    assert _sent_alone() == sent_alone


def _under(stream: str, number: int, last: int) -> PendingMessage:
    parent = f"{stream}.{number}"
    headers = [
        ("Nats-Expected-Last-Subject-Sequence", str(last)),
        ("Nats-Expected-Last-Subject-Sequence-Subject", f"{parent}.*"),
    ]
    return PendingMessage(f"{parent}.d", b"x", new_id(), header_lines(headers), is_conditional=True, precondition_subject=parent)


async def test_more_preconditions_than_one_read_returns_are_judged(connection: Connection, name: str) -> None:
    await make_stream(connection, name)
    committer = committer_of(connection, name)
    for number in (3, 700, 999):
        await committer.append(new_message(f"{name}.{number}"))
    sent_alone = _sent_alone()
    outcomes = await _outcomes(committer, [[new_message(f"{name}.{number}", after=0)] for number in range(1000)])
    assert [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Conflict)] == [3, 700, 999]
    assert _sent_alone() == sent_alone


async def test_a_failed_precondition_beside_large_entries_fails_alone(connection: Connection, name: str) -> None:
    """The newest entries are too large to be read together, so the writes are sent one by one."""
    await make_stream(connection, name)
    committer = committer_of(connection, name)
    last = [(await committer.append(new_message(f"{name}.{number}", b"x" * 500_000))).sequence for number in range(20)]
    sent_alone = _sent_alone()
    writes = [[new_message(f"{name}.{number}", after=last[number] if number else 0)] for number in range(20)]
    assert [type(outcome) for outcome in await _outcomes(committer, writes)] == [Conflict] + [tuple] * 19
    assert _sent_alone() == sent_alone + 20


@pytest.mark.parametrize("wrong_reads", [1, 1000])
@pytest.mark.parametrize("lag", ["lacks new entries", "has deleted entries"])
async def test_a_replica_that_lags_decides_nothing(
    engine_url: str, open_connection: OpenConnection, name: str, monkeypatch: pytest.MonkeyPatch, lag: str, wrong_reads: int
) -> None:
    """A simulated cluster: the read that any replica answers is outdated, that of the leader is not."""
    connection = await _opened(open_connection, ConnectionSettings((engine_url,), name="tests"), name)
    monkeypatch.setattr(connection, "settings", replace(connection.settings, has_replicas=True))
    committer = committer_of(connection, name)
    last = [(await committer.append(new_message(f"{name}.{number}"))).sequence for number in range(30)]
    really, left = stream_reader.last_sequences_of, [wrong_reads]

    async def outdated(connection: Connection, stream: str, subjects: Sequence[str]) -> list[tuple[str, int]]:
        left[0] -= 1
        if left[0] < 0:
            return await really(connection, stream, subjects)
        return [] if lag == "lacks new entries" else [(subject, 5) for subject in subjects]

    monkeypatch.setattr(stream_reader, "last_sequences_of", outdated)
    # Two of them fail: one expects an entry that is not the last, one that there is none; the outdated replica agrees with both.
    expected = [*last[:28], 5, 0]
    writes = [[new_message(f"{name}.{number}", after=expected[number])] for number in range(30)]
    outcomes = await _outcomes(committer, writes)
    assert [type(outcome) for outcome in outcomes] == [tuple] * 28 + [Conflict] * 2
    assert len(await entries_of(connection, name)) == 58


async def test_writes_are_sent_one_by_one_if_the_preconditions_cannot_be_read(
    connection: Connection, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_stream(connection, name)

    async def unavailable(*_: object) -> list[tuple[str, int]]:
        raise EngineUnavailable("not answered", retry_after=1)

    monkeypatch.setattr(stream_reader, "last_sequences_of", unavailable)
    outcomes = await _outcomes(committer_of(connection, name), [_keyed(name, number % 20, number) for number in range(40)])
    assert Counter(type(outcome) for outcome in outcomes) == {tuple: 20, Conflict: 20}


async def test_a_write_whose_ack_was_lost_is_not_in_conflict_with_itself(
    connection: Connection, proxy: TcpProxy, open_connection: OpenConnection, name: str
) -> None:
    """The batch was stored, its ack was lost: every precondition fails because of the first attempt."""
    await make_stream(connection, name)
    await committer_of(connection, name).append(new_message(f"{name}.ready"))
    committer = committer_of(await open_connection(proxy.url), name)
    proxy.drops_replies = True
    appending = asyncio.ensure_future(_outcomes(committer, [_keyed(name, key, key) for key in range(30)]))
    await asyncio.wait_for(proxy.dropped.wait(), 30)

    async def is_stored() -> bool:
        return len(await entries_of(connection, name)) == 61

    await eventually(is_stored)
    proxy.cut()
    outcomes = await appending
    assert {type(outcome) for outcome in outcomes} <= {list, tuple}
    assert not any(ack.is_duplicate for outcome in outcomes if not isinstance(outcome, BaseException) for ack in outcome)
    assert len(await entries_of(connection, name)) == 61


@pytest.mark.slow
@pytest.mark.xdist_group("jetstream cluster")
@pytest.mark.timeout(240)
async def test_a_replica_that_stood_still_decides_nothing(cluster: Cluster, open_connection: OpenConnection, name: str) -> None:
    """A follower is paused while keys are written, and answers reads again while they are repeated."""
    place = ConnectionSettings(tuple(node.url for node in cluster.nodes), name="tests", has_replicas=True)
    connection = await _opened(open_connection, place, name)
    committer = committer_of(connection, name)
    leader = await cluster.leader(name)
    here = next(node for node in cluster.nodes if str(node.port) in connection.server)
    follower = next(node for node in cluster.nodes if node not in (leader, here))
    follower.pause()
    try:
        first = await _outcomes(committer, [_keyed(name, key, key) for key in range(100)])
    finally:
        follower.resume()
    assert {type(outcome) for outcome in first} == {tuple}
    outcomes = await _outcomes(committer, [_keyed(name, key, 1000 + key) for key in range(50, 250)])
    assert [type(outcome) for outcome in outcomes] == [Conflict] * 50 + [tuple] * 150
    await wait_replicated(connection, name)
    await _assert_one_message_per_key(connection, name, {key: key if key < 100 else 1000 + key for key in range(250)})
