"""What is told of a durable stream's life, and what is counted."""

from collections.abc import Sequence
from typing import Any

import pytest

from postroad.api.streams import StreamClosed, StreamExists
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.identity import ALL_SCOPES, Caller
from postroad.streams.lifecycle import CreateStream
from postroad.streams.records import StreamRecord
from postroad.streams.rules import AppendRequest
from postroad.streams.store import StreamName, StreamStore, record_message
from tests.gateway import Tenant, events_of
from tests.streams.workers import TEXT, Worker
from tests.waiting import eventually


async def told(worker: Worker, tenant: str) -> list[dict[str, Any]]:
    """All stream events of the tenant so far, in order."""
    await worker.outbox.drain()
    return [event for event in await events_of(worker.connection, "TELEMETRY", tenant) if event["event"].startswith("stream.")]


def short(events: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(event["event"].removeprefix("stream."), event["stream_id"]) for event in events]


def by(key_id: str) -> RequestContext:
    return RequestContext(Caller("", key_id, frozenset(ALL_SCOPES)))


async def test_the_life_of_a_stream_is_told(worker: Worker, name: str) -> None:
    stream = StreamName(name, "some/stream")
    await worker.streams.create(by("k-1"), stream, CreateStream(content_type=TEXT), b"x")
    await worker.append(stream, b"data")
    await worker.streams.append(by("k-2"), stream, AppendRequest(None, None, closes=True))
    await worker.streams.delete(by("k-3"), stream)
    events = await told(worker, name)
    assert short(events) == [("created", stream.id), ("closed", stream.id), ("deleted", stream.id)]
    assert [event["key_id"] for event in events] == ["k-1", "k-2", "k-3"]
    assert (events[0]["content_type"], events[0]["forked_from"], events[2]["is_expired"]) == (TEXT, None, False)
    assert len({event["event_id"] for event in events}) == 3


async def test_a_fork_says_what_it_was_made_of(worker: Worker, name: str) -> None:
    source, fork = StreamName(name, "source"), StreamName(name, "fork")
    await worker.create(source, b"x")
    await worker.fork(fork, source)
    assert [event["forked_from"] for event in await told(worker, name)] == [None, "source"]


async def test_one_that_is_made_closed_is_told_as_both(worker: Worker, name: str) -> None:
    await worker.create(StreamName(name, "a"), b"x", is_closed=True)
    assert short(await told(worker, name)) == [("created", "a"), ("closed", "a")]


@pytest.mark.parametrize("claim", [None, ("p", 0, 0)])
async def test_an_append_that_closes_is_told_and_appends_are_not(
    worker: Worker, name: str, claim: tuple[str, int, int] | None
) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)
    await worker.append(stream, b"last", claim, closes=True)
    assert short(await told(worker, name)) == [("created", "a"), ("closed", "a")]


