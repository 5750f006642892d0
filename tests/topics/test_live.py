"""Live reading of topics over server-sent events."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from postroad.api.topics import TopicNotFound
from postroad.client import AsyncPostroad
from postroad.http import sse
from postroad.http.request_cycle import RequestCycle
from postroad.jetstream import shared_tail
from postroad.kernel.errors import InvalidParameter
from postroad.kernel.identity import Scope
from postroad.topics import live_events, live_log, live_message, live_reader
from postroad.topics.live_position import LiveStart, ResumePoint, parse_event_id, start_of
from postroad.topics.records import StoredTopicMessage, TopicRecord
from tests.gateway import Gateway, Tenant
from tests.topics.topic_samples import make_topic, publish, replay, topics_of
from tests.waiting import eventually


class Reader:
    """Events of one connection."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.headers = answer.headers
        self.last_event_id = ""

    async def next(self, seconds: float = 30) -> tuple[str, dict[str, Any]]:
        """Kind and data of the next event."""
        kind, data = "", ""
        async with asyncio.timeout(seconds):
            while True:
                line = (await self._answer.content.readline()).decode()
                assert line, "the response has ended"
                name, _, value = line.rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "id":
                    self.last_event_id = value
                elif name == "data":
                    data += value
                elif not name and data:
                    return kind, msgspec.json.decode(data)

    async def messages(self, count: int) -> list[int]:
        """Sequences of the next messages; other events in between are errors."""
        found = [await self.next() for _ in range(count)]
        assert [kind for kind, _ in found] == ["message"] * count, found
        return [data["sequence"] for _, data in found]

    async def expect(self, kind: str) -> dict[str, Any]:
        found, data = await self.next()
        assert found == kind, (found, data)
        return data

    async def has_ended(self, seconds: float = 30) -> bool:
        async with asyncio.timeout(seconds):
            while await self._answer.content.readline():
                pass
        return True


@asynccontextmanager
async def reading(tenant: Tenant, path: str, last_event_id: str | None = None) -> AsyncIterator[Reader]:
    headers = {"Last-Event-ID": last_event_id} if last_event_id is not None else None
    async with tenant.client.events(path, headers) as events:
        yield Reader(events.answer)


async def fill(tenant: Tenant, topic: str, count: int, subject: str = "a.b") -> None:
    messages = [{"subject": subject, "payload": number} for number in range(count)]
    assert (await tenant.client.post(f"{topic}/messages/batch", {"messages": messages})).ok()["published"] == count


# Rules


@pytest.mark.parametrize(
    ("resume", "expected"),
    [
        (ResumePoint(10), LiveStart(10)),
        (ResumePoint(20), LiveStart(20)),
        (ResumePoint(4), LiveStart(4)),
        (ResumePoint(3), LiveStart(4, gap=(4, 4))),
        (ResumePoint(0), LiveStart(4, gap=(1, 4))),
        (ResumePoint(21), LiveStart(4, is_reset=True)),
        (ResumePoint(10, "0123456789ab"), LiveStart(10)),
        (ResumePoint(10, "ba9876543210"), LiveStart(4, is_reset=True)),
    ],
)
def test_the_start_of_a_reader(resume: ResumePoint, expected: LiveStart) -> None:
    assert start_of(resume, "01890000-0000-7000-8000-0123456789ab", first=5, last=20) == expected


@pytest.mark.parametrize("text", ["", "x", "-1", "1-", "1-0123456789AB", "1-0123456789abc", "1.5", "1" * 20, "\u0661"])
def test_an_invalid_event_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        parse_event_id(text)


# Messages


