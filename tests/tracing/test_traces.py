"""Traces of a running node, as its collector sees them."""

import secrets
from typing import Any

import pytest

from postroad.container import Role
from postroad.kernel.spans import SpanKind, parse_traceparent
from tests.commands.senders import envelope, grant, register_sender, register_target
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server
from tests.subscriptions.receiver import Receiver
from tests.subscriptions.topic_client import TopicClient
from tests.tracing.collector import Collector, SeenSpan
from tests.waiting import eventually


def new_trace(flags: str = "01") -> tuple[str, dict[str, str]]:
    """The id of a new trace, and the header that a browser sends."""
    trace_id = secrets.token_hex(16)
    return trace_id, {"traceparent": f"00-{trace_id}-{secrets.token_hex(8)}-{flags}"}


async def spans_of(collector: Collector, trace_id: str, *names: str) -> list[SeenSpan]:
    """The spans of the trace with these names, in this order, once all have arrived."""

    def found() -> list[SeenSpan] | None:
        by_name = {one.name: one for one in collector.trace(trace_id)}
        return [by_name[name] for name in names] if by_name.keys() >= set(names) else None

    return await eventually(found) or []


@pytest.fixture(params=["callbacks", "handlers"])
def both_paths(request: pytest.FixtureRequest, node: Gateway) -> Any:
    """Ordinary requests of busy routes with callbacks, then as all others in a task."""
    node.node.app.has_callbacks = request.param == "callbacks"
    yield request.param
    node.node.app.has_callbacks = True


async def test_one_trace_spans_a_publish_a_worker_and_a_webhook(
    tenant: Tenant, session_collector: Collector, receiver: Receiver
) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    queue = await tenant.queue("work")
    to_queue = await topic.subscribe(delivery_type="queue", queue="work")
    to_webhook = await topic.subscribe(f"{receiver.url}/hook?secret=1")
    trace_id, browser = new_trace()
    published = await tenant.client.post("/v1/topics/orders/messages", {"subject": "made", "payload": {}}, headers=browser)
    published.ok(201)
    [message] = await tenant.pull(queue, 1, waitMs=10_000)
    (await tenant.ack(queue, message["receiptId"])).ok()
    [delivery] = await eventually(lambda: receiver.received)

    request, publish, receive, ack = await spans_of(
        session_collector, trace_id, "POST /v1/topics/{topic}/messages", "publish orders", "receive work", "ack work"
    )
    deliveries = await eventually(
        lambda: (
            (found := [one for one in session_collector.trace(trace_id) if one.name == "deliver orders"])
            and len(found) == 2
            and found
        )
    )
    by_subscription = {one.attributes["messaging.destination.subscription.name"]: one for one in deliveries or []}
    queued, pushed = by_subscription[to_queue["id"]], by_subscription[to_webhook["id"]]

    parent = parse_traceparent(browser["traceparent"])
    assert parent is not None
    assert (request.parent_id, request.kind) == (parent.span_id, SpanKind.SERVER)
    assert (publish.parent_id, publish.kind) == (request.span_id, SpanKind.PRODUCER)
    for one, kind in ((queued, SpanKind.PRODUCER), (pushed, SpanKind.CLIENT)):
        assert (one.parent_id, one.kind) == (publish.span_id, kind)
        assert one.links == ((trace_id, publish.span_id),)
    for one in (receive, ack):
        assert (one.parent_id, one.kind) == (queued.span_id, SpanKind.CLIENT)
        assert one.links == ((trace_id, queued.span_id),)
        assert one.attributes["messaging.message.id"] == message["messageId"]
        assert one.attributes["messaging.postroad.job.id"] == message["jobId"]
    assert message["traceparent"] == queued.traceparent
    assert delivery.headers["traceparent"] == pushed.traceparent
    assert len(session_collector.trace(trace_id)) == 6

    assert (
        request.attributes | {"http.route": "/v1/topics/{topic}/messages", "http.response.status_code": 201} == request.attributes
    )
    assert request.attributes["url.path"] == "/v1/topics/orders/messages"
    assert request.attributes["postroad.request.id"] == published.headers["x-request-id"]
    assert publish.attributes == {
        "messaging.system": "postroad",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.postroad.tenant": tenant.id,
        "messaging.message.body.size": 2,
    }
    assert (pushed.attributes["server.address"], pushed.attributes["http.response.status_code"]) == ("127.0.0.1", 200)
    assert "secret" not in str(pushed.attributes)
    assert request.resource["postroad.role"] == "all"
    assert request.resource["deployment.environment.name"] == "test"
    assert request.start_ns <= publish.start_ns <= publish.end_ns <= request.end_ns
    assert not any(one.is_error for one in session_collector.trace(trace_id))


