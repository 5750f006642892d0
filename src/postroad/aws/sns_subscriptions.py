"""SNS operations on subscriptions: subscribe, confirm, attributes, list, unsubscribe."""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from postroad.api.stream_subscriptions import SubscriptionNotFound
from postroad.api.subscriptions import (
    DeliveryType,
    NewSubscription,
    Ordering,
    RewindRequest,
    SnsSubscription,
    SubscriptionState,
)
from postroad.aws.calls import Call
from postroad.aws.delivery_policies import check_subscription_policy, effective_policy
from postroad.aws.errors import AwsError
from postroad.aws.model import Values
from postroad.aws.replay_policies import replay_request
from postroad.aws.resource_names import queue_of_arn, subscription_arn, topic_arn
from postroad.aws.sns_confirmations import SnsConfirmations
from postroad.aws.sns_errors import invalid, subscription_missing
from postroad.aws.sns_tokens import SnsTokens
from postroad.aws.sns_topics import PAGE_SIZE, after, next_token
from postroad.aws.topic_attributes import archive_begins_ms, is_fifo
from postroad.kernel.clock import Clock
from postroad.kernel.errors import AlreadyExists
from postroad.queues.lifecycle import QueueLifecycle
from postroad.subscriptions.filter_policy import FilterPolicy
from postroad.subscriptions.records import SubscriptionRecord
from postroad.subscriptions.rewinding import Rewinder, RewindState
from postroad.subscriptions.service import Subscriptions
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.records import TopicRecord

FILTERS_MAX = 200  # of a topic
REPLAYS_MAX = 100  # of a topic, at the same time
_PENDING = "PendingConfirmation"
_PENDING_ARN = "pending confirmation"
_BOOLEANS = ("RawMessageDelivery",)
SETTABLE = ("RawMessageDelivery", "FilterPolicy", "FilterPolicyScope", "DeliveryPolicy", "RedrivePolicy", "ReplayPolicy")
_REPLAY_STATUSES = {RewindState.PENDING: "Pending", RewindState.RUNNING: "In progress", RewindState.DONE: "Completed"}
_QUEUE_RETRY_DELAYS_MS = (1_000, 2_000, 5_000, 10_000, 30_000, 60_000)
_QUEUE_ATTEMPTS_MAX = 1000
_SCOPES = ("MessageAttributes", "MessageBody")


