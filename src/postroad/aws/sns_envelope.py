"""Messages as SNS delivers them: envelopes, their signatures, and raw messages with attributes. Pure."""

import base64
import binascii
import contextlib
import json
import uuid
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import quote

from postroad.api.subscriptions import SnsSubscription
from postroad.aws.resource_names import sequence_number, subscription_arn, topic_arn
from postroad.kernel.clock import rfc3339
from postroad.subscriptions.records import SubscriptionRecord
from postroad.subscriptions.sns_message import SnsAttribute, SnsMessage
from postroad.topics.records import StoredTopicMessage

SIGNED_FIELDS = {
    "Notification": ("Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"),
    "SubscriptionConfirmation": ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
    "UnsubscribeConfirmation": ("Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"),
}


class EnvelopeSigner(Protocol):
    def sign(self, version: str, text: bytes) -> tuple[str, str]:
        """The signature in base64, and the path of the certificate. Raises EngineUnavailable while no key is loaded."""


def message_id(topic_incarnation: str, sequence: int) -> str:
    """The id of a message, which follows from its place in the topic: publishing and all deliveries agree on it."""
    return str(uuid.uuid5(uuid.UUID(topic_incarnation), str(sequence)))


def text_of(stored: StoredTopicMessage, extension: SnsMessage, protocol: str) -> str:
    """The message for a protocol."""
    text = stored.body.decode("utf-8", "replace")
    if not extension.is_json:
        return text
    try:
        found = json.loads(text)
        chosen = found.get(protocol, found["default"])
    except (ValueError, KeyError, AttributeError, RecursionError):  # not what a publish accepts: another client's
        return text
    return chosen if isinstance(chosen, str) else json.dumps(chosen)


def string_to_sign(envelope: Mapping[str, Any]) -> bytes:
    names = SIGNED_FIELDS[envelope["Type"]]
    return "".join(f"{name}\n{envelope[name]}\n" for name in names if envelope.get(name) is not None).encode()


def notification(
    record: SubscriptionRecord, stored: StoredTopicMessage, extension: SnsMessage, sns: SnsSubscription
) -> dict[str, Any]:
    """The envelope of a message, before it is signed. It is the same for all subscriptions with one protocol."""
    envelope: dict[str, Any] = {
        "Type": "Notification",
        "MessageId": message_id(record.topic_incarnation, stored.sequence),
    }
    if extension.dedupe is not None:  # of a FIFO topic
        envelope["SequenceNumber"] = sequence_number(stored.sequence)
    envelope["TopicArn"] = topic_arn(sns.region, sns.account, record.topic)
    if extension.subject is not None:
        envelope["Subject"] = extension.subject
    envelope["Message"] = text_of(stored, extension, sns.protocol)
    envelope["Timestamp"] = rfc3339(stored.at_ms)
    return envelope


def signed(envelope: Mapping[str, Any], signer: EnvelopeSigner, version: str, base_url: str) -> dict[str, Any]:
    signature, path = signer.sign(version, string_to_sign(envelope))
    return {
        **envelope,
        "SignatureVersion": version,
        "Signature": signature,
        "SigningCertURL": f"{base_url}{path}",
    }


def attribute_views(attributes: Mapping[str, SnsAttribute]) -> dict[str, dict[str, str]]:
    return {name: {"Type": one.type, "Value": one.value} for name, one in attributes.items()}


def sqs_attributes(attributes: Mapping[str, SnsAttribute]) -> dict[str, dict[str, Any]]:
    """Message attributes of SQS, of a raw delivery."""
    return {name: _sqs_attribute(one) for name, one in attributes.items()}


def _sqs_attribute(one: SnsAttribute) -> dict[str, Any]:
    if one.type.startswith("Binary"):
        with contextlib.suppress(binascii.Error, ValueError):  # of another client's header
            return {"DataType": one.type, "BinaryValue": base64.b64decode(one.value, validate=True)}
    return {"DataType": one.type, "StringValue": one.value}


def arn_of(record: SubscriptionRecord, sns: SnsSubscription) -> str:
    return subscription_arn(sns.region, sns.account, record.topic, record.id)


def action_url(base_url: str, action: str, **parameters: str) -> str:
    """A URL that works without a signature."""
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in {"Action": action, **parameters}.items())
    return f"{base_url}/?{query}"


def encode_envelope(envelope: Mapping[str, Any]) -> bytes:
    return json.dumps(envelope, indent=2, ensure_ascii=False).encode()
