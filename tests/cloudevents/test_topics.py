"""CloudEvents to topics, and as the live stream of events, read by the `cloudevents` package."""

import base64
import contextlib
from typing import Any

import msgspec
import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event, to_binary_event, to_structured_event

from postroad.api.topics import TopicMessagePage
from postroad.client.cloudevents import cloud_event
from postroad.kernel.json import encode
from tests.cloudevents.test_queues import BATCH, EVENT, FULL, NEEDED, event, post, send
from tests.gateway import Tenant

pytestmark = pytest.mark.engine
PATH = "/v1/topics/orders/messages"


@pytest.fixture
async def topic(tenant: Tenant) -> str:
    (await tenant.client.put("/v1/topics/orders", {})).ok(201)
    return "orders"


async def messages(tenant: Tenant) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await tenant.client.get(PATH)).ok()["messages"]
    return found


@pytest.mark.parametrize("mode", [to_binary_event, to_structured_event])
@pytest.mark.usefixtures("both_paths", "topic")
async def test_an_event_is_a_message_with_its_type_as_subject(tenant: Tenant, mode: Any) -> None:
    (await send(tenant, PATH, mode(FULL))).ok(201)
    answer = await tenant.client.get(PATH)
    [found] = answer.ok()["messages"]
    assert (found["subject"], found["payload"]) == ("com.example.order.created", {"total": 12.5})
    assert found["contentType"] == "application/vnd.shop+json; charset=utf-8"
    assert found["headers"]["ce-id"] == "order%205%20%C3%BC%25"
    made = cloud_event(msgspec.json.decode(answer.body, type=TopicMessagePage).items[0], "orders")
    read = from_http_event(HTTPMessage(headers={"content-type": EVENT}, body=encode(made)))
    assert (read.get_attributes(), read.get_data()) == (FULL.get_attributes(), FULL.get_data())


@pytest.mark.usefixtures("topic")
async def test_data_of_other_types_is_the_body(tenant: Tenant) -> None:
    (await send(tenant, PATH, to_binary_event(event(b"\x00\xff", datacontenttype="image/png")))).ok(201)
    (await post(tenant, PATH, NEEDED)).ok(201)
    first, second = await messages(tenant)
    assert (base64.b64decode(first["body_b64"]), first["contentType"]) == (b"\x00\xff", "image/png")
    assert second["body_b64"] == ""


@pytest.mark.usefixtures("topic")
async def test_source_and_id_are_the_idempotency_key(tenant: Tenant) -> None:
    first = (await post(tenant, PATH, {**NEEDED, "data": 1})).ok(201)
    assert (await post(tenant, PATH, {**NEEDED, "data": 1})).ok(201)["sequence"] == first["sequence"]
    (await post(tenant, PATH, {**NEEDED, "data": 2})).problem(422, "idempotency-mismatch")
    done = (await post(tenant, f"{PATH}/batch", [{**NEEDED, "data": 1}, {**NEEDED, "id": "2"}], BATCH)).ok()
    assert [one["sequence"] for one in done["results"]] == [1, 2]


@pytest.mark.usefixtures("topic")
@pytest.mark.parametrize("kind", ["two words", "a..b", "*", "a.>", "$SYS"])
async def test_a_type_that_is_no_subject_is_refused_by_name(tenant: Tenant, kind: str) -> None:
    problem = (await post(tenant, PATH, {**NEEDED, "type": kind})).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$.type"
    problem = (await post(tenant, f"{PATH}/batch", [NEEDED, {**NEEDED, "type": kind}], BATCH)).problem(422, "invalid-body")
    assert problem["errors"][0]["path"] == "$[1].type"
    assert await messages(tenant) == []


@pytest.mark.parametrize(
    ("query", "headers"), [("&format=cloudevents", {}), ("", {"Accept": "text/event-stream, application/cloudevents+json"})]
)
async def test_the_tenants_events_are_cloud_events_on_request(tenant: Tenant, query: str, headers: dict[str, str]) -> None:
    queue = await tenant.queue("orders")
    async with tenant.client.events(f"/v1/telemetry/stream?events=job.*{query}", headers) as reader:
        published = await tenant.publish(queue, 1)
        [sent] = await reader.take(1)
    found = from_http_event(HTTPMessage(headers={"content-type": EVENT}, body=encode(sent.json)))
    attributes = found.get_attributes()
    assert (sent.event, attributes["type"]) == ("job.queued", "postroad.job.queued")
    assert attributes["source"] == f"/v1/tenants/{tenant.id}"
    data = found.get_data()
    assert isinstance(data, dict)
    assert (data["event"], data["event_id"], data["job_id"]) == ("job.queued", attributes["id"], published["jobId"])


async def test_left_out_events_are_counted_by_a_cloud_event(tenant: Tenant) -> None:
    queue = await tenant.queue("orders")
    path = "/v1/telemetry/stream?events=job.queued&format=cloudevents&maxPerSecond=1"
    async with tenant.client.events(path) as reader:
        batch = {"messages": [{"payload": number} for number in range(20)]}
        (await tenant.client.post(f"{queue}/messages/batch", batch)).ok()
        [shown] = await reader.take(1)
        while shown.event != "telemetry.thinned":  # it comes with the first event of another second
            (await tenant.client.post(f"{queue}/messages/batch", batch)).ok()
            with contextlib.suppress(TimeoutError):
                shown = await reader.next(0.5) or shown
    assert (shown.json["type"], shown.json["data"]["left_out"] > 0) == ("postroad.telemetry.thinned", True)