@pytest.mark.usefixtures("both_paths")
async def test_a_message_carries_the_span_that_published_it(tenant: Tenant, session_collector: Collector) -> None:
    queue = await tenant.queue("q")
    trace_id, headers = new_trace()
    sent = (await tenant.client.post(f"{queue}/messages", {"payload": "four"}, headers=headers)).ok(201)
    request, publish = await spans_of(session_collector, trace_id, "POST /v1/queues/{queue}/messages", "publish q")
    assert publish.parent_id == request.span_id
    attributes = publish.attributes
    assert (attributes["messaging.message.id"], attributes["messaging.postroad.job.id"]) == (sent["messageId"], sent["jobId"])
    assert attributes["messaging.message.body.size"] == 6
    [message] = await tenant.pull(queue)
    assert message["traceparent"] == publish.traceparent


@pytest.mark.usefixtures("both_paths")
async def test_what_is_not_sampled_passes_unchanged_and_has_no_spans(
    node: Gateway, tenant: Tenant, session_collector: Collector
) -> None:
    queue = await tenant.queue("q")
    trace_id, headers = new_trace("00")
    (await tenant.client.post(f"{queue}/messages", {"payload": 1}, headers=headers)).ok(201)
    await tenant.publish(queue, 2)  # begins no trace: the sampler is parentbased_always_off
    first, second = await tenant.pull(queue, 2)
    assert first["traceparent"] == headers["traceparent"]
    assert "traceparent" not in second
    assert len(first["receiptId"]) == len(second["receiptId"])
    (await tenant.ack(queue, first["receiptId"])).ok()
    marker, sampled = new_trace()
    (await tenant.client.get(queue, headers=sampled)).ok()
    await spans_of(session_collector, marker, "GET /v1/queues/{queue}")  # spans are exported in order
    assert not session_collector.trace(trace_id)
    assert not session_collector.named("publish q", tenant.id)


async def test_a_slow_publish_a_batch_and_a_nack_are_traced(tenant: Tenant, session_collector: Collector) -> None:
    queue = await tenant.queue("q")
    trace_id, headers = new_trace()
    keyed = {"payload": 1, "idempotencyKey": "k"}
    sent = (await tenant.client.post(f"{queue}/messages", keyed, headers=headers)).ok(201)
    [publish] = await spans_of(session_collector, trace_id, "publish q")
    assert publish.attributes["messaging.message.id"] == sent["messageId"]
    [message] = await tenant.pull(queue)
    (await tenant.client.post(f"{queue}/nack", {"receiptId": message["receiptId"], "action": "dlq"})).ok()
    [nack] = await spans_of(session_collector, trace_id, "nack q")
    assert nack.attributes["messaging.operation.type"] == "settle"

    trace_id, headers = new_trace()
    batch = {"messages": [{"payload": 1}, {"payload": 2, "headers": {"Postroad-X": "1"} | {f"h{n}": "x" for n in range(100)}}]}
    (await tenant.client.post(f"{queue}/messages/batch", batch, headers=headers)).ok()
    [publish] = await spans_of(session_collector, trace_id, "publish q")
    assert publish.attributes["messaging.batch.message_count"] == 2
    assert publish.attributes["messaging.postroad.failed_count"] == 1
    [message] = await tenant.pull(queue, 2)
    assert message["traceparent"] == publish.traceparent


