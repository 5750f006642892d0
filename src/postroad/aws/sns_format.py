"""Deliveries of subscriptions of the SNS API: to queues and HTTP endpoints, enveloped or raw."""

from collections.abc import Mapping
from typing import Any

from postroad.api.subscriptions import SnsSubscription
from postroad.aws.delivery_policies import effective_policy
from postroad.aws.message_attributes import ATTRIBUTES_MAX, headers_of, payload_of
from postroad.aws.sns_envelope import (
    EnvelopeSigner,
    action_url,
    arn_of,
    attribute_views,
    encode_envelope,
    notification,
    signed,
    sqs_attributes,
    text_of,
)
from postroad.aws.sns_tokens import SnsTokens
from postroad.kernel.ids import derived_id
from postroad.outbound.rules import encode_headers
from postroad.queues.records import StoredMessage
from postroad.subscriptions.endpoint_rules import Outcome
from postroad.subscriptions.formats import NotDeliverable, PushRequest
from postroad.subscriptions.outgoing import OutgoingMessage
from postroad.subscriptions.records import SubscriptionRecord
from postroad.subscriptions.sns_message import SnsAttribute, SnsMessage, sns_message
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.records import StoredTopicMessage

_PLAIN_TEXT = "text/plain; charset=UTF-8"
_TRACE, _REPLAYED = "AWSTraceHeader", "Replayed"


class SnsFormat:
    """A `postroad.subscriptions.formats.DeliveryFormat`."""

    def __init__(self, signer: EnvelopeSigner, tokens: SnsTokens, topics: TopicLifecycle) -> None:
        self._signer, self._tokens, self._topics = signer, tokens, topics

    def outcome_of(self, status: int) -> Outcome:
        """Server errors, 429 and redirects are repeated; any other status but success is final."""
        if 200 <= status < 300:
            return Outcome.DELIVERED
        return Outcome.REFUSED if 400 <= status < 500 and status != 429 else Outcome.TRANSIENT

    def push_request(self, record: SubscriptionRecord, message: OutgoingMessage) -> PushRequest:
        sns, extension = _sns(record), message.shared("sns", lambda: sns_message(message.stored))
        envelope = self._envelope(record, message, sns, extension)
        headers = {
            "x-amz-sns-message-type": "Notification",
            "x-amz-sns-message-id": envelope["MessageId"],
            "x-amz-sns-topic-arn": envelope["TopicArn"],
            "x-amz-sns-subscription-arn": arn_of(record, sns),
            "Content-Type": self._content_type(record, sns),
        }
        if not is_raw(sns):
            return PushRequest(encode_envelope(envelope), encode_headers(headers))
        headers["x-amz-sns-rawdelivery"] = "true"
        return PushRequest(envelope["Message"].encode(), encode_headers(headers))

    def queue_message(self, record: SubscriptionRecord, message: OutgoingMessage, now_ms: int) -> StoredMessage:
        sns, stored = _sns(record), message.stored
        extension = message.shared("sns", lambda: sns_message(stored))
        system = {} if extension.trace is None else {_TRACE: extension.trace}
        if is_raw(sns):
            found = _with_replayed(record, stored, extension.attributes)
            if len(found) > ATTRIBUTES_MAX:
                raise NotDeliverable(f"a raw message to a queue has at most {ATTRIBUTES_MAX} attributes")
            text, attributes = text_of(stored, extension, sns.protocol), sqs_attributes(found)
        else:
            text, attributes = encode_envelope(self._envelope(record, message, sns, extension)).decode(), {}
        headers, types = headers_of(attributes, system)
        return StoredMessage(
            v=1,
            id=derived_id(stored.at_ms, record.delivery, stored.sequence, "message"),
            job=derived_id(stored.at_ms, record.delivery, stored.sequence, "job"),
            at=now_ms,
            headers=headers,
            types=types,
            trace=stored.traceparent,
            group=stored.group or extension.group or "",
            dedupe=extension.dedupe or "",
            payload=payload_of(text),
        )

    def _envelope(
        self, record: SubscriptionRecord, message: OutgoingMessage, sns: SnsSubscription, extension: SnsMessage
    ) -> dict[str, Any]:
        """The envelope of this subscription. What all subscriptions of a protocol have in common is signed once."""
        if is_raw(sns):
            return notification(record, message.stored, extension, sns)
        version = self.signature_version(record)
        key = ("envelope", sns.protocol if extension.is_json else "", sns.region, sns.base_url, version)
        shared: dict[str, Any] = message.shared(
            key,
            lambda: signed(notification(record, message.stored, extension, sns), self._signer, version, sns.base_url),
        )
        token = self._tokens.unsubscription(record.tenant, record.incarnation)
        url = action_url(sns.base_url, "Unsubscribe", SubscriptionArn=arn_of(record, sns), Token=token)
        envelope = {**shared, "UnsubscribeURL": url}
        if found := _with_replayed(record, message.stored, extension.attributes):
            envelope["MessageAttributes"] = attribute_views(found)
        return envelope

    def signature_version(self, record: SubscriptionRecord) -> str:
        return self._topic_attributes(record).get("SignatureVersion", "1")

    def _content_type(self, record: SubscriptionRecord, sns: SnsSubscription) -> str:
        own, of_topic = sns.attributes.get("DeliveryPolicy"), self._topic_attributes(record).get("DeliveryPolicy")
        if own is None and of_topic is None:
            return _PLAIN_TEXT
        return effective_policy(own, of_topic).content_type or _PLAIN_TEXT

    def _topic_attributes(self, record: SubscriptionRecord) -> dict[str, str]:
        topic = self._topics.cached(record.tenant, record.topic)
        return {} if topic is None else topic.settings.sns_attributes


def is_raw(sns: SnsSubscription) -> bool:
    return sns.attributes.get("RawMessageDelivery") == "true"


def _with_replayed(
    record: SubscriptionRecord, stored: StoredTopicMessage, attributes: Mapping[str, SnsAttribute]
) -> Mapping[str, SnsAttribute]:
    """The attributes, with the one that marks a replayed message."""
    return {**attributes, _REPLAYED: SnsAttribute("String", "true")} if record.is_replayed(stored.sequence) else attributes


def _sns(record: SubscriptionRecord) -> SnsSubscription:
    if record.sns is None:  # the format is set together with it
        raise NotDeliverable("the subscription was not created through the SNS API")
    return record.sns
