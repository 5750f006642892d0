"""Mode and count of a fan-out follow the current list of subscribers on every gateway; ended sessions leave it."""

from collections.abc import Sequence

import pytest

from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.circuit_breaker import CircuitBreaker
from postroad.sessions.fanout import FanoutResult
from postroad.sessions.rules import FanoutLimits, FanoutMode
from tests.gateway import ShiftedClock
from tests.sessions.processes import TTL_SECONDS, OpenProcess, Process, numbered

TTL_MS = TTL_SECONDS * 1000
QUEUED = FanoutLimits(queue_threshold=3, inline_max=1000, has_queue=True)
SKIPPED = FanoutLimits(queue_threshold=1, inline_max=3, has_queue=False)
BEYOND = [(QUEUED, FanoutMode.QUEUED), (SKIPPED, FanoutMode.SKIPPED)]


async def subscribed(process: Process, *sessions: str, source: str = "chat") -> None:
    for session in sessions:
        await process.subscribe(session, source)


@pytest.mark.parametrize(("limits", "beyond"), BEYOND)
async def test_a_list_that_shrinks_is_inline_again_on_every_gateway(
    new_process: OpenProcess, limits: FanoutLimits, beyond: FanoutMode
) -> None:
    one, other, third = [await new_process(limits=limits) for _ in range(3)]
    await one.create("chat")
    await subscribed(one, "a", "b", "c", "d", "e")
    for process in (one, other):
        published = await process.publish("chat", b"1")
        assert (published.mode, published.fanout.count) == (beyond, 5)
    for session in ("c", "d", "e"):
        await third.unsubscribe(session, "chat")
    for process in (one, other, third):
        published = await process.publish("chat", b"2")
        assert (published.mode, published.fanout) == (FanoutMode.INLINE, FanoutResult(2, 2))


@pytest.mark.parametrize(("limits", "beyond"), BEYOND)
async def test_a_list_that_grows_beyond_the_limit_is_not_inline_once_more(
    new_process: OpenProcess, limits: FanoutLimits, beyond: FanoutMode
) -> None:
    one, other = [await new_process(limits=limits) for _ in range(2)]
    await one.create("chat")
    await subscribed(one, "a", "b")
    for process in (one, other):
        assert (await process.publish("chat", b"1")).mode is FanoutMode.INLINE
    await subscribed(other, "c", "d")
    for process in (one, other):
        published = await process.publish("chat", b"2")
        assert (published.mode, published.fanout) == (beyond, FanoutResult(4, 0))
    await one.complete_all()
    assert await one.read("d") == numbered([2, 2])


async def test_a_pattern_counts_too(new_process: OpenProcess) -> None:
    one, other = [await new_process(limits=QUEUED) for _ in range(2)]
    await one.create("chat", "application/json")
    await subscribed(one, "a", "b", source="ch*")
    assert (await one.publish("chat", b"1", "application/json")).fanout == FanoutResult(2, 2)
    await subscribed(other, "c", "d", source="ch*")
    assert (await one.publish("chat", b"2", "application/json")).mode is FanoutMode.QUEUED
    for session in ("a", "b", "c"):
        await other.unsubscribe(session, "ch*")
    published = await one.publish("chat", b"3", "application/json")
    assert (published.mode, published.fanout) == (FanoutMode.INLINE, FanoutResult(1, 1))


async def test_an_open_breaker_reports_the_current_count(one: Process, other: Process, clock: ShiftedClock) -> None:
    await one.create("chat")
    await subscribed(one, "a", "b")
    await one.publish("chat", b"1")
    breaker = one.sessions._breakers[one.name("chat")] = CircuitBreaker(1, 60_000)
    breaker.record(0, 1, clock())
    await subscribed(other, "c")
    published = await one.publish("chat", b"2")
    assert (published.mode, published.fanout.count) == (FanoutMode.CIRCUIT_OPEN, 3)


# Ended sessions


async def test_an_expired_session_is_no_success_and_leaves_the_list(one: Process, other: Process, clock: ShiftedClock) -> None:
    await one.create("chat")
    await subscribed(one, "a", "b", "c")
    for process in (one, other):  # both know the expiries
        assert (await process.publish("chat", b"1")).fanout == FanoutResult(3, 3)
    clock.ahead_ms = TTL_MS // 2
    await other.touch("b")
    clock.ahead_ms = TTL_MS + 1
    published = await one.publish("chat", b"2")
    assert (published.mode, published.fanout) == (FanoutMode.INLINE, FanoutResult(3, 1, ended=2))
    assert set(await other.subscribers("chat")) == {"b"}
    assert await one.record("a") is None
    for process in (one, other):
        assert (await process.publish("chat", b"3")).fanout == FanoutResult(1, 1)
    assert await one.read("b") == numbered([1, 1, 2, 3, 3])
    assert await one.clean() == 0, "nothing was left to clean up"


async def test_ended_sessions_do_not_open_the_breaker(one: Process, clock: ShiftedClock) -> None:
    await one.create("chat")
    for number in range(8):
        await one.subscribe(f"s{number}", "chat")
        clock.ahead_ms += TTL_MS + 1
        assert (await one.publish("chat", b"%d" % number)).fanout == FanoutResult(1, 0, ended=1)
    assert one.sessions._breakers == {}


async def test_a_queued_fan_out_ends_expired_sessions(new_process: OpenProcess, clock: ShiftedClock) -> None:
    one = await new_process(limits=QUEUED)
    await one.create("chat")
    await subscribed(one, "a", "b", "c", "d")
    clock.ahead_ms = TTL_MS // 2
    await one.touch("d")
    clock.ahead_ms = TTL_MS + 1
    assert (await one.publish("chat", b"1")).mode is FanoutMode.QUEUED
    await one.complete("chat")
    assert set(await one.subscribers("chat")) == {"d"}
    assert await one.read("d") == numbered([1])
    assert (await one.publish("chat", b"2")).fanout == FanoutResult(1, 1)


async def test_deleting_a_sessions_stream_ends_its_subscriptions_at_once(one: Process, other: Process) -> None:
    await one.create("chat")
    await subscribed(one, "a", "b")
    await one.publish("chat", b"1")
    await other.streams.delete(None, one.name("session:a"))
    assert await one.record("a") is None
    assert (await one.publish("chat", b"2")).fanout == FanoutResult(1, 1)


async def test_records_are_not_read_again_before_the_known_expiry(one: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    await one.create("chat")
    await subscribed(one, *(f"s{number}" for number in range(20)))
    await one.publish("chat", b"0")
    reads: list[object] = []
    newest = stream_reader.newest

    async def counted(connection: Connection, stream: str, subjects: Sequence[str]) -> list[Entry]:
        if connection is one.connection:
            reads.append(subjects)
        return await newest(connection, stream, subjects)

    monkeypatch.setattr(stream_reader, "newest", counted)
    for number in range(5):
        await one.publish("chat", b"%d" % number)
    assert reads == []