class SnsSubscriptions:
    def __init__(
        self,
        topics: TopicLifecycle,
        queues: QueueLifecycle,
        subscriptions: Subscriptions,
        rewinder: Rewinder,
        confirmations: SnsConfirmations,
        tokens: SnsTokens,
        clock: Clock,
    ) -> None:
        self._confirmations = confirmations
        self._topics, self._queues, self._subscriptions = topics, queues, subscriptions
        self._rewinder, self._tokens, self._clock = rewinder, tokens, clock

    # Subscribe

    async def subscribe(self, call: Call) -> Values:
        topic = await self._topics.find(call.context.tenant, call.topic)
        protocol, endpoint = call.get("Protocol"), call.get("Endpoint") or ""
        attributes = {name: _stored(name, value) for name, value in call.get("Attributes", {}).items() if value}
        check_attributes(attributes)
        sns = SnsSubscription(
            protocol=protocol if protocol in ("sqs", "http", "https") else "sqs",
            endpoint=endpoint,
            region=call.region,
            account=call.account,
            base_url=call.base_url,
            attributes=attributes,
            is_authenticated=protocol == "sqs",
        )
        queue, url = _target(call, protocol, endpoint)
        await self._check_type(call, topic, queue)
        replay = self._replay_request(topic, attributes.get("ReplayPolicy"))
        name = _name(protocol, endpoint)
        known = self._subscriptions.named(topic, name)
        if known is not None:
            return self._subscribed(call, await self._subscribed_again(call, known, attributes))
        if "FilterPolicy" in attributes:
            self._check_filter_count(topic)
        settings = _settings(attributes, topic, call, is_queue=queue is not None)
        delivery = DeliveryType.QUEUE if queue is not None else DeliveryType.HTTP_PUSH
        order: dict[str, Any] = {"ordering": Ordering.KEY, "ordering_key": "group"} if is_fifo(topic.settings) else {}
        new = NewSubscription(delivery_type=delivery, name=name, queue=queue, url=url, **settings, **order)
        try:
            record, _, is_new = await self._subscriptions.create(call.context, topic.name, new, sns)
        except AlreadyExists as exc:
            raise invalid("Attributes Reason: Subscription already exists with different attributes") from exc
        if not is_new:
            record = await self._subscribed_again(call, record, attributes)
        elif replay is not None:
            record = await self._rewinder.start(call.context, record.id, replay)
        return self._subscribed(call, record)

    def _subscribed(self, call: Call, record: SubscriptionRecord) -> Values:
        if record.state is SubscriptionState.PENDING and not call.get("ReturnSubscriptionArn"):
            return {"SubscriptionArn": _PENDING_ARN}
        return {"SubscriptionArn": _arn(call, record)}

    async def _check_type(self, call: Call, topic: TopicRecord, queue: str | None) -> None:
        """FIFO topics deliver to queues only, and standard topics to standard queues. Raises AwsError, QueueNotFound."""
        if is_fifo(topic.settings):
            if queue is None:
                raise invalid("Invalid protocol type: FIFO topics deliver to queues only")
            return
        if queue is None or not call.context.caller.may_use("queue", queue):
            return
        if (await self._queues.find(call.context.tenant, queue)).is_ordered:
            raise invalid("Invalid parameter: Endpoint Reason: FIFO SQS Queues can not be subscribed to standard SNS topics")

    def _replay_request(self, topic: TopicRecord, policy: str | None) -> RewindRequest | None:
        """What a replay policy asks for; None without one. Raises AwsError."""
        if not policy:
            return None
        now_ms = self._clock()
        return replay_request(policy, archive_begins_ms(topic.settings, now_ms), now_ms)

    async def _check_replay_count(self, record: SubscriptionRecord, topic: TopicRecord) -> None:
        """Raises AwsError if too many subscriptions of the topic are being replayed."""
        others = [one for one in self._subscriptions.of_topic(topic) if one.rewind is not None and one.id != record.id]
        if len(others) < REPLAYS_MAX:
            return
        states = await asyncio.gather(*(self._rewinder.state(one) for one in others))
        if sum(one is not RewindState.DONE for one in states) >= REPLAYS_MAX:
            raise AwsError("ReplayLimitExceededException", f"Topic already has {REPLAYS_MAX} replays in progress")

    async def _subscribed_again(
        self, call: Call, record: SubscriptionRecord, attributes: Mapping[str, str]
    ) -> SubscriptionRecord:
        """An endpoint that is subscribed already keeps its attributes; one that has to confirm is asked again."""
        if record.sns is None or any(record.sns.attributes.get(name) != value for name, value in attributes.items()):
            raise invalid("Attributes Reason: Subscription already exists with different attributes")
        if record.state is SubscriptionState.PENDING:
            return await self._subscriptions.change_sns(call.context, record, lambda known: known)
        return record

    def _check_filter_count(self, topic: TopicRecord) -> None:
        filtered = [one for one in self._subscriptions.of_topic(topic) if one.sns and "FilterPolicy" in one.sns.attributes]
        if len(filtered) >= FILTERS_MAX:
            raise AwsError("FilterPolicyLimitExceededException", f"Topic already has {FILTERS_MAX} filter policies")

    # Confirm

    async def confirm_subscription(self, call: Call) -> Values:
        """With the token that the endpoint got. The call may be unsigned."""
        ended = self._tokens.restored(call.context.tenant, call.get("Token"))
        if ended is not None and ended.topic == call.topic:
            return await self._restore(call, ended.sns)
        found = self._tokens.confirmed(call.context.tenant, call.get("Token"))
        if found is None:
            raise invalid("Token")
        record = await self._subscriptions.find(call.context.caller, found[0])
        if record.topic != call.topic or record.incarnation != found[1] or record.sns is None:
            raise invalid("Token")
        sns = record.sns
        if call.is_signed:
            is_needed = str(call.get("AuthenticateOnUnsubscribe", "")).lower() == "true"
            sns = msgspec.structs.replace(sns, is_authenticated=True, needs_signed_unsubscribe=is_needed)
        record = await self._subscriptions.confirm(call.context, record, sns)
        return {"SubscriptionArn": _arn(call, record)}

    async def _restore(self, call: Call, sns: SnsSubscription) -> Values:
        """Create a subscription again whose endpoint got the token when it ended."""
        topic = await self._topics.find(call.context.tenant, call.topic)
        record = self._subscriptions.named(topic, _name(sns.protocol, sns.endpoint))
        if record is None:
            settings = _settings(sns.attributes, topic, call, is_queue=False)
            new = NewSubscription(
                delivery_type=DeliveryType.HTTP_PUSH, name=_name(sns.protocol, sns.endpoint), url=sns.endpoint, **settings
            )
            record, _, _ = await self._subscriptions.create(call.context, topic.name, new, sns)
        return {"SubscriptionArn": _arn(call, await self._subscriptions.confirm(call.context, record, sns))}

    # Attributes

    async def get_subscription_attributes(self, call: Call) -> Values:
        record, sns = await self._find(call)
        topic = await self._topics.find(record.tenant, record.topic)
        is_pending = record.state is SubscriptionState.PENDING
        attributes = {
            "SubscriptionArn": _arn(call, record),
            "TopicArn": topic_arn(call.region, call.account, record.topic),
            "Owner": call.account,
            "Protocol": sns.protocol,
            "Endpoint": sns.endpoint,
            "ConfirmationWasAuthenticated": _text(sns.is_authenticated and not is_pending),
            "PendingConfirmation": _text(is_pending),
            "RawMessageDelivery": sns.attributes.get("RawMessageDelivery", "false"),
            "SubscriptionPrincipal": f"arn:aws:iam::{call.account}:root",
            **sns.attributes,
        }
        if "FilterPolicy" in sns.attributes:
            attributes.setdefault("FilterPolicyScope", "MessageAttributes")
        state = await self._rewinder.state(record)
        if state is not None:
            attributes["ReplayStatus"] = _REPLAY_STATUSES[state]
        if sns.protocol != "sqs":
            policy = effective_policy(sns.attributes.get("DeliveryPolicy"), topic.settings.sns_attributes.get("DeliveryPolicy"))
            attributes["EffectiveDeliveryPolicy"] = json.dumps(policy.view())
        return {"Attributes": attributes}

    async def set_subscription_attributes(self, call: Call) -> None:
        record, sns = await self._find(call)
        name = call.get("AttributeName")
        value = _stored(name, call.get("AttributeValue", ""))
        topic = await self._topics.find(record.tenant, record.topic)

        def change(known: SubscriptionRecord) -> SubscriptionRecord:
            if known.sns is None:
                raise subscription_missing()
            attributes = {one: text for one, text in known.sns.attributes.items() if one != name}
            if value:
                attributes[name] = value
            check_attributes(attributes if value else {**attributes, name: ""})
            settings = _settings(attributes, topic, call, is_queue=known.queue is not None)
            return msgspec.structs.replace(known, sns=msgspec.structs.replace(known.sns, attributes=attributes), **settings)

        change(record)  # what is not valid begins no replay
        if name == "FilterPolicy" and value and "FilterPolicy" not in sns.attributes:
            self._check_filter_count(topic)
        if name == "ReplayPolicy":
            replay = self._replay_request(topic, value)
            if replay is not None:
                await self._check_replay_count(record, topic)
                await self._rewinder.start(call.context, record.id, replay)
            else:
                await self._rewinder.end(call.context, record.id)
        await self._subscriptions.change_sns(call.context, record, change)

    async def apply_topic_policy(self, call: Call, topic: TopicRecord) -> None:
        """Set the retries of the topic's endpoints after its delivery policy has changed."""

        def change(known: SubscriptionRecord) -> SubscriptionRecord:
            return known if known.sns is None else msgspec.structs.replace(known, **_retries(known.sns.attributes, topic))

        for record in self._subscriptions.of_topic(topic):
            if record.sns is not None and record.url is not None:
                with contextlib.suppress(SubscriptionNotFound):  # it was deleted meanwhile
                    await self._subscriptions.change_sns(call.context, record, change)

    async def _find(self, call: Call) -> tuple[SubscriptionRecord, SnsSubscription]:
        """Raises AwsError if there is no such subscription of the SNS API."""
        if not call.subscription:
            raise invalid("SubscriptionArn Reason: An ARN must have at least 6 elements, not 1")
        record = await self._subscriptions.find(call.context.caller, call.subscription)
        if record.topic != call.topic or record.sns is None:
            raise subscription_missing()
        return record, record.sns

    # List

    async def list_subscriptions(self, call: Call) -> Values:
        return await self._page(call, None)

    async def list_subscriptions_by_topic(self, call: Call) -> Values:
        topic = await self._topics.find(call.context.tenant, call.topic)
        return await self._page(call, topic.name)

    async def _page(self, call: Call, topic: str | None) -> Values:
        page = self._subscriptions.page(call.context.caller, topic, None, PAGE_SIZE, after(call.get("NextToken")))
        found: Values = {"Subscriptions": [_listed(call, one) for one in page.items]}
        if page.next_cursor is not None:
            found["NextToken"] = next_token(page.next_cursor)
        return found

    # Unsubscribe

    async def unsubscribe(self, call: Call) -> None:
        """A call without a signature needs the token of the message's URL."""
        record, sns = await self._find(call)
        if not call.is_signed:
            token = call.request_form.get("Token", "")
            if sns.needs_signed_unsubscribe or not self._tokens.ends(record.tenant, record.incarnation, token):
                raise AwsError("AuthorizationErrorException", "The request must be signed, or have the token of an envelope")
        await self._subscriptions.delete(call.context, record.id)
        self._confirmations.announce_end(record)


