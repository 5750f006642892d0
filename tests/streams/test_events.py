"""Events and usage counters of durable streams."""

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


async def stream_events(worker: Worker, tenant: str) -> list[dict[str, Any]]:
    """All stream events of the tenant so far, in order."""
    await worker.outbox.drain()
    return [event for event in await events_of(worker.connection, "TELEMETRY", tenant) if event["event"].startswith("stream.")]


def short(events: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(event["event"].removeprefix("stream."), event["stream_id"]) for event in events]


def by(key_id: str) -> RequestContext:
    return RequestContext(Caller("", key_id, frozenset(ALL_SCOPES)))


async def test_create_close_and_delete_are_recorded(worker: Worker, name: str) -> None:
    stream = StreamName(name, "some/stream")
    await worker.streams.create(by("k-1"), stream, CreateStream(content_type=TEXT), b"x")
    await worker.append(stream, b"data")
    await worker.streams.append(by("k-2"), stream, AppendRequest(None, None, closes=True))
    await worker.streams.delete(by("k-3"), stream)
    events = await stream_events(worker, name)
    assert short(events) == [("created", stream.id), ("closed", stream.id), ("deleted", stream.id)]
    assert [event["key_id"] for event in events] == ["k-1", "k-2", "k-3"]
    assert (events[0]["content_type"], events[0]["forked_from"], events[2]["is_expired"]) == (TEXT, None, False)
    assert len({event["event_id"] for event in events}) == 3


async def test_the_event_of_a_fork_names_its_source(worker: Worker, name: str) -> None:
    source, fork = StreamName(name, "source"), StreamName(name, "fork")
    await worker.create(source, b"x")
    await worker.fork(fork, source)
    assert [event["forked_from"] for event in await stream_events(worker, name)] == [None, "source"]


async def test_a_stream_created_closed_is_recorded_as_created_and_closed(worker: Worker, name: str) -> None:
    await worker.create(StreamName(name, "a"), b"x", is_closed=True)
    assert short(await stream_events(worker, name)) == [("created", "a"), ("closed", "a")]


@pytest.mark.parametrize("claim", [None, ("p", 0, 0)])
async def test_a_closing_append_is_recorded_and_other_appends_are_not(
    worker: Worker, name: str, claim: tuple[str, int, int] | None
) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)
    await worker.append(stream, b"last", claim, closes=True)
    assert short(await stream_events(worker, name)) == [("created", "a"), ("closed", "a")]


async def test_requests_without_effect_are_not_recorded(worker: Worker, other: Worker, name: str) -> None:
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
    assert short(await stream_events(worker, name)) == [("created", "a"), ("closed", "a")]


async def test_an_expired_stream_is_recorded_once(worker: Worker, other: Worker, name: str) -> None:
    for stream in ("swept", "recreated"):
        await worker.create(StreamName(name, stream), ttl_seconds=60)
    worker.clock.ahead_ms = other.clock.ahead_ms = 61_000
    await worker.create(StreamName(name, "recreated"))
    assert sorted([await worker.streams.delete_expired(name), await other.streams.delete_expired(name)]) == [0, 1]
    await other.outbox.drain()
    ends = [event for event in await stream_events(worker, name) if event["event"] == "stream.deleted"]
    assert [(event["stream_id"], event["is_expired"], event["key_id"]) for event in ends] == [
        ("recreated", True, ""),
        ("swept", True, ""),
    ]
    assert short(await stream_events(worker, name))[-3:] == [
        ("deleted", "recreated"),
        ("created", "recreated"),
        ("deleted", "swept"),
    ]


async def test_a_soft_deleted_source_is_recorded_at_once(worker: Worker, name: str) -> None:
    source, fork = StreamName(name, "source"), StreamName(name, "fork")
    await worker.create(source, b"x")
    await worker.fork(fork, source)
    await worker.streams.delete(None, source)
    assert short(await stream_events(worker, name))[2:] == [("deleted", "source")]
    await worker.streams.delete(None, fork)
    assert short(await stream_events(worker, name))[2:] == [("deleted", "source"), ("deleted", "fork")]


@pytest.mark.parametrize("forks", [1, 2])
async def test_an_expired_source_is_recorded_when_a_fork_is_deleted(worker: Worker, name: str, forks: int) -> None:
    source = StreamName(name, "source")
    await worker.create(source, b"x", ttl_seconds=60)
    for number in range(forks):
        await worker.fork(StreamName(name, f"fork-{number}"), source, ttl_seconds=10_000)
    worker.clock.ahead_ms = 61_000
    assert await worker.streams.delete_expired(name) == 0
    for number in range(forks):
        await worker.streams.delete(None, StreamName(name, f"fork-{number}"))
    ends = [(event["stream_id"], event["is_expired"]) for event in await stream_events(worker, name) if "is_expired" in event]
    assert ends == [("fork-0", False), ("source", True), *[("fork-1", False)][: forks - 1]]


async def test_a_delete_is_recorded_although_the_purge_fails(worker: Worker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)

    async def away(*_: object, **__: object) -> None:
        raise EngineUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(StreamStore, "purge", away)
        with pytest.raises(EngineUnavailable):
            await worker.streams.delete(None, stream)
    assert short(await stream_events(worker, name)) == [("created", "a"), ("deleted", "a")]


async def test_the_stream_of_a_session_is_not_recorded_as_deleted(worker: Worker, name: str) -> None:
    stream = StreamName(name, "session:s")
    await worker.store.ensure(name)
    fed = StreamRecord(id=stream.id, content_type=TEXT, created_at_ms=worker.clock(), is_session_stream=True)
    await worker.store.committer(stream).append(record_message(stream, fed))
    await worker.streams.delete(None, stream)
    assert await stream_events(worker, name) == []


async def test_events_of_http_requests_have_the_key_id(tenant: Tenant) -> None:
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


# Usage counters


async def test_appends_and_their_bytes_are_counted_on_both_paths(worker: Worker, name: str) -> None:
    stream, tally = StreamName(name, "a"), worker.usage.of(name)
    await worker.create(stream, b"not an append")
    await worker.append(stream, b"12345")  # in a batch: there is no snapshot yet
    await worker.append(stream, b"123")  # on the fast path
    assert (tally.appends, tally.append_bytes) == (2, 8)
    for _ in range(2):
        await worker.append(stream, b"1234", ("p", 0, 0))
    assert (tally.appends, tally.append_bytes) == (3, 12), "a duplicate is not counted"
    await worker.append(stream, None, closes=True)
    assert (tally.appends, tally.append_bytes) == (3, 12)
