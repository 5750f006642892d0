"""Replay of topics by sequence, time and patterns; counts; purge."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from postroad.kernel.clock import rfc3339
from postroad.topics import reading
from postroad.topics.reading import SequenceRange
from tests.gateway import Gateway, Tenant
from tests.topics.topic_samples import make_topic, publish, replay, stats, stored, topics_of
from tests.waiting import eventually

SUBJECTS = ["orders.eu.created", "orders.us.created", "orders.eu.paid", "carts.eu.created", "orders"]


async def filled(tenant: Tenant, count: int = 20) -> str:
    topic = await make_topic(tenant)
    messages = [{"subject": SUBJECTS[number % len(SUBJECTS)], "payload": number + 1} for number in range(count)]
    assert (await tenant.client.post(f"{topic}/messages/batch", {"messages": messages})).ok()["published"] == count
    return topic


def sequences(messages: list[dict[str, Any]]) -> list[int]:
    return [message["sequence"] for message in messages]


async def walk(tenant: Tenant, topic: str, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = (await tenant.client.get(f"{topic}/messages?{query}{cursor}")).ok()
        found += page["messages"]
        if page["nextCursor"] is None:
            return found
        cursor = f"&cursor={page['nextCursor']}"


# Ranges and pages


async def test_a_replay_has_all_messages_in_order(tenant: Tenant) -> None:
    topic = await filled(tenant)
    messages = await replay(tenant, topic)
    assert sequences(messages) == list(range(1, 21))
    assert all(message["payload"] == message["sequence"] for message in messages)
    assert [message["subject"] for message in messages[:5]] == SUBJECTS


@pytest.mark.parametrize("limit", [1, 3, 20, 21, 1000])
async def test_pages_together_have_every_message_once(tenant: Tenant, limit: int) -> None:
    topic = await filled(tenant)
    assert sequences(await walk(tenant, topic, f"limit={limit}")) == list(range(1, 21))
    assert sequences(await walk(tenant, topic, f"limit={limit}&fromSequence=4&toSequence=17")) == list(range(4, 18))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("fromSequence=1", range(1, 21)),
        ("fromSequence=20", [20]),
        ("fromSequence=21", []),
        ("toSequence=1", [1]),
        ("toSequence=99", range(1, 21)),
        ("fromSequence=5&toSequence=4", []),
        ("fromSequence=5&toSequence=5", [5]),
        ("subject=orders.*.created", [1, 2, 6, 7, 11, 12, 16, 17]),
        ("subject=orders.%3E", [1, 2, 3, 6, 7, 8, 11, 12, 13, 16, 17, 18]),
        ("subject=%3E", range(1, 21)),
        ("subject=orders", [5, 10, 15, 20]),
        ("subject=*", [5, 10, 15, 20]),
        ("subject=*.eu.*&fromSequence=6&toSequence=9", [6, 8, 9]),
        ("subject=nothing.here", []),
        ("subject=orders&subject=carts.%3E", [4, 5, 9, 10, 14, 15, 19, 20]),
        ("subject=orders.eu.*&subject=*.eu.created&subject=orders", [1, 3, 4, 5, 6, 8, 9, 10, 11, 13, 14, 15, 16, 18, 19, 20]),
    ],
)
async def test_a_replay_is_restricted_by_sequences_and_patterns(tenant: Tenant, query: str, expected: range | list[int]) -> None:
    topic = await filled(tenant)
    assert sequences(await walk(tenant, topic, f"{query}&limit=1000")) == list(expected)
    assert sequences(await walk(tenant, topic, f"{query}&limit=2")) == list(expected)
    page = (await tenant.client.get(f"{topic}/messages?{query}&limit=1&count=true")).ok()
    assert page["count"] == len(expected)


async def test_a_count_is_of_the_whole_range_on_every_page(tenant: Tenant) -> None:
    topic = await filled(tenant)
    first = (await tenant.client.get(f"{topic}/messages?limit=3&count=true&fromSequence=2&subject=orders.%3E")).ok()
    assert (first["count"], len(first["messages"])) == (11, 3)
    query = f"limit=3&count=true&fromSequence=2&subject=orders.%3E&cursor={first['nextCursor']}"
    assert (await tenant.client.get(f"{topic}/messages?{query}")).ok()["count"] == 11
    assert "count" not in (await tenant.client.get(f"{topic}/messages")).ok()


async def test_a_replay_is_restricted_by_time(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    for number in range(5):
        await publish(tenant, topic, payload=number)
        await asyncio.sleep(0.003)  # the times must differ
    times = {entry.sequence: entry.at_ms for entry in await stored(tenant)}
    for start in times:
        for end in times:
            query = f"fromTime={rfc3339(times[start])}&toTime={rfc3339(times[end])}".replace("+", "%2B")
            expected = [one for one, at_ms in times.items() if times[start] <= at_ms < times[end]]
            page = (await tenant.client.get(f"{topic}/messages?{query}&count=true")).ok()
            assert (sequences(page["messages"]), page["count"]) == (expected, len(expected))
    future = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    assert await replay(tenant, topic, f"?fromTime={future}") == []
    assert sequences(await replay(tenant, topic, f"?toTime={future}")) == [1, 2, 3, 4, 5]
    assert sequences(await replay(tenant, topic, "?fromTime=1980-01-01T00:00:00Z")) == [1, 2, 3, 4, 5]


async def test_the_timestamp_is_that_of_the_stored_message(tenant: Tenant) -> None:
    topic = await filled(tenant, 3)
    assert [message["timestamp"] for message in await replay(tenant, topic)] == [
        rfc3339(entry.at_ms) for entry in await stored(tenant)
    ]


@pytest.mark.parametrize(
    "query",
    [
        "subject=",
        "subject=a..b",
        "subject=a.%3E.b",
        "subject=a%20b",
        "subject=%24JS.%3E",
        "subject=a*",
        f"subject={'.'.join('a' * 17)}",
        "&".join(["subject=a"] * 17),
        "fromSequence=0",
        "fromSequence=x",
        "fromSequence=1&fromSequence=2",
        "fromTime=yesterday",
        "fromTime=2026-01-01T00:00:00",
        "limit=0",
        "limit=1001",
        "cursor=5",
        "count=maybe",
        "color=red",
    ],
)
async def test_an_invalid_query_is_400(tenant: Tenant, query: str) -> None:
    topic = await make_topic(tenant)
    (await tenant.client.get(f"{topic}/messages?{query}")).problem(400, "invalid-parameter")


async def test_a_cursor_of_a_deleted_topic_is_refused(tenant: Tenant) -> None:
    topic = await filled(tenant)
    cursor = (await tenant.client.get(f"{topic}/messages?limit=5")).ok()["nextCursor"]
    (await tenant.client.delete(topic)).ok(204)
    await filled(tenant)
    problem = (await tenant.client.get(f"{topic}/messages?cursor={cursor}")).problem(400, "invalid-parameter")
    assert "deleted" in problem["detail"]


async def test_patterns_that_overlap_too_much_cannot_be_counted(tenant: Tenant) -> None:
    topic = await filled(tenant)
    patterns = [".".join("a" if place == at else "*" for place in range(16)) for at in range(16)]
    query = "&".join(f"subject={one}" for one in patterns)
    assert await replay(tenant, topic, f"?{query}") == []
    problem = (await tenant.client.get(f"{topic}/messages?{query}&count=true")).problem(400, "invalid-parameter")
    assert "overlap" in problem["detail"]


async def test_a_page_is_limited_by_bytes_and_the_next_one_continues(tenant: Tenant) -> None:
    topic = await make_topic(tenant)
    body = "x" * 900_000
    for number in range(12):
        await publish(tenant, topic, payload=f"{number}{body}")
    page = (await tenant.client.get(f"{topic}/messages?limit=1000")).ok()
    assert 1 <= len(page["messages"]) <= 9 and page["nextCursor"] is not None
    assert sequences(await walk(tenant, topic, "limit=1000")) == list(range(1, 13))


async def test_a_search_for_rare_messages_continues_with_the_cursor(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = await filled(tenant, 500)
    await publish(tenant, topic, "rare.one", "found")
    await publish(tenant, topic, "seldom.two", "found")
    query = "subject=rare.%3E&subject=seldom.%3E"
    monkeypatch.setattr("postroad.queues.scan._SECONDS_MAX", -1.0)
    monkeypatch.setattr("postroad.queues.scan._PAGE_SIZE", 100)
    first = (await tenant.client.get(f"{topic}/messages?{query}")).ok()
    assert first["messages"] == [] and first["nextCursor"] is not None
    assert [message["payload"] for message in await walk(tenant, topic, query)] == ["found", "found"]


# For other capabilities


async def test_the_reader_returns_raw_messages_of_a_range(gateway: Gateway, tenant: Tenant) -> None:
    topics = topics_of(gateway)
    topic = await filled(tenant)
    await publish(tenant, topic, "a", {"b": 1}, headers={"X-A": "b"})
    record = await topics.lifecycle.find(tenant.id, "orders")
    found = await topics.reader.read(record, ("orders.>", "a"), SequenceRange(17), limit=3)
    assert [(one.sequence, one.subject) for one in found.messages] == [
        (17, "orders.us.created"),
        (18, "orders.eu.paid"),
        (21, "a"),
    ]
    assert found.next_sequence is None
    last = found.messages[-1]
    assert (last.body, last.content_type, last.headers, last.hops) == (b'{"b":1}', "application/json", {"X-A": "b"}, 0)
    assert (
        last.nats_subject == topics.subject_of(tenant.id, "orders", "a") and topics.user_subject(record, last.nats_subject) == "a"
    )
    assert record.stream == topics.stream_name(tenant.id, "orders")
    small = await topics.reader.read(record, (), SequenceRange(1, 20), bytes_max=1)
    assert (len(small.messages), small.next_sequence) == (1, 2)
    assert (await topics.reader.read(record, (), SequenceRange(1, 3))).next_sequence is None
    assert await topics.reader.sequence_at(record, 0) == 1
    assert await topics.reader.sequence_at(record, gateway.clock() + 60_000) == reading.END


# Purge


async def test_a_purge_deletes_what_matches_and_keeps_the_sequences_of_the_rest(tenant: Tenant) -> None:
    topic = await filled(tenant)
    body = {"subject": "orders.*.created", "toSequence": 12}
    assert (await tenant.client.post(f"{topic}/purge", {**body, "dryRun": True})).ok() == {"count": 6, "dryRun": True}
    assert (await stats(tenant, topic))["messages"] == 20
    assert (await tenant.client.post(f"{topic}/purge", body)).ok() == {"count": 6, "dryRun": False}
    left = [one for one in range(1, 21) if one not in (1, 2, 6, 7, 11, 12)]
    assert sequences(await replay(tenant, topic)) == left
    assert (await publish(tenant, topic, "orders.eu.created"))["sequence"] == 21

    async def event() -> list[dict[str, Any]]:
        return [one for one in await tenant.events("TELEMETRY") if one["event"] == "topic.purged"]

    [purged] = await eventually(event)
    assert (purged["topic"], purged["subject"], purged["to_sequence"], purged["count"]) == ("orders", "orders.*.created", 12, 6)


@pytest.mark.parametrize(("body", "left"), [({}, []), ({"toSequence": 18}, [19, 20]), ({"subject": "carts.>"}, None)])
async def test_a_purge_is_restricted_by_its_fields(tenant: Tenant, body: dict[str, Any], left: list[int] | None) -> None:
    topic = await filled(tenant)
    expected = left if left is not None else [one for one in range(1, 21) if one % 5 != 4]
    dry = (await tenant.client.post(f"{topic}/purge", {**body, "dryRun": True})).ok()["count"]
    assert dry == (await tenant.client.post(f"{topic}/purge", body)).ok()["count"] == 20 - len(expected)
    assert sequences(await replay(tenant, topic)) == expected


@pytest.mark.parametrize("body", [{"subject": "a..b"}, {"subject": "$x"}, {"toSequence": 0}, {"color": 1}])
async def test_an_invalid_purge_deletes_nothing(tenant: Tenant, body: dict[str, Any]) -> None:
    topic = await filled(tenant)
    (await tenant.client.post(f"{topic}/purge", body)).problem(422, "invalid-body")
    assert (await stats(tenant, topic))["messages"] == 20


async def test_changes_are_audited(tenant: Tenant) -> None:
    topic = await filled(tenant)
    (await tenant.client.put(topic, {"maxMessages": 100})).ok()
    (await tenant.client.post(f"{topic}/purge", {"subject": "orders", "dryRun": True})).ok()
    (await tenant.client.post(f"{topic}/purge", {"subject": "orders"})).ok()
    (await tenant.client.delete(topic)).ok(204)
    entries = (await tenant.client.get("/api/control/audit?action=topic.*")).ok()["entries"]
    assert [(one["action"], one["target"], one["actorKeyId"]) for one in reversed(entries)] == [
        (action, "orders", tenant.record.id) for action in ("topic.create", "topic.change", "topic.purge", "topic.delete")
    ]
    assert entries[1]["before"] == {"messages": 4, "subject": "orders", "toSequence": None}
