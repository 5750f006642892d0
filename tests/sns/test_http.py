"""HTTP endpoints: confirmation, deliveries, retries, unsubscribe, dead letters."""

import json
import urllib.error
from datetime import datetime

import pytest
from botocore import UNSIGNED
from botocore.exceptions import ClientError

from tests.aws.clients import refused
from tests.gateway import Gateway
from tests.sns.conftest import SnsTenant
from tests.sns.verifying import fetch, verify
from tests.subscriptions.receiver import Receiver
from tests.waiting import eventually

_TWO_DAYS_MS = 2 * 86_400_000


async def _received(receiver: Receiver, count: int) -> None:
    await eventually(lambda: len(receiver.received) == count)


async def _confirmation(receiver: Receiver) -> dict[str, str]:
    await eventually(lambda: bool(receiver.received))
    found: dict[str, str] = json.loads(receiver.received[0].body)
    return found


async def _subscribed(tenant: SnsTenant, receiver: Receiver, topic: str, **attributes: str) -> str:
    """Subscribe the receiver and confirm; the subscription's ARN."""
    found = await tenant.sns.subscribe(
        TopicArn=topic, Protocol="http", Endpoint=receiver.url, Attributes=attributes, ReturnSubscriptionArn=True
    )
    await fetch((await _confirmation(receiver))["SubscribeURL"])
    receiver.received.clear()
    arn: str = found["SubscriptionArn"]
    return arn


async def test_an_endpoint_confirms_by_an_unsigned_get(tenant: SnsTenant, receiver: Receiver) -> None:
    topic = await tenant.topic()
    found = await tenant.sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=receiver.url)
    assert found["SubscriptionArn"] == "pending confirmation"
    envelope = await _confirmation(receiver)
    await verify(tenant, envelope)
    assert (envelope["Type"], envelope["TopicArn"]) == ("SubscriptionConfirmation", topic)
    headers = receiver.received[0].headers
    assert headers["x-amz-sns-message-type"] == "SubscriptionConfirmation"
    assert headers["content-type"] == "text/plain; charset=UTF-8"
    [listed] = (await tenant.sns.list_subscriptions())["Subscriptions"]
    assert listed["SubscriptionArn"] == "PendingConfirmation"
    await tenant.sns.publish(TopicArn=topic, Message="before")
    answer = await fetch(envelope["SubscribeURL"])
    assert b"<ConfirmSubscriptionResponse" in answer
    await tenant.sns.publish(TopicArn=topic, Message="after")
    await eventually(lambda: len(receiver.received) == 2)
    notification = json.loads(receiver.received[1].body)
    assert notification["Message"] == "after"
    await verify(tenant, notification)
    sent = receiver.received[1].headers
    assert sent["x-amz-sns-message-id"] == notification["MessageId"]
    assert (sent["x-amz-sns-topic-arn"], sent["x-amz-sns-message-type"]) == (topic, "Notification")
    assert sent["x-amz-sns-subscription-arn"].startswith(f"{topic}:")
    assert "x-mq-signature" not in sent


async def test_a_wrong_or_old_token_confirms_nothing(node: Gateway, tenant: SnsTenant, receiver: Receiver) -> None:
    topic = await tenant.topic()
    await tenant.sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=receiver.url)
    token = (await _confirmation(receiver))["Token"]
    for wrong in ("x", token[:-2] + "AA", ""):
        with refused("InvalidParameter", 400):
            await tenant.sns.confirm_subscription(TopicArn=topic, Token=wrong)
    other = await tenant.topic("other")
    with refused("InvalidParameter", 400, "Token"):
        await tenant.sns.confirm_subscription(TopicArn=other, Token=token)
    node.clock.ahead_ms = _TWO_DAYS_MS + 60_000
    with refused("InvalidParameter", 400, "Token"):  # the signature's date is compared with the shifted clock
        await _unsigned_confirm(tenant, topic, token)

    async def expired() -> bool:
        return not (await tenant.aws.tenant.client.get("/v1/subscriptions")).ok()["subscriptions"]

    await eventually(expired)


async def _unsigned_confirm(tenant: SnsTenant, topic: str, token: str) -> None:
    await tenant.aws.client("sns", signature_version=UNSIGNED).confirm_subscription(TopicArn=topic, Token=token)


async def test_a_pending_subscription_cannot_be_resumed_natively(tenant: SnsTenant, receiver: Receiver) -> None:
    topic = await tenant.topic()
    await tenant.sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=receiver.url)
    native = tenant.aws.tenant.client
    [shown] = (await native.get("/v1/subscriptions")).ok()["subscriptions"]
    assert shown["state"] == "pending"
    assert (await native.post(f"/v1/subscriptions/{shown['id']}/resume")).status == 409
    status = (await native.get(f"/v1/subscriptions/{shown['id']}")).ok()["status"]
    assert "not confirmed" in status["summary"]


