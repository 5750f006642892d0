"""Deliveries to an HTTP endpoint: headers, signatures, the table of statuses, retries, breaker, limits."""

import asyncio
import base64
import hashlib
import hmac
import socket
import struct
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event

from postroad.subscriptions.capability import SubscriptionsCapability
from postroad.subscriptions.records import record_key
from tests.gateway import Gateway, Tenant
from tests.subscriptions.receiver import Receiver
from tests.subscriptions.topic_client import TopicClient
from tests.waiting import eventually


async def test_a_message_is_posted_with_the_six_headers(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(f"{receiver.url}/hook", secret="a secret of the test")
    assert "secret" not in made
    sequence = await topic.publish("eu.created", {"amount": 5}, headers={"x-source": "shop ü"})
    await eventually(lambda: receiver.received)
    [got] = receiver.received
    assert got.body == b'{"amount":5}'
    assert got.headers["content-type"] == "application/json"
    assert got.headers["x-mq-topic"] == "orders"
    assert got.headers["x-mq-subject"] == f"t.{tenant.id}__orders.eu.created"
    assert got.headers["x-mq-published-subject"] == "eu.created"
    assert got.headers["x-mq-id"] == str(sequence)
    assert got.headers["x-mq-attempt"] == "1"
    assert got.headers["x-mq-hops"] == "1"
    assert got.headers["x-mq-meta-x-source"] == "shop %C3%BC"
    stamp = got.headers["x-mq-timestamp"]
    signed = hmac.new(b"a secret of the test", stamp.encode() + b"." + got.body, hashlib.sha256).hexdigest()
    assert got.headers["x-mq-signature"] == f"sha256={signed}"

    async def is_settled() -> bool:
        status = await topic.status(made)
        return bool(status["lag"] == 0 and status["deliveredCount"] == 1)

    await eventually(is_settled)
    assert (await topic.status(made))["summary"] == "Everything is delivered."


async def test_a_generated_secret_is_shown_once_and_verifies_by_standard_webhooks(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url)
    key = base64.b64decode(made["secret"].removeprefix("whsec_"))
    assert "secret" not in await topic.show(made)
    await topic.publish()
    await eventually(lambda: receiver.received)
    got = receiver.received[0]
    signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    expected = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
    assert got.headers["webhook-signature"] == f"v1,{expected}"


@pytest.mark.parametrize("status", [400, 401, 404, 409, 422])
async def test_other_client_errors_are_dead_letters_at_once(tenant: Tenant, receiver: Receiver, status: int) -> None:
    receiver.answer = lambda _received: (status, {}, b"no thanks")
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url)
    sequence = await topic.publish(payload={"a": 1})

    async def dead() -> list[dict[str, Any]]:
        return await topic.dead(made)

    await eventually(dead)
    [letter] = await topic.dead(made)
    assert (letter["sequence"], letter["attempt_count"], letter["reason"]) == (sequence, 1, f"HTTP {status}")
    assert letter["payload"] == {"a": 1}
    assert len(receiver.received) == 1

    async def attempts() -> list[dict[str, Any]]:
        return await topic.attempts(made)

    await eventually(attempts)
    [attempt] = await topic.attempts(made)
    assert (attempt["outcome"], attempt["status"], attempt["response"]) == ("refused", status, "no thanks")
    assert (await topic.status(made))["breaker"] == "closed"


@pytest.mark.parametrize("status", [408, 429, 500, 503, 302])
async def test_transient_failures_are_retried(tenant: Tenant, receiver: Receiver, status: int) -> None:
    receiver.answer = lambda got: 200 if got.attempt == 3 else status
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, retryDelaysMs=[100, 100])
    await topic.publish()
    await eventually(lambda: len(receiver.received) == 3)
    assert [one.attempt for one in receiver.received] == [1, 2, 3]
    assert len({one.body for one in receiver.received}) == 1
    assert await topic.dead(made) == []


