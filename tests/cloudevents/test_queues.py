"""CloudEvents to and from queues, made and read by the `cloudevents` package."""

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

from tests.gateway import Answer, Tenant

EVENT, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
NEEDED = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "com.example.order.created"}

pytestmark = pytest.mark.engine


def event(data: Any = None, **attributes: Any) -> CloudEvent:
    given = {"id": "order 5 ü%", "source": "https://shop.example/eu?a=%20b", "type": "com.example.order.created"}
    return CloudEvent({"specversion": "1.0", **given, **attributes}, data)


FULL = event(
    {"total": 12.5},
    subject="orders/5 é",
    time=datetime(2027, 1, 31, 12, 0, 0, 123456, UTC),
    datacontenttype="application/vnd.shop+json; charset=utf-8",
    dataschema="https://schemas.example/order.json",
    partitionkey="a b",
    comexampletenant="x",
)


async def send(tenant: Tenant, path: str, message: HTTPMessage, **more: str) -> Answer:
    return await tenant.client.post(path, data=message.body, headers={**message.headers, **more})


async def post(tenant: Tenant, path: str, body: Any, media: str = EVENT, **more: str) -> Answer:
    return await tenant.client.post(path, body, headers={"Content-Type": media, **more})


async def pulled_event(tenant: Tenant, queue: str) -> CloudEvent:
    answer = await tenant.client.post(f"{queue}/pull", headers={"Accept": EVENT})
    assert (answer.status, answer.headers["content-type"]) == (200, EVENT), answer.body
    found = from_http_event(HTTPMessage(headers={"content-type": EVENT}, body=answer.body))
    assert isinstance(found, CloudEvent)
    return found


def own(found: CloudEvent) -> dict[str, Any]:
    """The attributes without those of the delivery."""
    return {name: value for name, value in found.get_attributes().items() if not name.startswith("postroad")}


@pytest.mark.parametrize("encode", [to_binary_event, to_structured_event])
@pytest.mark.usefixtures("both_paths")
async def test_an_event_returns_as_it_was_published(tenant: Tenant, encode: Any) -> None:
    queue = await tenant.queue()
    published = (await send(tenant, f"{queue}/messages", encode(FULL))).ok(201)
    found = await pulled_event(tenant, queue)
    assert (own(found), found.get_data()) == (FULL.get_attributes(), FULL.get_data())
    assert found.get_attributes()["postroadmessageid"] == published["messageId"]
    assert found.get_attributes()["postroadattempt"] == 1
    (await tenant.ack(queue, found.get_attributes()["postroadreceipt"])).ok()


async def test_json_consumers_get_the_attributes_as_headers(tenant: Tenant) -> None:
    queue = await tenant.queue()
    (await send(tenant, f"{queue}/messages", to_structured_event(FULL))).ok(201)
    [message] = await tenant.pull(queue)
    assert message["payload"] == {"total": 12.5}
    assert message["headers"] == {
        "ce-specversion": "1.0",
        "ce-id": "order%205%20%C3%BC%25",
        "ce-source": "https://shop.example/eu?a=%2520b",
        "ce-type": "com.example.order.created",
        "ce-subject": "orders/5%20%C3%A9",
        "ce-time": "2027-01-31T12:00:00.123456Z",
        "ce-dataschema": "https://schemas.example/order.json",
        "ce-partitionkey": "a%20b",
        "ce-comexampletenant": "x",
        "X-MQ-Content-Type": "application/vnd.shop+json; charset=utf-8",
    }


@pytest.mark.parametrize("encode", [to_binary_event, to_structured_event])
@pytest.mark.parametrize(
    ("data", "media"), [(bytes(range(256)), "application/octet-stream"), ("grün", "text/plain"), ("<a/>", "application/xml")]
)
async def test_data_of_other_types_returns_as_it_was(tenant: Tenant, encode: Any, data: Any, media: str) -> None:
    queue = await tenant.queue()
    (await send(tenant, f"{queue}/messages", encode(event(data, datacontenttype=media)))).ok(201)
    found = await pulled_event(tenant, queue)
    assert own(found)["datacontenttype"] == media
    got = found.get_data()
    assert (got.encode() if isinstance(got, str) else got) == (data.encode() if isinstance(data, str) else data)


