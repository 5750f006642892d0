"""CloudEvents with both clients, against a running gateway."""

import pytest

from postroad.client.cloudevents import cloud_event
from postroad.client.errors import BodyInvalid, IdempotencyMismatch
from tests.client.conftest import Sdk

EVENT = {
    "specversion": "1.0",
    "id": "5",
    "source": "https://shop.example",
    "type": "com.example.order.created",
    "subject": "Größe",
    "retries": 3,
    "datacontenttype": "application/json",
    "data": {"total": 12.5},
}
BYTES = {**EVENT, "id": "6", "datacontenttype": "image/png", "data_base64": "AP8="}
del BYTES["data"]


async def test_events_are_published_to_queues_and_read(sdk: Sdk, name: str) -> None:
    await sdk("queues.put", name)
    first = await sdk("queues.publish_event", name, EVENT)
    done = await sdk("queues.publish_events", name, [EVENT, BYTES])
    assert [one.message_id == first.message_id for one in done.results] == [True, False]
    pulled = await sdk("queues.pull", name, max_messages=10)
    assert [cloud_event(one, name) for one in pulled.messages] == [EVENT, BYTES]
    with pytest.raises(IdempotencyMismatch):
        await sdk("queues.publish_event", name, {**EVENT, "data": 1})
    with pytest.raises(BodyInvalid, match="source"):
        await sdk("queues.publish_event", name, {**EVENT, "source": "not a URI"})


async def test_events_are_published_to_topics_and_read(sdk: Sdk, name: str) -> None:
    await sdk("topics.put", name)
    assert (await sdk("topics.publish_event", name, EVENT)).subject == "com.example.order.created"
    assert [one.sequence for one in (await sdk("topics.publish_events", name, [EVENT, BYTES])).results] == [1, 2]
    await sdk("topics.publish", name, "plain", {"a": 1})
    read = [cloud_event(one, name) for one in await sdk("topics.messages", name)]
    assert read[:2] == [EVENT, BYTES]
    assert (read[2]["id"], read[2]["type"], read[2]["source"]) == ("3", "plain", f"/v1/topics/{name}")