async def test_a_sampled_pull_links_to_the_messages_of_other_traces(tenant: Tenant, session_collector: Collector) -> None:
    queue = await tenant.queue("q")
    producers = [new_trace(), new_trace()]
    for _, headers in producers:
        (await tenant.client.post(f"{queue}/messages", {"payload": 1}, headers=headers)).ok(201)
    await tenant.publish(queue)
    worker, headers = new_trace()
    pulled = (await tenant.client.post(f"{queue}/pull", {"maxMessages": 3}, headers=headers)).ok()["messages"]
    receipts = [one["receiptId"] for one in pulled]
    (await tenant.client.post(f"{queue}/ack", {"receiptIds": receipts}, headers=headers)).ok()
    receive, ack, request = await spans_of(session_collector, worker, "receive q", "ack q", "POST /v1/queues/{queue}/pull")
    published = [(await spans_of(session_collector, trace_id, "publish q"))[0] for trace_id, _ in producers]
    assert receive.parent_id == request.span_id
    assert receive.attributes["messaging.batch.message_count"] == 3
    assert receive.links == ack.links == tuple((one.trace_id, one.span_id) for one in published)
    for one in published:
        [of_message] = await spans_of(session_collector, one.trace_id, "receive q")
        assert of_message.parent_id == one.span_id
        assert of_message.links == ((one.trace_id, one.span_id), (worker, receive.span_id))


async def test_messages_of_an_ordered_queue_are_traced(tenant: Tenant, session_collector: Collector) -> None:
    queue = await tenant.queue("o", ordered=True)
    trace_id, headers = new_trace()
    body = {"payload": 1, "groupId": "g"}
    (await tenant.client.post(f"{queue}/messages", body, headers=headers)).ok(201)
    [message] = await tenant.pull(queue, 1, waitMs=10_000)
    extended = (
        await tenant.client.post(f"{queue}/extend", {"receiptId": message["receiptId"], "visibilityTimeoutMs": 60_000})
    ).ok()
    (await tenant.ack(queue, extended["newReceiptId"])).ok()
    publish, receive, ack = await spans_of(session_collector, trace_id, "publish o", "receive o", "ack o")
    assert receive.parent_id == ack.parent_id == publish.span_id


async def test_a_failed_webhook_is_an_error_and_each_attempt_a_span(
    node: Gateway, tenant: Tenant, session_collector: Collector, receiver: Receiver
) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    await topic.subscribe(receiver.url, retryDelaysMs=[100])
    receiver.answer = lambda received: 503 if received.attempt == 1 else 200
    trace_id, headers = new_trace()
    body = {"subject": "made", "payload": {}}
    (await tenant.client.post("/v1/topics/orders/messages", body, headers=headers)).ok(201)
    attempts = await eventually(
        lambda: (
            (found := [one for one in session_collector.trace(trace_id) if one.name == "deliver orders"])
            and len(found) == 2
            and found
        )
    )
    first, second = attempts or []
    assert [one.attributes["messaging.postroad.attempt"] for one in (first, second)] == [1, 2]
    assert (first.is_error, first.attributes["error.type"], second.is_error) == (True, "503", False)
    assert [one.headers["traceparent"] for one in receiver.received] == [first.traceparent, second.traceparent]


@pytest.mark.usefixtures("both_paths")
async def test_appends_to_streams_are_traced(tenant: Tenant, session_collector: Collector) -> None:
    stream = "/v1/stream/chat"
    (await tenant.client.put(stream, headers={"Content-Type": "text/plain"}, data=b"")).ok(201)
    trace_id, headers = new_trace()
    (await tenant.client.post(stream, data=b"x", headers={"Content-Type": "text/plain", **headers})).ok(204)
    request, append = await spans_of(session_collector, trace_id, "POST /v1/stream/{stream}", "append chat")
    assert append.parent_id == request.span_id


async def test_a_fan_out_is_traced(tenant: Tenant, session_collector: Collector) -> None:
    root, text = f"/v1/{tenant.id}", {"Content-Type": "text/plain"}
    (await tenant.client.call("PUT", f"{root}/stream/chat", headers=text)).ok(201)
    (await tenant.client.post(f"{root}/subscribe", {"sessionId": "s1", "streamId": "chat"})).ok()
    trace_id, headers = new_trace()
    (await tenant.client.post(f"{root}/publish/chat", data=b"x", headers=text | headers)).ok(204)
    append, fanout = await spans_of(session_collector, trace_id, "append chat", "fan out chat")
    assert append.parent_id == fanout.parent_id
    assert fanout.attributes["messaging.batch.message_count"] == 1
    assert fanout.attributes["messaging.postroad.fanout.mode"] == "inline"