async def test_retries_follow_after_1_2_4_8_16_32_and_60_seconds(node: Gateway, tenant: Tenant, receiver: Receiver) -> None:
    receiver.answer = lambda _got: 503
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url)
    now = node.clock.frozen_ms = node.clock()
    await topic.publish()
    for number, seconds in enumerate((1, 2, 4, 8, 16, 32, 60, 60), 1):

        async def failed(number: int = number) -> dict[str, Any]:
            found = await topic.attempts(made)
            return next((one for one in found if one["attempt"] == number and one["nextAttemptAt"]), {})

        next_at = datetime.fromisoformat((await eventually(failed))["nextAttemptAt"])
        assert int(next_at.timestamp() * 1000) == now + seconds * 1000
        assert len(receiver.received) == number
        now = node.clock.frozen_ms = now + seconds * 1000
    await eventually(lambda: len(receiver.received) == 9)
    assert [one.attempt for one in receiver.received] == list(range(1, 10))


async def test_at_most_max_per_second_attempts_are_started(node: Gateway, tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    now = node.clock.frozen_ms = node.clock()
    made = await topic.subscribe(receiver.url, maxPerSecond=2)
    await topic.publish_many(5)
    for number in range(1, 6):

        async def is_counted(number: int = number) -> bool:
            return bool((await topic.status(made))["deliveredCount"] == number)

        await eventually(is_counted)  # stored after the next attempt would have started
        assert len(receiver.received) == number
        now = node.clock.frozen_ms = now + 500


class _Breaking(asyncio.Protocol):
    """Ends each connection once a request arrives, in order or with a reset."""

    def __init__(self, *, is_reset: bool) -> None:
        self._is_reset = is_reset

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._is_reset:
            linger = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
        else:
            self._transport.close()


@pytest.mark.parametrize(("kind", "error"), [("nobody listens", "connect"), ("end", "broken"), ("reset", "broken")])
async def test_network_errors_are_retried(tenant: Tenant, kind: str, error: str) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: _Breaking(is_reset=kind == "reset"), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if kind == "nobody listens":
        server.close()
        await server.wait_closed()
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(f"http://127.0.0.1:{port}/", retryDelaysMs=[100], maxDeliver=3)
    await topic.publish()

    async def dead() -> list[dict[str, Any]]:
        return await topic.dead(made)

    [letter] = await eventually(dead)
    server.close()
    assert letter["attempt_count"] == 3 and letter["reason"] == f"no response: {error}, after 3 attempts"

    async def attempts() -> list[dict[str, Any]]:
        found = await topic.attempts(made)
        return found if len(found) == 3 else []

    found = await eventually(attempts)
    assert [(one["outcome"], one["error"]) for one in found] == [("transient", error)] * 3
    assert [bool(one["nextAttemptAt"]) for one in found] == [False, True, True]


async def test_the_last_attempt_is_followed_by_the_dead_letters(tenant: Tenant, receiver: Receiver) -> None:
    receiver.answer = lambda _got: 503
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, retryDelaysMs=[100], maxDeliver=3)
    await topic.publish()

    async def dead() -> list[dict[str, Any]]:
        return await topic.dead(made)

    await eventually(dead)
    [letter] = await topic.dead(made)
    assert (letter["attempt_count"], letter["reason"]) == (3, "HTTP 503, after 3 attempts")
    assert len(receiver.received) == 3


async def _changes(tenant: Tenant) -> list[str]:
    """The recorded changes of the tenant's subscription, the last of which is that it was resumed."""

    async def recorded() -> list[str]:
        events = await tenant.events("TELEMETRY")
        found = [event["change"] for event in events if event["event"] == "subscription.changed"]
        return found if "resumed" in found else []

    return await eventually(recorded)


async def test_410_disables_the_subscription_and_resuming_delivers(tenant: Tenant, receiver: Receiver) -> None:
    receiver.answer = lambda _got: 410
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url)
    await topic.publish()

    async def is_disabled() -> bool:
        return bool((await topic.show(made))["state"] == "disabled")

    await eventually(is_disabled)
    shown = await topic.show(made)
    assert shown["disabledReason"] == "HTTP 410"
    assert shown["status"]["summary"].startswith("Disabled: HTTP 410")
    assert shown["status"]["lag"] == 1
    receiver.answer = lambda _got: 200
    (await tenant.client.post(f"/v1/subscriptions/{made['id']}/resume")).ok()
    await eventually(lambda: len(receiver.received) == 2)
    assert await _changes(tenant) == ["created", "disabled", "resumed"]


