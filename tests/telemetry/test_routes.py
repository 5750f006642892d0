import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import PendingMessage
from postroad.kernel.event import PLATFORM, Event, event_name
from postroad.kernel.identity import Caller, Scope
from postroad.kernel.ids import new_id
from postroad.registry import event_types
from postroad.telemetry.frames import encode_event
from postroad.telemetry.routes import EventVisibility
from tests.gateway import EventReader, Gateway, ServerSentEvent, Tenant, events_of, gateway_settings, running_gateway
from tests.telemetry.samples import sample
from tests.waiting import eventually

STREAM = "/v1/telemetry/stream"


async def one_job(tenant: Tenant, queue: str, payload: object = 1) -> Any:
    """Publish, lease and acknowledge a message."""
    published = await tenant.publish(queue, payload)
    [message] = await tenant.pull(queue)
    (await tenant.ack(queue, message["receiptId"])).ok()
    return published


async def nothing_more(reader: EventReader) -> bool:
    try:
        return await reader.next(0.2) is None
    except TimeoutError:
        return True


def names(events: list[Any] | Any) -> list[str]:
    return [event.event for event in events]


# Events


async def test_the_events_of_a_job_are_streamed(tenant: Tenant) -> None:
    queue = await tenant.queue("orders")
    async with tenant.client.events(f"{STREAM}?events=job.*") as reader:
        published = await one_job(tenant, queue)
        events = await reader.take(3)
    assert names(events) == ["job.queued", "job.leased", "job.done"]
    for event in events:
        sent = event.json
        assert sent["event"] == event.event
        assert (sent["tenant"], sent["queue"], sent["key_id"]) == (tenant.id, "orders", tenant.record.id)
        assert (sent["job_id"], sent["message_id"]) == (published["jobId"], published["messageId"])
        assert sent["event_id"] and sent["timestamp"] and sent["version"] == 1
    assert events[0].json["timestamp"] == published["enqueuedAt"]


async def test_the_events_of_queues_are_streamed(tenant: Tenant) -> None:
    async with tenant.client.events(STREAM) as reader:
        await tenant.queue("orders")
        (await tenant.client.put("/v1/queues/orders", {"visibilityTimeoutMs": 1})).ok()
        assert (await tenant.client.delete("/v1/queues/orders")).status == 204
        events = await reader.take(4)
    assert sorted(names(events)) == ["queue.changed", "queue.changed", "queue.deleted", "queue.purged"]
    assert [event.json["is_new"] for event in events if event.event == "queue.changed"] == [True, False]
    assert len({event.json["request_id"] for event in events}) == 3


async def test_a_tenant_gets_its_own_events_only(gateway: Gateway, tenant: Tenant) -> None:
    other = await gateway.tenant()
    async with tenant.client.events(STREAM) as reader:
        await one_job(other, await other.queue())
        await tenant.queue("mine")
        event = await reader.next()
        assert event is not None and (event.event, event.json["tenant"]) == ("queue.changed", tenant.id)
        assert await nothing_more(reader)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("job.*", ["job.queued", "job.leased", "job.done"]),
        ("job.done", ["job.done"]),
        ("queue.>", ["queue.changed"]),
        ("*.queued", ["job.queued"]),
        ("none.such", []),
    ],
)
async def test_events_can_be_filtered_by_a_pattern(tenant: Tenant, pattern: str, expected: list[str]) -> None:
    async with tenant.client.events(f"{STREAM}?events={pattern}") as reader:
        await one_job(tenant, await tenant.queue())
        assert sorted(names(await reader.take(len(expected)))) == sorted(expected)
        assert await nothing_more(reader)


async def test_the_start_of_a_process_is_an_event_of_the_platform(gateway: Gateway) -> None:
    async def started() -> list[Any]:
        found = await events_of(gateway.node.platform.connection, "TELEMETRY", PLATFORM)
        return [event for event in found if event["event"] == "worker.started"]

    [event, *_] = await eventually(started)
    assert (event["tenant"], event["role"]) == (PLATFORM, "gateway")
    (await gateway.admin.get(STREAM, headers={"X-Postroad-Tenant": PLATFORM})).problem(404, "tenant-not-found")


# Permissions and parameters


async def test_the_stream_needs_the_scope_to_read(tenant: Tenant) -> None:
    publisher = await tenant.another_key((Scope.PUBLISH, Scope.CONSUME))
    (await publisher.client.get(STREAM)).problem(403, "forbidden")


@pytest.mark.parametrize(
    "query", ["events=a..b", "events=job.>.x", "events=", "event=job.*", f"events={'x' * 257}", "lastEventId=x"]
)
async def test_an_invalid_query_is_refused(tenant: Tenant, query: str) -> None:
    (await tenant.client.get(f"{STREAM}?{query}")).problem(400, "invalid-parameter")