@pytest.mark.parametrize("mode", ["none", "strict"])
@pytest.mark.usefixtures("both_paths")
async def test_a_command_is_traced_to_its_consumer(tenant: Tenant, session_collector: Collector, mode: str) -> None:
    queue = await register_target(tenant, dedupe_mode=mode)
    await grant(tenant, "billing")
    sender = await register_sender(tenant)
    trace_id, headers = new_trace()
    body = envelope(sender.secret, version=sender.version)
    sent = (await sender.client.post("/v1/commands", body, headers=headers)).ok(202)
    [message] = await tenant.pull(queue)
    (await tenant.ack(queue, message["receiptId"])).ok()
    names = "POST /v1/commands", "publish bot-post", "receive bot-post", "ack bot-post"
    request, publish, receive, ack = await spans_of(session_collector, trace_id, *names)
    assert publish.parent_id == request.span_id
    assert receive.parent_id == ack.parent_id == publish.span_id
    assert message["traceparent"] == publish.traceparent
    assert message["messageId"] == sent["messageId"]


async def test_a_wake_begins_a_trace_of_its_own(own_server: Server, collector: Collector, receiver: Receiver) -> None:
    """Of any number of appends, so it belongs to none of their traces."""
    settings = gateway_settings(
        own_server.url,
        outbound_allow="127.0.0.0/8",
        otel_exporter_otlp_endpoint=collector.url,
        otel_bsp_schedule_delay=50,
    )
    async with running_gateway(settings, Role.ALL) as gateway:
        tenant = await gateway.tenant()
        root = f"/v1/{tenant.id}/stream"
        wanted = {"type": "webhook", "pattern": "events/*", "webhook": {"url": receiver.url}}
        (await tenant.client.put(f"{root}/__ds/subscriptions/sub", wanted)).ok(201)
        (await tenant.client.call("PUT", f"{root}/events/a", data=b"x", headers={"Content-Type": "text/plain"})).ok(201)
        [received, *_] = await eventually(lambda: receiver.received)
        [span, *_] = await eventually(lambda: collector.named("wake sub", tenant.id))
    assert (span.parent_id, span.attributes["http.response.status_code"]) == ("", 200)
    assert received.headers["traceparent"] == span.traceparent


async def test_an_sqs_client_is_traced_by_operation(tenant: Tenant, session_collector: Collector) -> None:
    """The operation of its protocol is the name of the span, as it is the label of the metrics."""
    trace_id, headers = new_trace()
    target = {"X-Amz-Target": "AmazonSQS.ListQueues", "Content-Type": "application/x-amz-json-1.0"}
    await tenant.client.post("/", data=b"{}", headers=target | headers)
    [span] = await eventually(lambda: session_collector.trace(trace_id))
    assert span.name.startswith("POST ")


async def test_a_failed_request_is_an_error_only_if_the_server_is_to_blame(tenant: Tenant, session_collector: Collector) -> None:
    trace_id, headers = new_trace()
    (await tenant.client.get("/v1/queues/missing", headers=headers)).problem(404, "queue-not-found")
    [span] = await spans_of(session_collector, trace_id, "GET /v1/queues/{queue}")
    assert (span.attributes["http.response.status_code"], span.is_error) == (404, False)


async def test_health_checks_and_unknown_paths_have_no_spans(node: Gateway, tenant: Tenant, session_collector: Collector) -> None:
    trace_id, headers = new_trace()
    (await node.anonymous.get("/livez", headers=headers)).ok()
    assert (await node.anonymous.get("/no/such/path", headers=headers)).status == 404
    (await tenant.client.get("/v1/queues", headers=headers)).ok()
    await spans_of(session_collector, trace_id, "GET /v1/queues")
    assert len(session_collector.trace(trace_id)) == 1


async def test_the_path_of_a_request_without_a_credential_is_not_exported(node: Gateway, session_collector: Collector) -> None:
    trace_id, headers = new_trace()
    await node.anonymous.get("/sns/a-secret", headers=headers)
    [span] = await eventually(lambda: session_collector.trace(trace_id))
    assert (span.name, span.attributes["url.path"]) == ("GET /sns/{certificate}", "/sns/{certificate}")
    assert "a-secret" not in str(span)