async def test_a_late_410_does_not_disable_a_subscription_that_was_resumed(node: Gateway, tenant: Tenant) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe("https://gone.example/")
    capability = node.node.platform.use(SubscriptionsCapability)
    attempted_with = await capability.table.fetch(record_key(tenant.id, made["id"]))
    assert attempted_with is not None
    for _ in range(2):  # two attempts were in flight
        await capability.service.disable(attempted_with, "HTTP 410")
        assert (await topic.show(made))["state"] == "disabled"
    (await tenant.client.post(f"/v1/subscriptions/{made['id']}/resume")).ok()
    await capability.service.disable(attempted_with, "HTTP 410")
    assert (await topic.show(made))["state"] == "active"
    assert await _changes(tenant) == ["created", "disabled", "resumed"]


async def test_a_long_retry_after_pauses_the_whole_subscription(node: Gateway, tenant: Tenant, receiver: Receiver) -> None:
    receiver.answer = lambda got: (429, {"Retry-After": "60"}, b"") if got.attempt == 1 and got.sequence == 1 else 200
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, maxInFlight=1)
    await topic.publish()

    async def is_waiting() -> bool:
        return bool((await topic.status(made))["nextAttemptAt"])

    await eventually(is_waiting)
    await topic.publish()
    status = await topic.status(made)
    assert "asked for a pause" in status["summary"]
    assert receiver.sequences == [1]
    node.clock.ahead_ms = 61_000
    await eventually(lambda: sorted(receiver.sequences) == [1, 1, 2])


async def test_the_breaker_opens_after_ten_failures_and_probes_once(node: Gateway, tenant: Tenant, receiver: Receiver) -> None:
    receiver.answer = lambda _got: 500
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, retryDelaysMs=[100], maxInFlight=1, maxDeliver=100)
    await topic.publish_many(3)

    async def is_open() -> bool:
        return bool((await topic.status(made))["breaker"] == "open")

    await eventually(is_open)
    assert len(receiver.received) == 10
    assert "circuit breaker is open" in (await topic.status(made))["summary"]
    node.clock.ahead_ms = 31_000
    await eventually(lambda: len(receiver.received) == 11)
    node.clock.ahead_ms = 31_000 + 31_000  # the failed probe doubled the time
    await eventually(is_open)
    assert len(receiver.received) == 11
    receiver.answer = lambda _got: 200
    node.clock.ahead_ms = 31_000 + 61_000
    await eventually(lambda: len(receiver.received) == 14)

    async def events() -> bool:
        found = [event["event"] for event in await tenant.events("TELEMETRY")]
        return "subscription.failing" in found and "subscription.recovered" in found

    await eventually(events)


async def test_refused_messages_do_not_keep_the_breaker_closed(tenant: Tenant, receiver: Receiver) -> None:
    receiver.answer = lambda got: 400 if got.sequence % 2 else 500
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, maxInFlight=1, retryDelaysMs=[3_600_000])
    await topic.publish_many(20)

    async def is_open() -> bool:
        return bool((await topic.status(made))["breaker"] == "open")

    await eventually(is_open)
    assert len(receiver.received) == 20


async def test_an_endpoint_that_does_not_answer_times_out(tenant: Tenant, receiver: Receiver) -> None:
    receiver.hold()
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, ackWaitMs=1000, maxDeliver=1)
    await topic.publish()

    async def dead() -> list[dict[str, Any]]:
        return await topic.dead(made)

    await eventually(dead)
    assert (await topic.dead(made))[0]["reason"] == "no response: timeout, after 1 attempts"