async def test_raw_delivery(tenant: SnsTenant, receiver: Receiver) -> None:
    topic = await tenant.topic()
    await _subscribed(tenant, receiver, topic, RawMessageDelivery="true")
    await tenant.sns.publish(TopicArn=topic, Message="just this")
    await eventually(lambda: bool(receiver.received))
    assert receiver.received[0].body == b"just this"
    assert receiver.received[0].headers["x-amz-sns-rawdelivery"] == "true"


async def test_the_content_type_of_the_delivery_policy(tenant: SnsTenant, receiver: Receiver) -> None:
    topic = await tenant.topic()
    policy = json.dumps({"requestPolicy": {"headerContentType": "application/json"}})
    await _subscribed(tenant, receiver, topic, DeliveryPolicy=policy)
    await tenant.sns.publish(TopicArn=topic, Message="{}")
    await eventually(lambda: bool(receiver.received))
    assert receiver.received[0].headers["content-type"] == "application/json"


@pytest.mark.parametrize("status", [500, 503, 429])
async def test_a_failed_delivery_is_repeated_by_the_policy(
    node: Gateway, tenant: SnsTenant, receiver: Receiver, status: int
) -> None:
    topic = await tenant.topic()
    await _subscribed(tenant, receiver, topic)
    receiver.answer = lambda _received: status if len(receiver.received) < 3 else 200
    await tenant.sns.publish(TopicArn=topic, Message="x")
    for attempts in (1, 2, 3):
        await _received(receiver, attempts)
        node.clock.ahead_ms += 20_000


async def test_after_the_three_default_retries_the_message_is_a_dead_letter(
    node: Gateway, tenant: SnsTenant, receiver: Receiver
) -> None:
    """20 seconds apart, whatever `Retry-After` the endpoint sends."""
    topic, (dead_url, dead_arn) = await tenant.topic(), await tenant.queue("dead")
    arn = await _subscribed(tenant, receiver, topic, RedrivePolicy=json.dumps({"deadLetterTargetArn": dead_arn}))
    receiver.answer = lambda _received: (503, {"Retry-After": "3000"}, b"")
    await tenant.sns.publish(TopicArn=topic, Message="lost")
    path = f"/v1/subscriptions/{arn.rpartition(':')[2]}/attempts"
    for count in (1, 2, 3, 4):
        await _received(receiver, count)

        async def is_logged(count: int = count) -> bool:
            return len((await tenant.aws.tenant.client.get(path)).ok()["attempts"]) == count

        await eventually(is_logged)
        node.clock.ahead_ms += 20_000
    attempts = (await tenant.aws.tenant.client.get(path)).ok()["attempts"]
    waits = [
        _ms(one["nextAttemptAt"]) - _ms(one["at"]) - one["durationMs"] for one in reversed(attempts) if one.get("nextAttemptAt")
    ]
    assert waits == [20_000] * 3
    [dead] = await tenant.receive(dead_url)
    assert json.loads(dead["Body"])["Message"] == "lost"
    assert dead["MessageAttributes"]["X-MQ-Dead-Reason"]["StringValue"] == "HTTP 503, after 4 attempts"


def _ms(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * 1000)


@pytest.mark.parametrize("status", [400, 404, 410])
async def test_another_client_error_is_final_and_goes_to_the_dead_letter_queue(
    tenant: SnsTenant, receiver: Receiver, status: int
) -> None:
    topic, (dead_url, dead_arn) = await tenant.topic(), await tenant.queue("dead")
    subscription = await _subscribed(tenant, receiver, topic, RedrivePolicy=json.dumps({"deadLetterTargetArn": dead_arn}))
    receiver.answer = lambda _received: status
    await tenant.sns.publish(TopicArn=topic, Message="refused")
    [dead] = await tenant.receive(dead_url)
    assert json.loads(dead["Body"])["Message"] == "refused"
    assert dead["MessageAttributes"]["X-MQ-Dead-Reason"]["StringValue"] == f"HTTP {status}"
    assert len(receiver.received) == 1
    state = (await tenant.aws.tenant.client.get(f"/v1/subscriptions/{subscription.rpartition(':')[2]}")).ok()["state"]
    assert state == "active"


async def test_the_unsubscribe_url_works_without_a_signature(tenant: SnsTenant, receiver: Receiver) -> None:
    topic = await tenant.topic()
    arn = await _subscribed(tenant, receiver, topic)
    await tenant.sns.publish(TopicArn=topic, Message="x")
    await eventually(lambda: bool(receiver.received))
    url: str = json.loads(receiver.received[0].body)["UnsubscribeURL"]
    with pytest.raises(urllib.error.HTTPError) as caught:
        await fetch(url.partition("&Token=")[0])
    assert caught.value.code == 403
    await fetch(url)
    with refused("NotFound", 404):
        await tenant.sns.get_subscription_attributes(SubscriptionArn=arn)