def _name(protocol: str, endpoint: str) -> str:
    """The native name of a subscription: there is one for each endpoint."""
    return f"sns-{hashlib.sha256(f'{protocol} {endpoint}'.encode()).hexdigest()[:32]}"


def _stored(name: str, value: str) -> str:
    """The value of an attribute as it is stored: of `True` and `true` there is one form."""
    return value.lower() if name in _BOOLEANS else value


def check_attributes(attributes: Mapping[str, str]) -> None:
    """Raises AwsError, FilterInvalid."""
    for name, value in attributes.items():
        if name not in SETTABLE:
            raise invalid(f"AttributeName: {name[:100]}")
        if name in _BOOLEANS and value not in ("true", "false", ""):
            raise invalid(f"Attributes Reason: {name}: Invalid value [{value[:50]}]. Must be true or false.")
        if name == "FilterPolicyScope" and value not in (*_SCOPES, ""):
            raise invalid(f"FilterPolicyScope: Invalid value [{value[:50]}]. Please use either MessageBody or MessageAttributes")
        if name == "DeliveryPolicy" and value:
            check_subscription_policy(value)
    if policy := attributes.get("FilterPolicy"):
        in_body = attributes.get("FilterPolicyScope") == "MessageBody"
        FilterPolicy(policy, "MessageBody" if in_body else "MessageAttributes")