async def test_at_most_max_in_flight_requests_are_open(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    await topic.subscribe(receiver.url, maxInFlight=3)
    await topic.publish_many(5)
    await eventually(lambda: len(receiver.received) == 5)  # the window has grown
    receiver.hold()
    await topic.publish_many(10)
    await eventually(lambda: receiver.in_flight == 3)
    receiver.released.set()
    await eventually(lambda: len(receiver.received) == 15)
    assert receiver.in_flight_max == 3


async def test_messages_of_one_key_are_delivered_in_order(tenant: Tenant, receiver: Receiver) -> None:
    receiver.answer = lambda got: 500 if got.attempt == 1 and got.sequence % 3 == 1 else 200
    topic = TopicClient(tenant)
    await topic.create()
    await topic.subscribe(receiver.url, ordering="key", retryDelaysMs=[100], filter=["a", "b"])
    for subject in ["a", "b", "a", "a", "b", "b", "a"]:
        await topic.publish(subject)

    def delivered() -> list[tuple[int, str]]:
        done = [one for one in receiver.received if one.attempt > 1 or one.sequence % 3 != 1]
        return [(one.sequence, one.headers["x-mq-published-subject"]) for one in done]

    await eventually(lambda: len(delivered()) == 7)
    for subject in ("a", "b"):
        of_key = [sequence for sequence, one in delivered() if one == subject]
        assert of_key == sorted(of_key)


async def test_patterns_and_content_select_messages(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(
        receiver.url, filter=["eu.*", "us.>"], contentFilter={"payload": {"amount": {"gte": 100}}, "headers": {"x-test": "no"}}
    )
    await topic.publish("eu.created", {"amount": 500})
    await topic.publish("asia.created", {"amount": 500}, headers={"x-test": "no"})
    await topic.publish("eu.created", {"amount": 5}, headers={"x-test": "no"})
    await topic.publish("eu.created", {"amount": 100}, headers={"X-Test": "no"})
    await topic.publish("us.ca.created", {"amount": 101}, headers={"x-test": "no"})
    await eventually(lambda: len(receiver.received) == 2)
    assert receiver.sequences == [4, 5]

    async def has_no_lag() -> bool:
        return bool((await topic.status(made))["lag"] == 0)

    await eventually(has_no_lag)


async def test_delivery_starts_where_it_was_asked_to(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    sequences = await topic.publish_many(5)
    await topic.subscribe(f"{receiver.url}/all", startFrom="all")
    await topic.subscribe(f"{receiver.url}/from", startFrom="sequence", startSequence=sequences[3])
    await topic.subscribe(f"{receiver.url}/new")
    await topic.publish()
    await eventually(lambda: len(receiver.received) == 6 + 3 + 1)
    by_path = {path: sorted(one.sequence for one in receiver.received if one.path == path) for path in ("/all", "/from", "/new")}
    assert by_path == {"/all": [1, 2, 3, 4, 5, 6], "/from": [4, 5, 6], "/new": [6]}


async def test_a_paused_subscription_waits_and_loses_nothing(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url)
    await topic.publish()
    await eventually(lambda: receiver.sequences == [1])
    (await tenant.client.post(f"/v1/subscriptions/{made['id']}/pause")).ok()
    await asyncio.sleep(0)
    await topic.publish_many(3)

    async def is_paused() -> bool:
        status = await topic.status(made)
        return bool(status["summary"].startswith("Paused; 3 messages wait"))

    await eventually(is_paused)
    (await tenant.client.post(f"/v1/subscriptions/{made['id']}/resume")).ok()
    await eventually(lambda: sorted(receiver.sequences) == [1, 2, 3, 4])


async def test_a_long_backlog_is_read_from_the_log_in_parts(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    for _ in range(3):
        await topic.publish_many(900)
    await topic.subscribe(receiver.url, startFrom="all", maxInFlight=32)
    await eventually(lambda: len(receiver.received) >= 2700, seconds=60)
    assert sorted(receiver.sequences) == list(range(1, 2701))


async def test_custom_headers_are_sent_and_never_shown(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, headers={"Authorization": "Bearer of the endpoint"})
    assert made["headerNames"] == ["Authorization"]
    await topic.publish()
    await eventually(lambda: receiver.received)
    assert receiver.received[0].headers["authorization"] == "Bearer of the endpoint"
    assert "of the endpoint" not in str(await topic.show(made))
    tested = (await tenant.client.post(f"/v1/subscriptions/{made['id']}/test", {})).ok()
    assert tested["requestHeaders"]["Authorization"] == "***"
    assert (tested["outcome"], tested["status"]) == ("delivered", 200)


async def test_cloud_events_have_their_attributes_in_headers(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    await topic.subscribe(receiver.url, format="cloudevents")
    await topic.publish("eu.created", {"a": 1})
    await eventually(lambda: receiver.received)
    headers = receiver.received[0].headers
    assert (headers["ce-specversion"], headers["ce-id"]) == ("1.0", "1")
    assert (headers["ce-type"], headers["ce-source"]) == ("eu.created", "/v1/topics/orders")


async def test_a_cloud_event_is_delivered_with_its_own_attributes(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    await topic.subscribe(receiver.url, format="cloudevents")
    event = {"specversion": "1.0", "id": "ü 1", "source": "/shop", "type": "eu.created", "count": 5}
    media = {"Content-Type": "application/cloudevents+json"}
    event |= {"time": "2027-01-31T12:00:00Z", "data": {"a": 1}}
    (await tenant.client.post("/v1/topics/orders/messages", event, headers=media)).ok(201)
    await eventually(lambda: receiver.received)
    got = receiver.received[0]
    read = from_http_event(HTTPMessage(headers=got.headers, body=got.body))
    assert read.get_attributes() == {
        "specversion": "1.0",
        "id": "ü 1",
        "source": "/shop",
        "type": "eu.created",
        "count": "5",
        "datacontenttype": "application/json",
        "time": datetime(2027, 1, 31, 12, tzinfo=UTC),
    }
    assert read.get_data() == {"a": 1}
    assert not [name for name in got.headers if name.startswith(("x-mq-meta-ce-", "x-mq-meta-x-mq-event"))]


async def test_a_cloud_event_keeps_its_attributes_on_the_way_through_a_topic_to_a_queue(tenant: Tenant) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    queue = await tenant.queue("inbox")
    await topic.subscribe(delivery_type="queue", queue="inbox")
    event = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "eu.created", "count": 5}
    typed = {**event, "id": "2", "datacontenttype": "application/x+json", "data": {"a": 1}}
    bytes_ = {**event, "id": "3", "datacontenttype": "image/png", "data_base64": "AP8="}
    media = {"Content-Type": "application/cloudevents-batch+json"}
    (await tenant.client.post("/v1/topics/orders/messages/batch", [event, typed, bytes_], headers=media)).ok()
    found = list[dict[str, Any]]()

    async def all_delivered() -> bool:
        accept = {"Accept": "application/cloudevents-batch+json"}
        found.extend((await tenant.client.post(f"{queue}/pull", {"maxMessages": 10}, headers=accept)).ok())
        return len(found) == 3

    await eventually(all_delivered)
    events = [{name: value for name, value in one.items() if not name.startswith("postroad")} for one in found]
    assert sorted(events, key=lambda one: one["id"]) == [event, typed, bytes_]


async def test_bytes_are_delivered_as_they_were_published(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    await topic.subscribe(receiver.url)
    raw = bytes(range(256))
    await topic.publish(body_b64=base64.b64encode(raw).decode(), contentType="image/png")
    await eventually(lambda: receiver.received)
    assert receiver.received[0].body == raw
    assert receiver.received[0].headers["content-type"] == "image/png"


async def test_during_a_rotation_both_secrets_sign(tenant: Tenant, receiver: Receiver) -> None:
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, secret="the older secret")
    rotated = (await tenant.client.post(f"/v1/subscriptions/{made['id']}/secret", {"graceSeconds": 3600})).ok()
    assert rotated["secret"].startswith("whsec_")
    await topic.publish()
    await eventually(lambda: receiver.received)
    got = receiver.received[0]
    expected = hmac.new(b"the older secret", got.headers["x-mq-timestamp"].encode() + b"." + got.body, hashlib.sha256)
    assert got.headers["x-mq-signature"] == f"sha256={expected.hexdigest()}"
    assert len(got.headers["webhook-signature"].split(" ")) == 2


async def test_the_ages_of_both_secrets_are_shown_until_the_older_one_ends(node: Gateway, receiver: Receiver) -> None:
    tenant = await node.tenant()
    topic = TopicClient(tenant)
    await topic.create()
    made = await topic.subscribe(receiver.url, secret="the older secret")
    [first] = made["secretVersions"]
    assert first == {"createdAt": made["createdAt"]} and made["secrets"] == 1
    node.clock.ahead_ms += 1000
    rotated = (await tenant.client.post(f"/v1/subscriptions/{made['id']}/secret", {"graceSeconds": 3600})).ok()
    shown = await topic.show(made)
    older, newer = shown["secretVersions"]
    assert older == {**first, "validUntil": rotated["previousValidUntil"]} and shown["secrets"] == 2
    assert newer.keys() == {"createdAt"} and newer["createdAt"] > older["createdAt"]
    assert "the older secret" not in repr(shown)
    node.clock.ahead_ms += 3_600_000
    shown = await topic.show(made)
    assert shown["secretVersions"] == [newer] and shown["secrets"] == 1