async def test_an_event_without_data(tenant: Tenant) -> None:
    queue = await tenant.queue()
    headers = {f"ce-{name}": value for name, value in NEEDED.items()}
    (await tenant.client.post(f"{queue}/messages", headers=headers)).ok(201)
    assert (await pulled_event(tenant, queue)).get_data() is None


async def test_types_of_attributes_are_kept(tenant: Tenant) -> None:
    queue = await tenant.queue()
    sent = {**NEEDED, "retries": -3, "urgent": True, "quiet": False, "text": "5", "data": None}
    (await post(tenant, f"{queue}/messages", sent)).ok(201)
    answer = await tenant.client.post(f"{queue}/pull", headers={"Accept": f"{EVENT};q=0.9, text/plain;q=0.1"})
    found = {name: value for name, value in answer.ok().items() if not name.startswith("postroad")}
    assert found == {name: value for name, value in sent.items() if value is not None}


async def test_source_and_id_are_the_idempotency_key(tenant: Tenant) -> None:
    queue, path = await tenant.queue(), "/v1/queues/q/messages"
    first = (await post(tenant, path, {**NEEDED, "data": 1})).ok(201)
    assert (await post(tenant, path, {**NEEDED, "data": 1})).ok(201) == first
    (await post(tenant, path, {**NEEDED, "data": 2})).problem(422, "idempotency-mismatch")
    assert (await post(tenant, path, {**NEEDED, "data": 2, "source": "/other"})).ok(201) != first
    assert (await post(tenant, path, {**NEEDED, "data": 2, "id": "2"})).ok(201) != first
    (await post(tenant, path, {**NEEDED, "id": "3"}, **{"Idempotency-Key": "k"})).problem(422, "invalid-body")
    assert len(await tenant.pull(queue, 10)) == 3


async def test_a_batch_has_a_result_for_each_event(tenant: Tenant) -> None:
    queue = await tenant.queue()
    events = [{**NEEDED, "id": str(number), "data": number} for number in (1, 2, 1, 1)]
    events[3]["data"] = "another"
    done = (await post(tenant, f"{queue}/messages/batch", events, BATCH)).ok()
    assert (done["published"], done["failed"]) == (3, 1)
    assert done["results"][0]["messageId"] == done["results"][2]["messageId"]
    assert done["results"][3]["problem"]["code"] == "idempotency-mismatch"
    answer = await tenant.client.post(f"{queue}/pull", {"maxMessages": 10}, headers={"Accept": BATCH})
    assert (answer.headers["content-type"], [one["data"] for one in answer.ok()]) == (BATCH, [1, 2])
    receipts = [one["postroadreceipt"] for one in answer.ok()]
    assert (await tenant.client.post(f"{queue}/ack", {"receiptIds": receipts})).ok()["ok"]
    assert (await tenant.client.post(f"{queue}/pull", headers={"Accept": BATCH})).ok() == []
    assert (await tenant.client.post(f"{queue}/pull", headers={"Accept": EVENT})).status == 204


async def test_an_empty_batch_publishes_nothing(tenant: Tenant) -> None:
    queue = await tenant.queue()
    assert (await post(tenant, f"{queue}/messages/batch", [], BATCH)).ok() == {"published": 0, "failed": 0, "results": []}


@pytest.mark.usefixtures("both_paths")
@pytest.mark.parametrize(
    ("change", "path"),
    [({"source": None}, "source"), ({"time": "x"}, "time"), ({"specversion": "2.0"}, "specversion"), ({"id": None}, "id")],
)
async def test_an_invalid_event_is_refused_with_its_attribute(tenant: Tenant, change: dict[str, Any], path: str) -> None:
    queue = await tenant.queue()
    sent = {name: value for name, value in (NEEDED | change).items() if value is not None}
    problem = (await post(tenant, f"{queue}/messages", sent)).problem(422, "invalid-body")
    assert [one["path"] for one in problem["errors"]] == [f"$.{path}"]
    problem = (await post(tenant, f"{queue}/messages/batch", [NEEDED, sent], BATCH)).problem(422, "invalid-body")
    assert [one["path"] for one in problem["errors"]] == [f"$[1].{path}"]
    headers = {f"ce-{name}": value for name, value in sent.items()}
    problem = (await tenant.client.post(f"{queue}/messages", 1, headers=headers)).problem(422, "invalid-body")
    assert [one["path"] for one in problem["errors"]] == [f"ce-{path}"]
    assert await tenant.pull(queue, 10) == []