def _settings(attributes: Mapping[str, str], topic: TopicRecord, call: Call, *, is_queue: bool) -> dict[str, Any]:
    """The settings of deliveries that the attributes stand for. Delivery policies are for endpoints: attempts to store a message
    in a queue are repeated for many hours. Raises AwsError."""
    retries = {"retry_delays_ms": _QUEUE_RETRY_DELAYS_MS, "max_deliver": _QUEUE_ATTEMPTS_MAX}
    return {
        **(retries if is_queue else _retries(attributes, topic)),
        "dead_letter_queue": _dead_letter_queue(attributes.get("RedrivePolicy"), call),
    }


def _retries(attributes: Mapping[str, str], topic: TopicRecord) -> dict[str, Any]:
    """The settings that the delivery policies of an endpoint and its topic stand for."""
    policy = effective_policy(attributes.get("DeliveryPolicy"), topic.settings.sns_attributes.get("DeliveryPolicy"))
    delays = policy.delays_ms
    return {"retry_delays_ms": delays or (1000,), "max_deliver": len(delays) + 1, "max_per_second": policy.max_per_second}


def _dead_letter_queue(text: str | None, call: Call) -> str | None:
    if not text:
        return None
    try:
        arn = json.loads(text)["deadLetterTargetArn"]
        return queue_of_arn(arn, call.account, "deadLetterTargetArn")
    except (ValueError, KeyError, TypeError, RecursionError, AwsError) as exc:
        raise invalid("RedrivePolicy: deadLetterTargetArn is an invalid arn") from exc


def _target(call: Call, protocol: str, endpoint: str) -> tuple[str | None, str | None]:
    """The queue or the URL of an endpoint. Raises AwsError."""
    if protocol not in ("sqs", "http", "https"):
        raise invalid(f"Protocol: {protocol[:30]!r} is not supported; use sqs, http or https")
    if protocol == "sqs":
        try:
            return queue_of_arn(endpoint, call.account, "Endpoint"), None
        except AwsError as exc:
            raise invalid("SQS endpoint ARN") from exc
    if not endpoint.lower().startswith(f"{protocol}://"):
        raise invalid("Endpoint must match the specified protocol")
    return None, endpoint


def _arn(call: Call, record: SubscriptionRecord) -> str:
    return subscription_arn(call.region, call.account, record.topic, record.id)


def _listed(call: Call, record: SubscriptionRecord) -> Values:
    """A subscription in a list. One of the native API is shown by what it delivers to."""
    sns = record.sns
    is_pending = record.state is SubscriptionState.PENDING
    protocol = sns.protocol if sns is not None else "sqs" if record.queue is not None else (record.url or "").partition(":")[0]
    return {
        "SubscriptionArn": _PENDING if is_pending else _arn(call, record),
        "Owner": call.account,
        "Protocol": protocol or record.delivery_type.value,
        "Endpoint": sns.endpoint if sns is not None else record.queue or record.url or "",
        "TopicArn": topic_arn(call.region, call.account, record.topic),
    }


def _text(value: bool) -> str:
    return "true" if value else "false"
