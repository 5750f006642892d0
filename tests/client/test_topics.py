"""Topics with both clients, against a running gateway."""

from datetime import UTC, datetime, timedelta

import pytest

from postroad.client.errors import IdempotencyMismatch, TopicNotFound
from tests.client.conftest import Sdk


async def test_the_lifecycle_of_a_topic(sdk: Sdk, name: str) -> None:
    made = await sdk("topics.put", name, retention_ms=60_000, max_messages=100, on_full="refuse", replicas=3)
    assert (made.name, made.settings.retention_ms, made.settings.on_full) == (name, 60_000, "refuse")
    assert (made.settings.replicas, made.effective.replicas) == (3, 1)
    changed = await sdk("topics.update", made, max_messages=50, replicas=None)
    assert (changed.settings.max_messages, changed.settings.replicas, changed.settings.retention_ms) == (50, None, 60_000)
    assert [one.name for one in await sdk("topics.list", name=f"{name[:3]}*", stats=True)] == [name]
    assert (await sdk("topics.get", name)).stats.messages == 0
    await sdk("topics.delete", name, cascade=True)
    with pytest.raises(TopicNotFound):
        await sdk("topics.get", name)


async def test_messages_are_published_replayed_and_purged(sdk: Sdk, name: str) -> None:
    await sdk("topics.put", name)
    first = await sdk("topics.publish", name, "orders.eu", {"id": 1}, headers={"X-A": "b"}, idempotency_key="k")
    assert (first.sequence, first.subject) == (1, "orders.eu") and first.nats_subject.endswith(f"__{name}.orders.eu")
    assert await sdk("topics.publish", name, "orders.eu", {"id": 1}, headers={"X-A": "b"}, idempotency_key="k") == first
    with pytest.raises(IdempotencyMismatch):
        await sdk("topics.publish", name, "orders.eu", {"id": 2}, idempotency_key="k")
    assert (await sdk("topics.publish", name, "raw", b"\x00\xff", content_type="image/png")).sequence == 2
    batch = [{"subject": f"orders.{number}", "payload": number} for number in range(5)] + [{"subject": "raw", "payload": b"x"}]
    result = await sdk("topics.publish_batch", name, batch)
    assert (result.published, result.failed, result.results[-1].sequence) == (6, 0, 8)
    found = await sdk("topics.messages", name, page_size=3)
    assert [one.sequence for one in found] == list(range(1, 9))
    assert (found[0].payload, found[0].body, found[0].headers) == ({"id": 1}, b'{"id":1}', {"X-A": "b"})
    assert (found[1].payload, found[1].body, found[1].content_type) == (None, b"\x00\xff", "image/png")
    orders = await sdk("topics.messages", name, subject="orders.*", from_sequence=3, to_sequence=5)
    assert [one.payload for one in orders] == [0, 1, 2]
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    page = await sdk("topics.messages_page", name, subject=["raw", "orders.eu"], to_time=tomorrow, count=True, page_size=2)
    assert ([one.sequence for one in page.items], page.count) == ([1, 2], 3)
    rest = await sdk("topics.messages_page", name, subject=["raw", "orders.eu"], cursor=page.next_cursor)
    assert [one.sequence for one in rest.items] == [8] and rest.next_cursor is None
    assert (await sdk("topics.purge", name, subject="orders.>", dry_run=True)).count == 6
    assert (await sdk("topics.purge", name, subject="orders.>", to_sequence=4)).count == 3
    assert [one.sequence for one in await sdk("topics.messages", name)] == [2, 5, 6, 7, 8]


async def test_a_missing_topic_is_not_followed(sdk: Sdk, name: str) -> None:
    with pytest.raises(TopicNotFound):
        await sdk("topics.follow", name, from_sequence=1)