async def test_refused_media_types_and_bodies(tenant: Tenant) -> None:
    queue = await tenant.queue()
    path, batch = f"{queue}/messages", f"{queue}/messages/batch"
    headers = {f"ce-{name}": value for name, value in NEEDED.items()}
    (await post(tenant, path, [NEEDED], BATCH)).problem(415, "unsupported-media-type")
    (await post(tenant, batch, NEEDED, EVENT)).problem(415, "unsupported-media-type")
    (await post(tenant, path, NEEDED, "application/cloudevents+avro")).problem(415, "unsupported-media-type")
    (await tenant.client.post(batch, [], headers=headers)).problem(415, "unsupported-media-type")
    (await post(tenant, path, [NEEDED])).problem(422, "invalid-body")
    (await tenant.client.post(path, data=b"{", headers={"Content-Type": EVENT})).problem(400, "malformed-json")
    twice = b'{"id":"2","specversion":"1.0","id":"1","source":"/a","type":"t"}'
    (await tenant.client.post(path, data=twice, headers={"Content-Type": EVENT})).problem(400, "malformed-json")
    json = {**headers, "Content-Type": "application/json"}
    (await tenant.client.post(path, data=b"{", headers=json)).problem(400, "malformed-json")
    unnamed = {**headers, "Content-Type": "application/octet-stream"}
    (await tenant.client.post(path, data=b"{", headers=unnamed)).ok(201)
    (await tenant.client.post(f"{queue}/pull", {"maxMessages": 2}, headers={"Accept": EVENT})).problem(422, "invalid-body")


async def test_a_schema_applies_to_the_data(tenant: Tenant) -> None:
    queue = await tenant.queue("typed", schema={"type": "object", "required": ["total"]})
    (await post(tenant, f"{queue}/messages", {**NEEDED, "data": {"total": 1}})).ok(201)
    (await post(tenant, f"{queue}/messages", {**NEEDED, "id": "2", "data": {}})).problem(422, "schema-mismatch")


async def test_a_message_that_is_no_event_is_described_by_one(tenant: Tenant) -> None:
    queue = await tenant.queue("plain")
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    made = (
        await tenant.client.post(f"{queue}/messages", {"payload": [1], "headers": {"ce-id": "x"}}, headers={"traceparent": trace})
    ).ok(201)
    found = own(await pulled_event(tenant, queue))
    found["time"] = found["time"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert found == {
        "specversion": "1.0",
        "id": made["messageId"],
        "source": "/v1/queues/plain",
        "type": "postroad.queue.message",
        "time": made["enqueuedAt"],
        "traceparent": trace,
    }


async def test_headers_that_only_look_like_an_event_do_no_harm(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, "?", headers={"ce-specversion": "1.0", "ce-id": "x", "X-MQ-Encoding": "base64"})
    found = await pulled_event(tenant, queue)
    assert (own(found)["type"], found.get_data()) == ("postroad.queue.message", "?")


async def test_an_event_that_was_pulled_can_be_published_again(tenant: Tenant) -> None:
    one, two = await tenant.queue("one"), await tenant.queue("two")
    (await send(tenant, f"{one}/messages", to_structured_event(FULL))).ok(201)
    (await send(tenant, f"{two}/messages", to_structured_event(await pulled_event(tenant, one)))).ok(201)
    assert own(await pulled_event(tenant, two)) == FULL.get_attributes()


@pytest.mark.parametrize("accept", ["application/json", "*/*", f"application/json, {EVENT};q=0.5", f"{BATCH};q=0", "text/html"])
async def test_other_clients_get_messages(tenant: Tenant, accept: str) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, base64.b64encode(b"x").decode())
    answer = await tenant.client.post(f"{queue}/pull", headers={"Accept": accept})
    assert (answer.headers["content-type"], len(answer.ok()["messages"])) == ("application/json", 1)