@pytest.mark.parametrize("last", ["x", "1", "1-2-3", "-1-2", "1-", f"{10**20}-1"])
async def test_an_invalid_last_event_id_is_refused(tenant: Tenant, last: str) -> None:
    (await tenant.client.get(STREAM, headers={"Last-Event-ID": last})).problem(400, "invalid-parameter")


def caller(**allowed: tuple[str, ...]) -> Caller:
    return Caller("acme", "key", frozenset({Scope.READ}), allowed=allowed or None)


@pytest.mark.parametrize("kind", event_types(), ids=event_name)
def test_a_restricted_key_sees_the_events_of_its_resources_only(kind: type[Event]) -> None:
    visibility, line = EventVisibility(event_types()), encode_event(sample(kind))
    name = event_name(kind)
    assert visibility.type_of(caller(), line) == name
    fields = {field.name for field in msgspec.structs.fields(kind)}
    resource = next((one for one in ("queue", "topic", "bucket") if one in fields), None)
    assert kind.resource == (None if resource is None else (resource, resource))
    for restricted in ("queue", "topic", "bucket", "stream"):
        is_own = restricted == resource
        shown = name if resource is not None else None
        assert visibility.type_of(caller(**{restricted: ("text",)}), line) == shown
        assert visibility.type_of(caller(**{restricted: ("other",)}), line) == (None if is_own else shown), (
            "others are not restricted"
        )


@pytest.mark.parametrize(
    "line", [b"not JSON", b"[]", b"\xff", b"", b"{}", b'{"event": 1}', b'{"event": "job.done", "queue": 1}', b'{"a":' * 100_000]
)
def test_a_line_that_is_not_an_event_is_visible_to_no_key(line: bytes) -> None:
    visibility = EventVisibility(event_types())
    assert visibility.type_of(caller(), line) is None
    assert visibility.type_of(caller(queue=("*",)), line) is None


def test_an_unknown_event_is_hidden_from_restricted_keys() -> None:
    visibility = EventVisibility(event_types())
    assert visibility.type_of(caller(), b'{"event": "later.added", "queue": "text"}') == "later.added"
    assert visibility.type_of(caller(queue=("text",)), b'{"event": "later.added", "queue": "text"}') is None


# Reconnecting


def event_ids(events: Any) -> list[str]:
    return [event.json["event_id"] for event in events]


async def read_until(reader: EventReader, wanted: set[str]) -> list[ServerSentEvent]:
    seen: list[ServerSentEvent] = []
    async with asyncio.timeout(30):
        while not wanted <= set(event_ids(seen)):
            event = await reader.next()
            assert event is not None
            seen.append(event)
    return seen


@pytest.mark.parametrize("is_header", [True, False])
async def test_a_client_that_reconnects_gets_the_missed_events(tenant: Tenant, is_header: bool) -> None:
    queue = await tenant.queue()
    async with tenant.client.events(f"{STREAM}?events=job.queued") as reader:
        await tenant.publish(queue, "before")
        first = await reader.next()
        assert first is not None and first.id
    missed = [(await tenant.publish(queue, number))["messageId"] for number in range(5)]
    path = f"{STREAM}?events=job.queued" + ("" if is_header else f"&lastEventId={first.id}")
    async with tenant.client.events(path, {"Last-Event-ID": first.id} if is_header else None) as reader:
        assert event_ids(await reader.take(5)) == missed
        live = (await tenant.publish(queue, "live"))["messageId"]
        assert event_ids(await reader.take(1)) == [live]


async def test_a_client_that_is_interrupted_before_its_first_event_misses_none(tenant: Tenant) -> None:
    queue = await tenant.queue()
    async with tenant.client.events(f"{STREAM}?events=job.queued") as reader:
        assert await nothing_more(reader)
        start = reader.last_event_id
    missed = [(await tenant.publish(queue, number))["messageId"] for number in range(3)]
    assert start is not None
    async with tenant.client.events(f"{STREAM}?events=job.queued", {"Last-Event-ID": start}) as reader:
        assert event_ids(await reader.take(3)) == missed