async def test_a_message_has_its_subject_position_headers_body_and_payload(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    async with reading(tenant, f"{topic}/stream") as reader:
        assert reader.headers["Content-Type"] == "text/event-stream"
        assert reader.headers["Cache-Control"] == "no-store, no-transform"
        assert reader.headers["X-Accel-Buffering"] == "no"
        assert await reader.expect("ready") == {"topic": "orders", "sequence": 0}
        published = await publish(tenant, topic, "orders.eu", {"n": 1}, headers={"x-source": "shop"})
        message = await reader.expect("message")
        [replayed] = await replay(tenant, topic)
        assert message == {
            "subject": "orders.eu",
            "natsSubject": published["natsSubject"],
            "topic": "orders",
            "sequence": 1,
            "timestamp": replayed["timestamp"],
            "headers": {"x-source": "shop"},
            "body_b64": "eyJuIjoxfQ==",
            "payload": {"n": 1},
            "contentType": "application/json",
        }
        incarnation = (await tenant.client.get(topic)).ok()["incarnation"]
        assert reader.last_event_id == f"1-{incarnation[-12:]}"
        (await tenant.client.post(f"{topic}/messages", {"subject": "a", "body_b64": "AA=="})).ok(201)
        binary = await reader.expect("message")
        assert binary["body_b64"] == "AA==" and "payload" not in binary


async def test_a_payload_with_line_ends_is_one_event(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    async with reading(tenant, f"{topic}/stream") as reader:
        await reader.expect("ready")
        body = b'{"subject":"a","payload":{"a":\r\n[1,\r2,\n3]}}'
        (await tenant.client.call("POST", f"{topic}/messages", data=body, headers={"Content-Type": "application/json"})).ok(201)
        assert (await reader.expect("message"))["payload"] == {"a": [1, 2, 3]}


async def test_messages_arrive_in_order_from_the_log_and_then_live(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_log, "_PAGE_ENTRIES", 7)
    topic = await make_topic(tenant)
    await fill(tenant, topic, 50)
    async with reading(tenant, f"{topic}/stream?fromSequence=1") as reader:
        assert await reader.messages(50) == list(range(1, 51))
        assert (await reader.expect("ready"))["sequence"] == 50
        await fill(tenant, topic, 20)
        assert await reader.messages(20) == list(range(51, 71))


async def test_readers_that_join_while_messages_arrive_miss_and_repeat_nothing(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_log, "_PAGE_ENTRIES", 5)
    monkeypatch.setattr(shared_tail, "_RING_ENTRIES_MAX", 8)
    topic = await make_topic(tenant)
    await fill(tenant, topic, 20)

    async def read() -> list[int]:
        async with reading(tenant, f"{topic}/stream?fromSequence=1") as reader:
            found: list[int] = []
            while len(found) < 220:
                kind, data = await reader.next()
                assert kind in ("message", "ready")
                found += [data["sequence"]] if kind == "message" else []
            return found

    readers = [asyncio.create_task(read()) for _ in range(6)]
    for _ in range(20):
        await fill(tenant, topic, 10)
    assert await asyncio.gather(*readers) == [list(range(1, 221))] * 6


async def test_a_filter_selects_by_subject_in_the_log_and_live(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    for subject in ("orders.eu", "orders.us", "carts.eu"):
        await publish(tenant, topic, subject)
    async with (
        reading(tenant, f"{topic}/stream?filter=orders.*&fromSequence=1") as orders,
        reading(tenant, f"{topic}/stream?filter=orders.us&filter=carts.%3E&fromSequence=1") as several,
    ):
        assert await orders.messages(2) == [1, 2] and await several.messages(2) == [2, 3]
        assert (await orders.expect("ready"))["sequence"] == (await several.expect("ready"))["sequence"] == 3
        for subject in ("carts.us", "orders.eu", "orders.us"):
            await publish(tenant, topic, subject)
        assert await orders.messages(2) == [5, 6] and await several.messages(2) == [4, 6]


async def test_a_reader_that_selects_little_gets_positions(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_reader, "_SILENT_MAX", 10)
    topic = await make_topic(tenant)
    async with reading(tenant, f"{topic}/stream?filter=rare") as reader:
        await reader.expect("ready")
        await fill(tenant, topic, 30, "frequent")
        await publish(tenant, topic, "rare")
        before = reader.last_event_id
        assert await reader.messages(1) == [31] and before.startswith("0-")
    async with reading(tenant, f"{topic}/stream?filter=rare") as reader:
        await reader.expect("ready")
        await fill(tenant, topic, 30, "frequent")
        waiting = asyncio.create_task(reader.next())
        await eventually(lambda: not reader.last_event_id.startswith("31-"))
        waiting.cancel()


# Positions


async def test_a_reader_starts_at_a_time(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    first = await publish(tenant, topic)
    await asyncio.sleep(0.01)  # another millisecond
    second = await publish(tenant, topic)
    assert first["timestamp"] < second["timestamp"]
    async with reading(tenant, f"{topic}/stream?fromTime={second['timestamp']}") as reader:
        assert await reader.messages(1) == [2]
    async with reading(tenant, f"{topic}/stream?fromTime=2999-01-01T00:00:00Z") as reader:
        assert (await reader.expect("ready"))["sequence"] == 2


async def test_a_reader_resumes_in_another_process(tenant: Tenant, second_gateway: Gateway) -> None:
    topic = await make_topic(tenant)
    async with reading(tenant, f"{topic}/stream") as reader:
        await reader.expect("ready")
        await fill(tenant, topic, 10)
        assert await reader.messages(6) == list(range(1, 7))
        position = reader.last_event_id
    for start in (position, "6"):
        async with reading(second_gateway.seen_by(tenant), f"{topic}/stream?fromSequence=1", start) as reader:
            assert await reader.messages(4) == [7, 8, 9, 10], "Last-Event-ID precedes fromSequence"
            assert (await reader.expect("ready"))["sequence"] == 10


async def test_a_reader_is_told_what_retention_removed(tenant: Tenant) -> None:
    topic = await make_topic(tenant, maxMessages=5)
    await fill(tenant, topic, 20)
    async with reading(tenant, f"{topic}/stream", "3") as reader:
        assert await reader.expect("gap") == {"topic": "orders", "from": 4, "to": 15}
        assert await reader.messages(5) == [16, 17, 18, 19, 20]
        await reader.expect("ready")


async def test_a_reader_of_a_recreated_topic_is_reset(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    await fill(tenant, topic, 3)
    async with reading(tenant, f"{topic}/stream?fromSequence=1") as reader:
        await reader.messages(3)
        await reader.expect("ready")
        (await tenant.client.delete(topic)).ok(204)
        assert await reader.has_ended(), "the deletion ends the connection"
        position = reader.last_event_id
    assert (await tenant.client.get(f"{topic}/stream")).problem(404, "topic-not-found")
    await make_topic(tenant)
    await fill(tenant, topic, 5)
    async with reading(tenant, f"{topic}/stream", position) as reader:
        reset = await reader.expect("reset")
        assert (reset["topic"], reset["sequence"]) == ("orders", 1) and reset["incarnation"][-12:] != position[-12:]
        assert await reader.messages(5) == [1, 2, 3, 4, 5]


async def test_a_position_beyond_the_end_is_a_reset(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    await fill(tenant, topic, 2)
    async with reading(tenant, f"{topic}/stream?fromSequence=3") as reader:
        assert (await reader.expect("ready"))["sequence"] == 2, "the next message is not beyond the end"
    async with reading(tenant, f"{topic}/stream?fromSequence=4") as reader:
        assert (await reader.expect("reset"))["sequence"] == 1
        assert await reader.messages(2) == [1, 2]


@pytest.mark.parametrize("is_writable", [True, False])
async def test_a_message_for_a_reader_that_waits_is_written_at_once_unless_its_client_does_not_read(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch, is_writable: bool
) -> None:
    written: list[bytes] = []
    write_chunk = RequestCycle.write_chunk

    def counted(self: RequestCycle, chunk: bytes) -> bool:
        written.append(chunk)
        return is_writable and write_chunk(self, chunk)

    monkeypatch.setattr(RequestCycle, "write_chunk", counted)
    topic = await make_topic(tenant)
    async with reading(tenant, f"{topic}/stream") as reader:
        await reader.expect("ready")
        for number in range(1, 21):
            await fill(tenant, topic, 1)
            if number % 5 == 0:
                assert await reader.messages(5) == list(range(number - 4, number + 1))
    assert sum(chunk.count(b"event: message") for chunk in written) >= 4


async def test_a_slow_reader_is_disconnected(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_reader, "_BEHIND_MAX", 20)
    monkeypatch.setattr(live_events, "_BUFFER_BYTES", 1)
    monkeypatch.setattr(shared_tail, "_RING_ENTRIES_MAX", 4)
    topic = await make_topic(tenant)
    gateway = tenant.gateway
    record = await topics_of(gateway).lifecycle.find(tenant.id, "orders")
    live = topics_of(gateway).live
    plan = await live.plan(record, live_message.Selection((">",)))
    frames: Any = live_events.live_events(live, plan, ()).body
    assert b"event: ready" in await anext(frames)
    await fill(tenant, topic, 1)
    assert b"event: message" in await anext(frames)
    await fill(tenant, topic, 50)  # the reader does not read
    async with reading(tenant, f"{topic}/stream?fromSequence=1") as other:  # of the same tail
        assert await other.messages(51) == list(range(1, 52))
        await other.expect("ready")
    assert [one async for one in frames] == []


# Requests


@pytest.mark.parametrize(
    "query",
    [
        "filter=a..b",
        "filter=$x",
        "filter=" + "a." * 17 + "b",
        "fromSequence=0",
        "fromSequence=x",
        "fromTime=yesterday",
        "from=1",
        "fromSequence=1&fromTime=2026-01-01T00:00:00Z",
    ],
)
async def test_an_invalid_request_is_refused(tenant: Tenant, query: str) -> None:
    topic = await make_topic(tenant)
    (await tenant.client.get(f"{topic}/stream?{query}")).problem(400, "invalid-parameter")


async def test_a_refused_pattern_is_named_with_its_parameter(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    for path, place in (("stream?filter=fine&filter=a..b", "$.filter[1]"), ("messages?subject=a..b", "$.subject[0]")):
        assert place in (await tenant.client.get(f"{topic}/{path}")).problem(400, "invalid-parameter")["detail"]


async def test_an_invalid_position_is_refused(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    answer = await tenant.client.get(f"{topic}/stream", headers={"Last-Event-ID": "never"})
    answer.problem(400, "invalid-parameter")


async def test_heartbeats_keep_an_idle_connection_open(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sse.HEARTBEAT_SECONDS == 15
    monkeypatch.setattr(sse, "HEARTBEAT_SECONDS", 0.05)
    topic = await make_topic(tenant)
    async with tenant.client.events(f"{topic}/stream") as events:
        async with asyncio.timeout(30):
            while await events.answer.content.readline() != b": beat\n":
                pass


# Access


async def test_a_tenant_reads_its_own_topic_only(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    other = await tenant.gateway.tenant()
    (await other.client.get(f"{topic}/stream")).problem(404, "topic-not-found")
    await make_topic(other)
    async with reading(tenant, f"{topic}/stream") as reader, reading(other, f"{topic}/stream") as foreign:
        await reader.expect("ready")
        await foreign.expect("ready")
        await publish(tenant, topic, payload="mine")
        await publish(other, topic, payload="theirs")
        assert (await reader.expect("message"))["payload"] == "mine"
        assert (await foreign.expect("message"))["payload"] == "theirs"


async def test_a_token_reads_the_topic_that_it_is_for(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    await make_topic(tenant, "other")
    token = (await tenant.client.post("/v1/tokens", {"resource": "topic/orders"})).ok(201)["token"]
    anonymous = tenant.gateway.anonymous
    async with anonymous.events(f"{topic}/stream?bearer={token}") as events:
        reader = Reader(events.answer)
        await reader.expect("ready")
        await publish(tenant, topic)
        assert await reader.messages(1) == [1]
    (await anonymous.get(f"/v1/topics/other/stream?bearer={token}")).problem(401, "unauthenticated")
    (await anonymous.get(f"{topic}/stream")).problem(401, "unauthenticated")


async def test_restrictions_of_a_key_apply(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    await make_topic(tenant, "other")
    narrow = (await tenant.client.post("/api/control/keys", {"name": "n", "scopes": ["read"], "allowedTopics": ["other"]})).ok(
        201
    )
    client = tenant.gateway.with_key(narrow["key"])
    (await client.get(f"{topic}/stream")).problem(403, "forbidden")
    (await client.post("/v1/tokens", {"resource": "topic/orders"})).problem(403, "forbidden")
    writer = await tenant.another_key((Scope.WRITE, Scope.PUBLISH))
    (await writer.client.get(f"{topic}/stream")).problem(403, "forbidden")


async def test_a_revoked_key_ends_the_connection(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    reader_key = await tenant.another_key((Scope.READ,))
    async with reading(reader_key, f"{topic}/stream") as reader:
        await reader.expect("ready")
        (await tenant.client.delete(f"/api/control/keys/{reader_key.record.id}")).ok(204)
        assert await reader.has_ended()
    (await reader_key.client.get(f"{topic}/stream")).problem(401, "unauthenticated")


# Sharing


async def test_readers_share_a_tail_and_each_message_is_encoded_once(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[int] = []
    original = live_message.message_data

    def encode_once(record: TopicRecord, stored: StoredTopicMessage) -> bytes:
        encoded.append(stored.sequence)
        return original(record, stored)

    monkeypatch.setattr(live_message, "message_data", encode_once)
    topic = await make_topic(tenant)
    async with (
        reading(tenant, f"{topic}/stream") as one,
        reading(tenant, f"{topic}/stream") as two,
        reading(tenant, f"{topic}/stream?filter=a.*") as three,
    ):
        for reader in (one, two, three):
            await reader.expect("ready")
        await fill(tenant, topic, 4)
        for reader in (one, two, three):
            assert await reader.messages(4) == [1, 2, 3, 4]
    assert encoded == [1, 2, 3, 4]


# SDK


async def test_the_client_follows_a_topic_and_reports_gaps(tenant: Tenant) -> None:
    topic = await make_topic(tenant, maxMessages=3)
    await fill(tenant, topic, 5)
    notices: list[object] = []
    async with AsyncPostroad(tenant.gateway.url, tenant.key) as client:
        messages = client.topics.follow("orders", from_sequence=1, filter="a.>", on_notice=notices.append)
        assert [(await anext(messages)).sequence for _ in range(3)] == [3, 4, 5]
        await publish(tenant, topic, payload={"n": 6})
        message = await anext(messages)
        assert (message.sequence, message.payload, message.body) == (6, {"n": 6}, b'{"n":6}')
        await messages.aclose()
        with pytest.raises(TopicNotFound):
            await anext(client.topics.follow("missing"))
    assert [type(one).__name__ for one in notices] == ["TopicGap", "TopicReady"]