async def test_what_changes_nothing_is_not_told(worker: Worker, other: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    for one in (worker, other, worker):
        await one.create(stream)
    await worker.append(stream, b"last", ("p", 0, 0), closes=True)
    for one in (worker, other):
        await one.append(stream, b"last", ("p", 0, 0), closes=True)
        await one.append(stream, None, closes=True)
        with pytest.raises(StreamClosed):
            await one.append(stream, b"more")
        with pytest.raises(StreamExists):
            await one.create(stream, content_type="application/json")
    await other.outbox.drain()
    assert short(await told(worker, name)) == [("created", "a"), ("closed", "a")]


async def test_an_expired_stream_is_told_once_by_whoever_notices_first(worker: Worker, other: Worker, name: str) -> None:
    for stream in ("swept", "made-anew"):
        await worker.create(StreamName(name, stream), ttl_seconds=60)
    worker.clock.ahead_ms = other.clock.ahead_ms = 61_000
    await worker.create(StreamName(name, "made-anew"))
    assert sorted([await worker.streams.delete_expired(name), await other.streams.delete_expired(name)]) == [0, 1]
    await other.outbox.drain()
    ends = [event for event in await told(worker, name) if event["event"] == "stream.deleted"]
    assert [(event["stream_id"], event["is_expired"], event["key_id"]) for event in ends] == [
        ("made-anew", True, ""),
        ("swept", True, ""),
    ]
    assert short(await told(worker, name))[-3:] == [("deleted", "made-anew"), ("created", "made-anew"), ("deleted", "swept")]


async def test_a_source_that_is_deleted_while_forks_read_from_it_is_told_of_then(worker: Worker, name: str) -> None:
    source, fork = StreamName(name, "source"), StreamName(name, "fork")
    await worker.create(source, b"x")
    await worker.fork(fork, source)
    await worker.streams.delete(None, source)
    assert short(await told(worker, name))[2:] == [("deleted", "source")]
    await worker.streams.delete(None, fork)
    assert short(await told(worker, name))[2:] == [("deleted", "source"), ("deleted", "fork")]


@pytest.mark.parametrize("forks", [1, 2])
async def test_a_source_that_expired_while_forks_read_from_it_is_told_of_when_a_fork_goes(
    worker: Worker, name: str, forks: int
) -> None:
    source = StreamName(name, "source")
    await worker.create(source, b"x", ttl_seconds=60)
    for number in range(forks):
        await worker.fork(StreamName(name, f"fork-{number}"), source, ttl_seconds=10_000)
    worker.clock.ahead_ms = 61_000
    assert await worker.streams.delete_expired(name) == 0
    for number in range(forks):
        await worker.streams.delete(None, StreamName(name, f"fork-{number}"))
    ends = [(event["stream_id"], event["is_expired"]) for event in await told(worker, name) if "is_expired" in event]
    assert ends == [("fork-0", False), ("source", True), *[("fork-1", False)][: forks - 1]]


async def test_what_happened_is_told_although_its_remains_could_not_be_removed(
    worker: Worker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)

    async def away(*_: object, **__: object) -> None:
        raise EngineUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(StreamStore, "purge", away)
        with pytest.raises(EngineUnavailable):
            await worker.streams.delete(None, stream)
    assert short(await told(worker, name)) == [("created", "a"), ("deleted", "a")]


async def test_a_sessions_own_stream_is_told_of_as_the_session(worker: Worker, name: str) -> None:
    stream = StreamName(name, "session:s")
    await worker.store.ensure(name)
    fed = StreamRecord(id=stream.id, content_type=TEXT, created_at_ms=worker.clock(), is_session_stream=True)
    await worker.store.committer(stream).append(record_message(stream, fed))
    await worker.streams.delete(None, stream)
    assert await told(worker, name) == []


async def test_events_over_http_have_the_key_that_did_it(tenant: Tenant) -> None:
    path = "/v1/stream/some/stream"
    (await tenant.client.call("PUT", path, headers={"Content-Type": TEXT})).ok(201)
    (await tenant.client.call("POST", path, headers={"Stream-Closed": "true"})).ok(204)
    (await tenant.client.call("DELETE", path)).ok(204)

    async def all_three() -> list[dict[str, Any]]:
        found = await tenant.events("TELEMETRY")
        return found if len(found) == 3 else []

    found = await eventually(all_three)
    assert [event["event"] for event in found] == ["stream.created", "stream.closed", "stream.deleted"]
    assert {event["key_id"] for event in found} == {tenant.record.id}


# Counted


async def test_appends_are_counted_with_their_bytes_whichever_way_they_go(worker: Worker, name: str) -> None:
    stream, tally = StreamName(name, "a"), worker.traffic.of(name)
    await worker.create(stream, b"not an append")
    await worker.append(stream, b"12345")  # in a round: nothing is known of the stream yet
    await worker.append(stream, b"123")  # the short way
    assert (tally.appends, tally.append_bytes) == (2, 8)
    for _ in range(2):
        await worker.append(stream, b"1234", ("p", 0, 0))
    assert (tally.appends, tally.append_bytes) == (3, 12), "what was appended before is not appended again"
    await worker.append(stream, None, closes=True)
    assert (tally.appends, tally.append_bytes) == (3, 12)
