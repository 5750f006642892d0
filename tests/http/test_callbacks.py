"""Requests that are served with callbacks: the same guards, responses and counts as with a handler in a task."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from prometheus_client import REGISTRY

from postroad.http.app import App
from postroad.http.body_waits import BodyWaits
from postroad.http.request import Asgi, ResponseCycle, Scope
from postroad.http.request_cycle import RequestCycle
from postroad.kernel import identity
from postroad.kernel.clock import rfc3339
from tests.access.control import KEYS, SETTINGS
from tests.gateway import Answer, Client, Gateway, ShiftedClock, Tenant
from tests.http.small import raw_connection
from tests.waiting import eventually


class Paths:
    """The requests that were served with callbacks and those that were not, by path, and how many have waited for a body."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.left: list[str] = []
        self.waited = 0

    def has_waited(self, times: int) -> bool:
        return self.waited == times


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> Paths:
    found, start = Paths(), App.start_callback

    def started(self: App, scope: Scope, body: bytes, cycle: ResponseCycle) -> bool:
        is_taken = start(self, scope, body, cycle)
        (found.taken if is_taken else found.left).append(scope["path"])
        return is_taken

    start_cycle = RequestCycle.start

    def started_cycle(self: RequestCycle, app: Asgi) -> None:
        start_cycle(self, app)
        found.waited += self.is_waiting

    monkeypatch.setattr(App, "start_callback", started)
    monkeypatch.setattr(RequestCycle, "start", started_cycle)
    return found


async def on_both_paths(gateway: Gateway, call: Any) -> list[Any]:
    """The results of two calls, the second of which has no callbacks."""
    app = gateway.node.app
    results = [await call()]
    app.has_callbacks = False
    try:
        return [*results, await call()]
    finally:
        app.has_callbacks = True


def shape(answer: Answer) -> tuple[int, list[str], list[str]]:
    """Status, names of headers in order, and keys of the body: what does not differ between two equal requests."""
    return answer.status, list(answer.headers), list(answer.json) if answer.body else []


async def test_busy_routes_are_served_with_callbacks(tenant: Tenant, paths: Paths) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    text = {"headers": {"Content-Type": "text/plain"}}
    (await tenant.client.put("/v1/stream/s", data=b"", **text)).ok(201)
    for _ in range(2):
        assert (await tenant.client.post("/v1/stream/s", data=b"x", **text)).status == 204
    (await tenant.client.put("/v1/topics/t", {})).ok(201)
    (await tenant.client.post("/v1/topics/t/messages", {"subject": "a", "payload": 1})).ok(201)
    published = [f"{queue}/messages", "/v1/stream/s", "/v1/stream/s", "/v1/topics/t/messages"]
    assert paths.taken == published
    [message] = await pulled(tenant, queue)
    (await tenant.ack(queue, message["receiptId"])).ok()
    assert paths.taken[-2:] == [f"{queue}/pull", f"{queue}/ack"] and not paths.left[3:]


async def pulled(tenant: Tenant, queue: str, count: int = 1) -> list[dict[str, Any]]:
    """Messages of pulls that do not wait, once there are some. (One that was just published may not be ready yet.)"""
    found = list[dict[str, Any]]()

    async def is_ready() -> bool:
        found.extend(await tenant.pull(queue, count - len(found), visibilityTimeoutMs=60_000))
        return len(found) == count

    await eventually(is_ready)
    return found


def refusals() -> float:
    return REGISTRY.get_sample_value("postroad_http_refusals_total", {"limit": "worker_requests"}) or 0