@pytest.mark.parametrize("version", ["1", "2"])
async def test_an_unsubscribe_confirmation_can_restore_the_subscription(
    tenant: SnsTenant, receiver: Receiver, version: str
) -> None:
    topic = await tenant.topic(SignatureVersion=version)
    arn = await _subscribed(tenant, receiver, topic, FilterPolicy='{"kind": ["a"]}')
    await tenant.sns.unsubscribe(SubscriptionArn=arn)
    await _received(receiver, 1)
    [request] = receiver.received
    envelope = json.loads(request.body)
    assert envelope["Type"] == request.headers["x-amz-sns-message-type"] == "UnsubscribeConfirmation"
    assert (envelope["SignatureVersion"], request.headers["x-amz-sns-subscription-arn"]) == (version, arn)
    await verify(tenant, envelope)
    await fetch(envelope["SubscribeURL"])
    listed = (await tenant.sns.list_subscriptions_by_topic(TopicArn=topic))["Subscriptions"]
    [restored] = [one["SubscriptionArn"] for one in listed]
    assert (await tenant.attributes(restored))["FilterPolicy"] == '{"kind": ["a"]}'


async def test_429_is_repeated_and_410_is_final_without_disabling(tenant: SnsTenant, receiver: Receiver) -> None:
    topic, (dead, dead_arn) = await tenant.topic(), await tenant.queue("dead")
    retry = {"healthyRetryPolicy": {"numRetries": 2, "minDelayTarget": 1, "maxDelayTarget": 1}}
    redrive = json.dumps({"deadLetterTargetArn": dead_arn})
    arn = await _subscribed(tenant, receiver, topic, RedrivePolicy=redrive, DeliveryPolicy=json.dumps(retry))
    statuses = iter([429, 200, 410, 200])
    receiver.answer = lambda _one: next(statuses)
    for text in ("limited", "gone", "after"):
        await tenant.sns.publish(TopicArn=topic, Message=text)
        await _received(receiver, {"limited": 2, "gone": 3, "after": 4}[text])
    [letter] = await tenant.receive(dead)
    assert (
        json.loads(letter["Body"])["Message"] == "gone"
        and "410" in letter["MessageAttributes"]["X-MQ-Dead-Reason"]["StringValue"]
    )
    state = (await tenant.aws.tenant.client.get(f"/v1/subscriptions/{arn.rpartition(':')[2]}")).ok()["state"]
    assert state == "active" and len(receiver.received) == 4


@pytest.mark.parametrize(
    "endpoint",
    [
        *(
            "http://10.0.0.1/",
            "http://192.168.1.1/",
            "http://169.254.169.254/latest/meta-data",
            "http://[::1]/",
            "http://[fd00::1]/",
        ),
        *(
            "http://0.0.0.0/",
            "http://100.64.0.1/",
            "http://[::ffff:10.0.0.1]/",
            "http://user:pass@example.com/",
            "http://metadata/",
        ),
    ],
)
async def test_plain_http_goes_to_public_addresses_only(tenant: SnsTenant, endpoint: str) -> None:
    topic = await tenant.topic()
    try:
        await tenant.sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=endpoint, ReturnSubscriptionArn=True)
    except ClientError as error:
        assert error.response["Error"]["Code"] == "InvalidParameter"
        return
    # A name that does not resolve is accepted; the address is checked at each connection.
    assert endpoint == "http://metadata/"


async def test_authenticate_on_unsubscribe(tenant: SnsTenant, receiver: Receiver) -> None:
    topic = await tenant.topic()
    await tenant.sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=receiver.url)
    token = (await _confirmation(receiver))["Token"]
    found = await tenant.sns.confirm_subscription(TopicArn=topic, Token=token, AuthenticateOnUnsubscribe="true")
    attributes = await tenant.attributes(found["SubscriptionArn"])
    assert attributes["ConfirmationWasAuthenticated"] == "true"
    receiver.received.clear()
    await tenant.sns.publish(TopicArn=topic, Message="x")
    await eventually(lambda: bool(receiver.received))
    with pytest.raises(urllib.error.HTTPError):
        await fetch(json.loads(receiver.received[0].body)["UnsubscribeURL"])


async def test_subscribing_again_sends_another_confirmation(tenant: SnsTenant, receiver: Receiver) -> None:
    topic = await tenant.topic()
    for count in (1, 2):
        await tenant.sns.subscribe(TopicArn=topic, Protocol="http", Endpoint=receiver.url)
        await _received(receiver, count)
