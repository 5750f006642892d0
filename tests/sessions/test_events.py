"""Events of sessions."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from postroad.api.sessions import SessionNotFound
from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import EngineUnavailable
from postroad.streams.store import StreamStore
from tests.gateway import ShiftedClock, events_of
from tests.sessions.processes import JSON, TTL_SECONDS, Process
from tests.sessions.test_service import run_after_snapshot

TTL_MS = TTL_SECONDS * 1000


async def session_events(process: Process, *others: Process) -> list[dict[str, Any]]:
    """All session events of the tenant, in order."""
    for one in (process, *others):
        await one.outbox.drain()
    events = await events_of(process.connection, "TELEMETRY", process.tenant)
    return [event for event in events if event["event"].startswith("session.")]


def once(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without identical repetitions: the end of a session is recorded again if its removal was interrupted."""
    return [event for place, event in enumerate(events) if event not in events[:place]]


def short(events: Sequence[dict[str, Any]]) -> list[str]:
    return [event["event"].removeprefix("session.") for event in events]


async def test_all_operations_on_a_session_are_recorded(one: Process) -> None:
    await one.create("chat")
    first = await one.subscribe("s", "chat")
    await one.create("news")
    await one.subscribe("s", "news")
    until = await one.touch("s")
    await one.unsubscribe("s", "chat")
    await one.end("s")
    events = await session_events(one)
    assert short(events) == ["subscribed", "subscribed", "touched", "unsubscribed", "ended"]
    assert {event["session_id"] for event in events} == {"s"}
    assert [(event["stream_id"], event["is_new"]) for event in events[:2]] == [("chat", True), ("news", False)]
    assert (events[0]["expires_at"], events[2]["expires_at"]) == (rfc3339(first.expires_at_ms), rfc3339(until))
    assert events[3]["stream_id"] == "chat"
    assert (events[4]["is_expired"], events[4]["subscriptions"]) == (False, 1)
    assert len({event["event_id"] for event in events}) == 5


async def test_the_stream_of_a_session_has_no_events(one: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    await one.end("s")
    await one.outbox.drain()
    events = await events_of(one.connection, "TELEMETRY", one.tenant)
    assert [event["stream_id"] for event in events if event["event"].startswith("stream.")] == ["chat"]


async def test_a_repeated_subscribe_is_recorded_as_a_touch(one: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    again = await one.subscribe("s", "chat")
    events = await session_events(one)
    assert short(events) == ["subscribed", "touched"]
    assert events[1]["expires_at"] == rfc3339(again.expires_at_ms)


async def test_requests_without_effect_are_not_recorded(one: Process) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    for _ in range(2):
        await one.unsubscribe("s", "chat")
    await one.end("s")
    for call in (one.end("s"), one.touch("s"), one.unsubscribe("s", "chat")):
        with pytest.raises(SessionNotFound):
            await call
    assert await one.clean() == 0
    assert short(await session_events(one)) == ["subscribed", "unsubscribed", "ended"]


async def test_concurrent_clean_ups_record_identical_events(one: Process, other: Process, clock: ShiftedClock) -> None:
    for source in ("a", "b"):
        await one.create(source)
        await one.subscribe("s", source)
    clock.ahead_ms = TTL_MS + 1
    assert any(await asyncio.gather(*(process.clean() for process in (one, other) * 3)))
    assert await one.clean() == 0
    events = once(await session_events(one, other))
    assert short(events) == ["subscribed", "subscribed", "ended"]
    assert (events[2]["is_expired"], events[2]["subscriptions"]) == (True, 2)


@pytest.mark.parametrize("has_subscriptions", [True, False])
async def test_a_session_whose_stream_was_deleted_is_not_recorded_as_expired(
    one: Process, other: Process, has_subscriptions: bool
) -> None:
    """Concurrent clean-ups conflict on the session's record only."""
    await one.create("chat")
    await one.subscribe("s", "chat")
    if not has_subscriptions:
        await one.unsubscribe("s", "chat")
    await one.drop_stream("session:s")
    assert any(await asyncio.gather(*(process.clean() for process in (one, other) * 3)))
    [ended] = once([event for event in await session_events(one, other) if event["event"] == "session.ended"])
    assert (ended["is_expired"], ended["subscriptions"]) == (False, int(has_subscriptions))


async def test_an_interrupted_end_is_recorded_again_identically(
    one: Process, other: Process, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    clock.ahead_ms = TTL_MS + 1

    async def dies(*_: Any, **__: Any) -> None:
        raise EngineUnavailable("died")

    for method in ("purge", "purge_subject"):
        with monkeypatch.context() as patched:
            patched.setattr(StreamStore, method, dies)
            with pytest.raises(EngineUnavailable):
                await one.clean()
        clock.ahead_ms += 5000
    assert await other.clean() == 1
    first, *more = [event for event in await session_events(one, other) if event["event"] == "session.ended"]
    assert more == [first, first]
    assert (first["is_expired"], first["subscriptions"]) == (True, 1)
    assert await one.record("s") is None


async def test_a_session_that_replaces_an_expired_one_records_both(one: Process, clock: ShiftedClock) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")
    clock.ahead_ms = TTL_MS + 1
    assert (await one.subscribe("s", "chat")).is_new
    events = await session_events(one)
    assert short(events) == ["subscribed", "ended", "subscribed"]
    assert (events[1]["is_expired"], events[1]["subscriptions"], events[2]["is_new"]) == (True, 1, True)


async def test_a_session_that_replaces_an_interrupted_end_records_it_identically(
    one: Process, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await one.create("chat")
    await one.subscribe("s", "chat")

    async def dies(*_: Any, **__: Any) -> None:
        raise EngineUnavailable("died")

    with monkeypatch.context() as patched:
        patched.setattr(StreamStore, "purge", dies)
        with pytest.raises(EngineUnavailable):
            await one.end("s")
    clock.ahead_ms = 5000
    assert (await one.subscribe("s", "chat")).is_new
    events = await session_events(one)
    assert short(events) == ["subscribed", "ended", "ended", "subscribed"]
    assert events[1] == events[2]


async def test_a_concurrent_unsubscribe_does_not_restore_an_ended_session(
    one: Process, other: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both write the session's record."""
    for source in ("a", "b"):
        await one.create(source)
        await one.subscribe("s", source)
    run_after_snapshot(monkeypatch, one, lambda: other.unsubscribe("s", "a"))
    await one.end("s")
    assert await one.record("s") is None
    events = await session_events(one, other)
    assert sorted(short(events)) == ["ended", "subscribed", "subscribed", "unsubscribed"]
    assert [event["subscriptions"] for event in events if event["event"] == "session.ended"] == [1]


async def test_copies_are_counted(one: Process) -> None:
    await one.create("chat", JSON)
    for session in ("a", "b", "c"):
        await one.subscribe(session, "chat")
    await one.publish("chat", b"1", JSON)
    await one.publish("chat", b"2", JSON)
    tally = one.usage.of(one.tenant)
    assert (tally.fanout_messages, tally.appends, tally.append_bytes) == (6, 2, 2)