async def test_a_full_worker_refuses_a_request_once(gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, admission = await tenant.queue(), gateway.node.app._admission
    monkeypatch.setattr(admission, "limits", replace(admission.limits, requests_max=0))
    before = refusals()
    (await tenant.client.post(f"{queue}/messages", {"payload": 1})).problem(503, "overloaded")
    assert refusals() == before + 1


async def test_unusual_pulls_and_acks_are_left_to_the_handler(gateway: Gateway, tenant: Tenant, paths: Paths) -> None:
    plain, ordered, ranked = await tenant.queue(), await tenant.queue("o", ordered=True), await tenant.queue("r")
    await tenant.publish(ranked, 1, priority="high")
    for queue in (plain, ordered):
        await tenant.publish(queue, 1)
    [high], [first] = await pulled(tenant, ranked), await pulled(tenant, ordered)
    [message] = await pulled(tenant, plain)
    paths.taken.clear()
    client, batch = tenant.client, {"Accept": "application/cloudevents-batch+json"}
    assert await tenant.pull(plain, waitMs=1) == []
    assert await tenant.pull(ordered) == await tenant.pull(ranked) == []
    assert (await client.post(f"{plain}/pull", {}, headers=batch)).status == 200
    (await client.post(f"{plain}/pull", {"maxMessages": 1001})).problem(422, "invalid-body")
    (await client.post(f"{plain}/pull", {"receiveId": "x" * 20})).problem(422, "invalid-body")
    (await client.post("/v1/queues/none/pull", {})).problem(404, "queue-not-found")
    (await client.post(f"{plain}/ack", {"receiptId": "x" * 120})).problem(400, "receipt-invalid")
    (await client.post(f"{plain}/ack", {})).problem(422, "invalid-body")
    (await tenant.ack(ordered, first["receiptId"])).ok()
    assert not paths.taken
    (await tenant.ack(ranked, high["receiptId"])).ok()
    both = (await client.post(f"{plain}/ack", {"receiptIds": [message["receiptId"], "x" * 120]})).ok()
    assert [one["ok"] for one in both["results"]] == [True, False]
    assert paths.taken == [f"{ranked}/ack"]


async def test_a_pull_passes_over_messages_that_ended_meanwhile(
    gateway: Gateway, tenant: Tenant, clock: ShiftedClock, paths: Paths
) -> None:
    """They become dead letters, or are deleted, by a task; then the pull continues."""
    queue = await tenant.queue(maxAttempts=1)
    await tenant.publish(queue, "tried")
    [tried] = await pulled(tenant, queue)
    await tenant.publish(queue, "expired", expiresAt=rfc3339(clock() + 60_000))
    (await tenant.client.post(f"{queue}/nack", {"receiptId": tried["receiptId"], "action": "requeue"})).ok()
    clock.ahead_ms += 61_000
    await tenant.publish(queue, "kept")
    [kept] = await pulled(tenant, queue)
    assert kept["payload"] == "kept" and f"{queue}/pull" in paths.taken
    (await tenant.ack(queue, kept["receiptId"])).ok()

    async def is_empty() -> bool:
        return not any((await tenant.stats(queue)).values())

    await eventually(is_empty)
    assert [one["payload"] for one in (await tenant.client.get(f"{queue}/dlq")).ok()["messages"]] == ["tried"]


async def test_a_large_pull_is_leased_as_by_the_handler(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()

    async def pull() -> list[int]:
        for _ in range(3):
            await tenant.publish(queue, "x" * 150_000)
        return [len(one["payload"]) for one in await pulled(tenant, queue, 3)]

    assert await on_both_paths(gateway, pull) == [[150_000] * 3] * 2


async def test_leases_and_acks_have_the_same_events_on_both_paths(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()

    async def consume() -> None:
        await tenant.publish(queue, 1)
        [message] = await pulled(tenant, queue)
        (await tenant.client.post(f"{queue}/ack", {"receiptIds": [message["receiptId"]]})).ok()

    await on_both_paths(gateway, consume)

    async def consumed() -> list[dict[str, Any]]:
        found = [event for event in await tenant.events() if event["event"] in ("job.leased", "job.done")]
        return found if len(found) == 4 else []

    await eventually(consumed)
    events = await consumed()
    for kind in ("job.leased", "job.done"):
        first, second = (event for event in events if event["event"] == kind)
        assert list(first) == list(second)
        assert first["key_id"] == second["key_id"] == tenant.record.id and first["attempt"] == second["attempt"] == 1


async def test_responses_are_the_same(gateway: Gateway, tenant: Tenant) -> None:
    queue, text = await tenant.queue(), {"headers": {"Content-Type": "text/plain"}}
    (await tenant.client.put("/v1/stream/s", data=b"", **text)).ok(201)
    (await tenant.client.put("/v1/topics/t", {})).ok(201)

    for call in (
        lambda: tenant.client.post("/v1/topics/t/messages", {"subject": "a", "payload": 1}),
        lambda: tenant.client.post("/v1/topics/t/messages", {"subject": "a", "payload": 1}, headers={"X-MQ-Hops": "16"}),
        lambda: tenant.client.post("/v1/topics/t/messages", {"subject": "a..b", "payload": 1}),
        lambda: tenant.client.post(f"{queue}/messages", {"payload": 1}),
        lambda: tenant.client.post("/v1/stream/s", data=b"x", **text),
        lambda: tenant.client.post(f"{queue}/messages", {"payload": 1}, headers={"X-Request-Id": "mine"}),
        lambda: tenant.client.post(f"{queue}/messages", {"payloads": 1}),
        lambda: tenant.client.post(f"{queue}/messages", data=b'{"payload":1,"payload":2}'),
        lambda: tenant.client.post(f"{queue}/messages", data=b"<", headers={"Content-Type": "text/xml"}),
        lambda: tenant.client.post(f"{queue}/messages", {"payload": 1}, headers={"Content-Encoding": "gzip"}),
        lambda: tenant.client.post("/v1/queues/none/messages", {"payload": 1}),
        lambda: tenant.client.post("/v1/stream/none", data=b"x", **text),
        lambda: tenant.client.post(f"{queue}/messages", {"payload": 1}, headers={"X-Postroad-Tenant": "another"}),
        lambda: tenant.client.post(f"{queue}/pull", {}),
        lambda: tenant.client.post(f"{queue}/pull", data=b""),
        lambda: tenant.client.post(f"{queue}/pull", {"visibilityTimeoutMs": 1}),
        lambda: tenant.client.post("/v1/queues/none/pull", {}),
        lambda: tenant.client.post(f"{queue}/ack", {"receiptId": "x"}),
    ):
        first, second = await on_both_paths(gateway, call)
        assert shape(first) == shape(second)


@pytest.mark.parametrize("has_callbacks", [True, False])
async def test_who_may_not_is_refused(gateway: Gateway, tenant: Tenant, paths: Paths, has_callbacks: bool) -> None:
    queue = await tenant.queue()
    reader = await tenant.another_key((identity.Scope.READ,))
    elsewhere = await tenant.another_key(allowed_queues=("other-*",))
    gateway.node.app.has_callbacks = has_callbacks
    try:
        for _ in range(2):  # the second time the key is in the cache
            body = {"payload": 1}
            (await reader.client.post(f"{queue}/messages", body)).problem(403, "forbidden")
            (await elsewhere.client.post(f"{queue}/messages", body)).problem(403, "forbidden")
            (await gateway.anonymous.post(f"{queue}/messages", body)).problem(401, "unauthenticated")
            (await gateway.with_key("pr_" + "x" * 40).post(f"{queue}/messages", body)).problem(401, "unauthenticated")
        assert not paths.taken
        assert (await tenant.stats(queue))["ready"] == 0
    finally:
        gateway.node.app.has_callbacks = True


async def test_a_revoked_key_is_refused(gateway: Gateway, tenant: Tenant, paths: Paths) -> None:
    queue, other = await tenant.queue(), await tenant.another_key()
    await other.publish(queue, 1)
    await other.publish(queue, 1)
    assert paths.taken
    (await tenant.client.delete(f"{KEYS}/{other.record.id}")).ok(204)
    (await other.client.post(f"{queue}/messages", {"payload": 1})).problem(401, "unauthenticated")


async def test_limits_hold(gateway: Gateway, tenant: Tenant, paths: Paths) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    admission = gateway.node.app._admission
    assert admission.worker.requests == 0 and admission.worker.body_bytes == 0, "a request returns what it held"
    slow = await tenant.another_key(max_requests_per_second=1)
    await slow.client.get(queue)  # now the key is in the cache
    answers = await asyncio.gather(*[slow.client.post(f"{queue}/messages", {"payload": 1}) for _ in range(20)])
    refused = [answer for answer in answers if answer.status == 429]
    assert refused and all("ratelimit" in answer.headers and "retry-after" in answer.headers for answer in refused)
    assert len(paths.taken) == 21, "a refusal is a response of the same path"
    assert (await tenant.stats(queue))["ready"] == 1 + len(answers) - len(refused)
    operator = gateway.admin.with_headers(**{"X-Postroad-Tenant": tenant.id})
    (await operator.post(SETTINGS, {"maxMessageBytes": 1024})).ok()
    (await tenant.client.post(f"{queue}/messages", {"payload": "x" * 2000})).problem(413, "too-large")


async def test_a_request_is_counted_once(gateway: Gateway, tenant: Tenant, paths: Paths) -> None:
    queue = await tenant.queue()
    counters = gateway.node.platform.usage.of(tenant.id)

    async def counts() -> tuple[int, bool, bool]:
        before = counters.requests, counters.bytes_in, counters.bytes_out
        await tenant.publish(queue, "x")
        return counters.requests - before[0], counters.bytes_in - before[1] == 15, counters.bytes_out > before[2]

    first, second = await on_both_paths(gateway, counts)
    assert first == second == (1, True, True)
    assert gateway.node.app.open_requests == 0
    assert paths.taken == [f"{queue}/messages"]


async def test_events_have_the_caller_the_request_and_the_trace(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"X-Request-Id": "request-1", "traceparent": trace}

    async def publish() -> None:
        (await tenant.client.post(f"{queue}/messages", {"payload": 1}, headers=headers)).ok(201)

    await on_both_paths(gateway, publish)
    events = [event for event in await tenant.events() if event["event"] == "job.queued"]
    assert [(event["key_id"], event["request_id"]) for event in events] == [(tenant.record.id, "request-1")] * 2
    assert [message["traceparent"] for message in await tenant.pull(queue, 2)] == [trace, trace]


async def test_without_an_audit_there_are_no_events(tenant: Tenant, paths: Paths) -> None:
    queue = await tenant.queue()
    (await tenant.client.post(SETTINGS, {"auditMode": "off"})).ok()
    await tenant.publish(queue, 1)
    assert len(paths.taken) == 1
    assert not [event for event in await tenant.events() if event["event"].startswith("job.")]


def publish_bytes(client: Client, queue: str, *, more: bytes = b"") -> bytes:
    body = b'{"payload":1}'
    head = f"POST {queue}/messages HTTP/1.1\r\nhost: x\r\nauthorization: {client.headers['Authorization']}\r\n"
    return head.encode() + b"content-length: %d\r\n%b\r\n%b" % (len(body), more, body)


async def test_pipelined_requests_are_answered_in_order(gateway: Gateway, tenant: Tenant, paths: Paths) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    request = publish_bytes(tenant.client, queue)
    async with raw_connection(gateway.url) as connection:
        requests = [request.replace(b"host: x", b"host: x\r\nx-request-id: %d" % number) for number in range(20)]
        await connection.send(b"".join(requests))
        answers = [await connection.answer() for _ in range(20)]
    assert [(answer.status, answer.headers["x-request-id"]) for answer in answers] == [(201, str(one)) for one in range(20)]
    assert len(paths.taken) == 21


async def test_the_connection_is_closed_after_the_response_if_the_client_asks(
    gateway: Gateway, tenant: Tenant, paths: Paths
) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    async with raw_connection(gateway.url) as connection:
        await connection.send(publish_bytes(tenant.client, queue, more=b"connection: close\r\n"))
        answer = await connection.answer()
        assert (answer.status, answer.headers["connection"]) == (201, "close")
        assert await connection.is_closed()
    assert len(paths.taken) == 2


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait for their bodies however slow the machine is."""
    monkeypatch.setattr(BodyWaits, "add", lambda _self, _connection: None)


def with_chunks(request: bytes) -> bytes:
    """The request with its body in two chunks of transfer-encoding."""
    head, _, body = request.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"content-length")]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:4], body[4:]))
    return b"\r\n".join([*lines, b"transfer-encoding: chunked", b"", chunks + b"0\r\n\r\n"])


@pytest.mark.parametrize("encode", [bytes, with_chunks])
@pytest.mark.usefixtures("patient")
async def test_a_body_that_arrives_after_its_headers_is_served_with_callbacks(
    gateway: Gateway, tenant: Tenant, paths: Paths, encode: Callable[[bytes], bytes]
) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    paths.waited = 0
    request = encode(publish_bytes(tenant.client, queue))
    body_start = request.index(b"\r\n\r\n") + 4
    async with raw_connection(gateway.url) as connection:
        for number, split in enumerate((body_start, body_start + 6, len(request) - 1)):
            await connection.send(request[:split])
            await eventually(partial(paths.has_waited, number + 1))
            await connection.send(request[split:])
            assert (await connection.answer()).status == 201
    assert len(paths.taken) == 4 and f"{queue}/messages" not in paths.left
    assert gateway.node.app.open_requests == 0 and gateway.node.app._admission.worker.requests == 0


async def test_a_body_that_arrives_much_later_is_served_by_the_handler(gateway: Gateway, tenant: Tenant, paths: Paths) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    request = publish_bytes(tenant.client, queue)
    async with raw_connection(gateway.url) as connection:
        await connection.send(request[:-5])
        await eventually(lambda: gateway.node.app.open_requests)
        await connection.send(request[-5:])
        assert (await connection.answer()).status == 201
    assert len(paths.taken) == 1


@pytest.mark.usefixtures("patient")
async def test_a_large_body_is_not_awaited(gateway: Gateway, tenant: Tenant, paths: Paths) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    small = publish_bytes(tenant.client, queue)
    body = b'{"payload":"%b"}' % (b"x" * 100_000)
    large = small.replace(b"content-length: 13", b"content-length: %d" % len(body))[:-13] + body
    async with raw_connection(gateway.url) as connection:
        for request in (large, with_chunks(large)):
            await connection.send(request[:70_000])  # of a declared length, or more than is awaited without one
            await eventually(lambda: gateway.node.app.open_requests)
            await connection.send(request[70_000:])
            assert (await connection.answer()).status == 201
    assert len(paths.taken) == 1


async def test_who_sends_no_body_is_answered_all_the_same(gateway: Gateway, tenant: Tenant, paths: Paths) -> None:
    queue = await tenant.queue()
    request = publish_bytes(gateway.with_key("pr_" + "x" * 40), queue)
    async with raw_connection(gateway.url) as connection:
        await connection.send(request[:-13])
        assert (await connection.answer()).status == 401
    assert not paths.taken


@pytest.mark.usefixtures("patient")
async def test_other_requests_do_not_wait_for_their_bodies(gateway: Gateway, tenant: Tenant, paths: Paths) -> None:
    queue = await tenant.queue()
    paths.waited = 0
    request = publish_bytes(gateway.with_key("pr_" + "x" * 40), queue)
    for other in (
        request.replace(b"/messages", b"/nack"),  # a route without callbacks
        request.replace(b"/messages", b"/none"),
        request.replace(b"content-length", b"expect: 100-continue\r\ncontent-length"),
    ):
        async with raw_connection(gateway.url) as connection:
            await connection.send(other[:-13])
            assert (await connection.answer()).status in (401, 404)
    assert not paths.taken and not paths.waited


@pytest.mark.usefixtures("patient")
async def test_pipelined_requests_in_any_pieces_are_answered_in_order(gateway: Gateway, tenant: Tenant, paths: Paths) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    request = publish_bytes(tenant.client, queue)
    numbered = [request.replace(b"host: x", b"host: x\r\nx-request-id: %d" % number) for number in range(20)]
    wire, size = b"".join(numbered), len(request) - 17  # so that pieces end at every part of a request
    async with raw_connection(gateway.url) as connection:
        for start in range(0, len(wire), size):
            await connection.send(wire[start : start + size])
            for _ in range(5):
                await asyncio.sleep(0)
        answers = [await connection.answer() for _ in numbered]
    assert [(answer.status, answer.headers["x-request-id"]) for answer in answers] == [(201, str(one)) for one in range(20)]
    assert len(paths.taken) == 21 and f"{queue}/messages" not in paths.left


@pytest.mark.usefixtures("patient")
async def test_a_client_that_leaves_before_its_body_is_counted_as_by_the_handler(
    gateway: Gateway, tenant: Tenant, paths: Paths
) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    counters = gateway.node.platform.usage.of(tenant.id)

    async def leave() -> tuple[int, int]:
        before = counters.requests, counters.client_errors
        async with raw_connection(gateway.url) as connection:
            await connection.send(publish_bytes(tenant.client, queue)[:-5])
            await eventually(lambda: paths.waited or gateway.node.app.open_requests)
        await eventually(lambda: counters.requests > before[0])
        return counters.requests - before[0], counters.client_errors - before[1]

    first, second = await on_both_paths(gateway, leave)
    assert first == second == (1, 1)
    assert gateway.node.app.open_requests == 0 and gateway.node.app._admission.worker.requests == 0


@pytest.mark.usefixtures("patient")
async def test_a_malformed_rest_of_a_body_is_refused(gateway: Gateway, tenant: Tenant, paths: Paths) -> None:
    queue = await tenant.queue()
    paths.waited = 0
    request = with_chunks(publish_bytes(tenant.client, queue))
    async with raw_connection(gateway.url) as connection:
        await connection.send(request[: request.index(b"\r\n\r\n") + 4])
        await eventually(lambda: paths.waited)
        await connection.send(b"not a length\r\n")
        assert (await connection.answer()).status == 400
        assert await connection.is_closed()
    await eventually(lambda: gateway.node.app.open_requests == 0)
    assert (await tenant.stats(queue))["ready"] == 0


async def test_a_client_that_is_gone_does_not_stop_the_publish(gateway: Gateway, tenant: Tenant, paths: Paths) -> None:
    queue = await tenant.queue()
    await tenant.publish(queue, 1)
    async with raw_connection(gateway.url) as connection:
        await connection.send(publish_bytes(tenant.client, queue))
        await eventually(lambda: len(paths.taken) == 2)
        connection.abort()

    async def are_both_ready() -> bool:
        return (await tenant.stats(queue))["ready"] == 2

    await eventually(are_both_ready)
    await eventually(lambda: gateway.node.app.open_requests == 0)
    assert gateway.node.app._admission.worker.requests == 0


@pytest.mark.parametrize(
    "broken_at",
    [
        ("pull", "postroad.queues.lease_log.LeaseLog.record"),
        ("pull", "postroad.queues.lease_plan.LeasePlan.add"),
        ("ack", "postroad.queues.lease_log.LeaseLog.record"),
        ("ack", "postroad.queues.throughput.Throughput.add_completed"),
    ],
)
async def test_a_bug_of_a_pull_or_an_ack_is_a_500_and_the_request_ends(
    gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch, broken_at: tuple[str, str]
) -> None:
    queue, (operation, place) = await tenant.queue(), broken_at
    for _ in range(2):
        await tenant.publish(queue, 1)
    [message, _] = await pulled(tenant, queue, 2)
    await tenant.publish(queue, 1)

    async def is_ready() -> bool:
        return (await tenant.stats(queue))["ready"] == 1

    await eventually(is_ready)

    def broken(*_arguments: object, **_more: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(place, broken)
    body = {} if operation == "pull" else {"receiptId": message["receiptId"]}
    async with asyncio.timeout(30):
        (await tenant.client.post(f"{queue}/{operation}", body)).problem(500, "internal")
    assert gateway.node.app.open_requests == 0


async def test_a_bug_is_a_500_and_the_request_ends(gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = await tenant.queue()

    def broken(*_arguments: object, **_more: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("postroad.queues.throughput.Throughput.add_published", broken)
    async with asyncio.timeout(30):
        (await tenant.client.post(f"{queue}/messages", {"payload": 1})).problem(500, "internal")
    assert gateway.node.app.open_requests == 0