async def test_a_client_without_events_gets_its_position_now_and_then(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("postroad.telemetry.routes._SKIPPED_MAX", 4)
    queue = await tenant.queue()
    async with tenant.client.events(f"{STREAM}?events=job.done") as reader:
        assert await nothing_more(reader)
        start = reader.last_event_id
        for number in range(6):
            await tenant.publish(queue, number)
        while reader.last_event_id == start:
            assert await nothing_more(reader)
        [message] = await tenant.pull(queue)
        (await tenant.ack(queue, message["receiptId"])).ok()
        [done] = await reader.take(1)
        assert done.id not in (None, start)


async def test_a_client_that_disconnects_within_a_frame_gets_the_whole_frame_again(tenant: Tenant) -> None:
    queue = await tenant.queue()
    async with tenant.client.events(f"{STREAM}?events=job.queued") as reader:
        await tenant.publish(queue, "first")
        first = await reader.next()
        assert first is not None and first.id
        batch = {"messages": [{"payload": number} for number in range(20)]}
        results = (await tenant.client.post(f"{queue}/messages/batch", batch)).ok()["results"]
        wanted = [result["messageId"] for result in results]
        part = await reader.take(7)
        assert event_ids(part) == wanted[:7]
        assert reader.last_event_id == first.id, "the id is sent with the last event of a frame"
        last = reader.last_event_id
    async with tenant.client.events(f"{STREAM}?events=job.queued", {"Last-Event-ID": last}) as reader:
        again = await reader.take(20)
        assert event_ids(again) == wanted
        assert again[-1].id and not any(event.id for event in again[:-1])


async def test_a_client_that_reconnects_repeatedly_sees_every_event(tenant: Tenant) -> None:
    """Both streams at once, with readers that disconnect at any position."""
    queue = await tenant.queue("start")
    stop, seen, last = asyncio.Event(), set[str](), ""

    async def work() -> None:
        for number in range(15):
            await asyncio.gather(tenant.publish(queue, number), tenant.publish(queue, -number))
            (await tenant.client.put("/v1/queues/start", {"maxMessages": 1000 + number})).ok()
        stop.set()

    async with tenant.client.events(STREAM) as reader:
        first = await tenant.publish(queue, "first")
        seen |= set(event_ids(await read_until(reader, {first["messageId"]})))
        last = reader.last_event_id or ""
    working = asyncio.create_task(work())
    rounds = 0
    while not stop.is_set():
        rounds += 1
        async with tenant.client.events(STREAM, {"Last-Event-ID": last}) as reader:
            with contextlib.suppress(TimeoutError):  # no more events once the work is done
                for _ in range(3):
                    event = await reader.next(0.5)
                    assert event is not None
                    seen.add(event.json["event_id"])
                    last = event.id or last
    await working
    everything = {event["event_id"] for stream in ("JOBS", "TELEMETRY") for event in await tenant.events(stream)}
    made = {event["event_id"] for event in await tenant.events("TELEMETRY") if event.get("is_new")}
    async with tenant.client.events(STREAM, {"Last-Event-ID": last}) as reader:
        seen |= set(event_ids(await read_until(reader, everything - seen - made)))
    assert rounds >= 2
    assert seen >= everything - made


async def test_invalid_entries_in_the_stream_are_skipped(gateway: Gateway, tenant: Tenant) -> None:
    """Foreign entries must not break the readers."""
    queue = await tenant.queue()
    committer = gateway.node.platform.committers.of("JOBS")
    async with tenant.client.events(f"{STREAM}?events=job.queued") as reader:
        before = await tenant.publish(queue, "before")
        for payload in (b"not JSON", b'{"no": "name"}', b"[]", b"\xff", b""):
            await committer.append(PendingMessage(f"job.{tenant.id}", payload, new_id()))
        after = await tenant.publish(queue, "after")
        assert event_ids(await reader.take(2)) == [before["messageId"], after["messageId"]]


async def test_the_stream_ends_when_the_process_drains(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url)) as gateway:
        tenant = await gateway.tenant()
        async with tenant.client.events(STREAM) as reader:
            gateway.node.app.drain()
            assert await reader.next(2) is None


async def test_event_ids_have_the_sequences_of_frames(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    async with tenant.client.events(f"{STREAM}?events=job.queued") as reader:
        await tenant.publish(queue, 1)
        event = await reader.next()
    assert event is not None and event.id
    last = await stream_reader.last(gateway.node.platform.connection, "JOBS", f"job.{tenant.id}")
    positions = gateway.node.platform.position_cipher("event").decrypt(tenant.id, event.id)
    assert last is not None and positions[0] == last.sequence


async def test_an_id_from_before_a_stream_was_added_is_still_valid(gateway: Gateway, tenant: Tenant) -> None:
    """It has no position in `COMMANDS`: that stream is followed from now on, the others from the id."""
    queue = await tenant.queue()
    async with tenant.client.events(f"{STREAM}?events=job.queued") as reader:
        await tenant.publish(queue, "before")
        first = await reader.next()
        assert first is not None and first.id
    cipher = gateway.node.platform.position_cipher("event")
    positions = cipher.decrypt(tenant.id, first.id)
    assert len(positions) == 3
    missed = (await tenant.publish(queue, "missed"))["messageId"]
    older = cipher.encrypt(tenant.id, *positions[:2])
    async with tenant.client.events(f"{STREAM}?events=job.queued", {"Last-Event-ID": older}) as reader:
        assert event_ids(await reader.take(1)) == [missed]
