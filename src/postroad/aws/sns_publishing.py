"""SNS operations that publish: Publish and PublishBatch."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from postroad.api.topics import NewTopicMessage, PublishedTopicMessage
from postroad.aws.batches import check_entries
from postroad.aws.calls import Call
from postroad.aws.errors import AwsError, aws_error, view_of
from postroad.aws.message_attributes import check_each_attribute, size_of
from postroad.aws.model import Values, service_model
from postroad.aws.resource_names import sequence_number
from postroad.aws.sns_envelope import message_id
from postroad.aws.sns_errors import invalid, sns_error, topic_missing
from postroad.aws.topic_attributes import MESSAGE_BYTES_DEFAULT, is_fifo, message_bytes_max
from postroad.kernel.errors import PostroadError
from postroad.subscriptions.sns_message import STRING_ARRAY, SnsAttribute, SnsMessage
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.publishing import TopicPublisher
from postroad.topics.records import TopicRecord
from postroad.topics.rules import is_own_header

SUBJECT = "sns"  # of the topic's messages: SNS has none
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
_SUBJECT_CHARS_MAX = 100
_FIFO_ID = re.compile(r"[!-~]{1,128}")
_TRACE = "AWSTraceHeader"
_HEADER_CHARS_MAX = 1024
_HALF_PAIR = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class _Prepared:
    new: NewTopicMessage
    extension: str


class SnsPublishing:
    def __init__(self, topics: TopicLifecycle, publisher: TopicPublisher) -> None:
        self._topics, self._publisher = topics, publisher

    async def publish(self, call: Call) -> Values:
        if call.get("PhoneNumber"):
            raise invalid("PhoneNumber: SMS is not supported")
        topic = await self._topic(call)
        prepared = _prepare(call.values, topic)
        published = await self._publisher.publish(call.context, topic.name, prepared.new, extension=prepared.extension)
        return _published(topic, published)

    async def publish_batch(self, call: Call) -> Values:
        entries: list[dict[str, Any]] = call.get("PublishBatchRequestEntries")
        check_entries(entries, "PublishBatchRequestEntry", suffix="Exception")
        topic = await self._topic(call)
        if is_fifo(topic.settings):
            for entry in entries:
                _check_fifo(entry.get("MessageGroupId"), entry.get("MessageDeduplicationId"), topic)
        size = sum(size_of(one.get("Message", ""), one.get("MessageAttributes") or {}) for one in entries)
        if size > max(MESSAGE_BYTES_DEFAULT, message_bytes_max(topic.settings.sns_attributes)):
            raise AwsError("BatchRequestTooLongException", "The length of all the messages put together is more than the limit.")
        outcomes: list[_Prepared | AwsError] = []
        for entry in entries:
            try:
                outcomes.append(_prepare(entry, topic))
            except AwsError as error:
                outcomes.append(error)
        valid = [one for one in outcomes if isinstance(one, _Prepared)]
        stored = iter(
            await self._publisher.publish_batch(
                call.context, topic.name, [one.new for one in valid], extensions=[one.extension for one in valid]
            )
            if valid
            else ()
        )
        successful, failed = [], []
        for entry, outcome in zip(entries, outcomes, strict=True):
            result = outcome if isinstance(outcome, AwsError) else next(stored)
            if isinstance(result, PublishedTopicMessage):
                successful.append({"Id": entry["Id"], **_published(topic, result)})
            else:
                failed.append(_failure(entry["Id"], result))
        return {"Successful": successful, "Failed": failed}

    async def _topic(self, call: Call) -> TopicRecord:
        if not call.topic:
            raise invalid("TopicArn or TargetArn Reason: no value for required parameter")
        if call.subscription:
            raise topic_missing()
        return self._topics.cached(call.context.tenant, call.topic) or await self._topics.find(call.context.tenant, call.topic)


def _prepare(values: Mapping[str, Any], topic: TopicRecord) -> _Prepared:
    """Check one message. Raises AwsError."""
    text, subject = values.get("Message", ""), values.get("Subject")
    attributes: dict[str, dict[str, Any]] = values.get("MessageAttributes") or {}
    if not text:
        raise invalid("Empty message")
    is_json = _check_structure(values.get("MessageStructure"), text)
    _check_subject(subject)
    _check_attributes(attributes)
    size, limit = size_of(text, attributes), message_bytes_max(topic.settings.sns_attributes)
    if size > limit:
        raise invalid("Message too long")
    group, dedupe_id = values.get("MessageGroupId"), values.get("MessageDeduplicationId")
    for name, value in (("MessageGroupId", group), ("MessageDeduplicationId", dedupe_id)):
        if value is not None and not _FIFO_ID.fullmatch(value):
            raise invalid(f"{name} Reason: {name} can only include alphanumeric and punctuation characters. 1 to 128 in length")
    if is_fifo(topic.settings):
        _check_fifo(group, dedupe_id, topic)
        dedupe_id = dedupe_id or hashlib.sha256(text.encode()).hexdigest()
    elif dedupe_id is not None:
        raise invalid(
            "MessageDeduplicationId Reason: The request includes MessageDeduplicationId parameter that is not valid "
            "for this topic type"
        )
    stored = {name: _stored_attribute(value) for name, value in attributes.items()}
    trace = stored.pop(_TRACE, None)
    extension = SnsMessage(
        subject=subject, is_json=is_json, attributes=stored, dedupe=dedupe_id, trace=None if trace is None else trace.value
    )
    new = NewTopicMessage(
        subject=SUBJECT,
        body_b64=base64.b64encode(text.encode()).decode(),
        content_type=_JSON if _is_json(text) else _TEXT,
        headers=_native_headers(stored),
        group_id=group,
        dedupe_id=dedupe_id,
    )
    return _Prepared(new, extension.encode())


def _published(topic: TopicRecord, published: PublishedTopicMessage) -> Values:
    found: Values = {"MessageId": message_id(topic.incarnation, published.sequence)}
    if is_fifo(topic.settings):
        found["SequenceNumber"] = sequence_number(published.sequence)
    return found


def _check_fifo(group: str | None, dedupe_id: str | None, topic: TopicRecord) -> None:
    """What a message of a FIFO topic must have. Raises AwsError."""
    if group is None:
        raise invalid("The MessageGroupId parameter is required for FIFO topics")
    if dedupe_id is None and not topic.settings.dedupe_by_content:
        raise invalid(
            "The topic should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
        )


def _check_structure(structure: str | None, text: str) -> bool:
    """True if the message is an object with one for each protocol."""
    if structure is None:
        return False
    if structure != "json":
        raise invalid("MessageStructure")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise invalid("Message Structure - JSON message body failed to parse") from exc
    if not isinstance(found, dict) or "default" not in found:
        raise invalid("Message Structure - No default entry in JSON message body")
    if any(isinstance(one, str) and _HALF_PAIR.search(one) for one in found.values()):
        raise invalid("Message Structure - JSON message body has half of a surrogate pair, which cannot be delivered")
    return True


def _check_subject(subject: str | None) -> None:
    if subject is None:
        return
    if not 1 <= len(subject) <= _SUBJECT_CHARS_MAX or not subject.isprintable() or subject[0].isspace():
        raise invalid("Subject")


def _check_attributes(attributes: Mapping[str, Mapping[str, Any]]) -> None:
    try:
        check_each_attribute(attributes)
    except AwsError as error:
        raise AwsError("InvalidParameterValueException", error.message) from error
    for name, value in attributes.items():
        if value["DataType"] != STRING_ARRAY:
            continue
        try:
            found = json.loads(value["StringValue"])
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, list) or not all(one is None or isinstance(one, str | int | float) for one in found):
            raise AwsError(
                "InvalidParameterValueException",
                f"The message attribute '{name}' of type {STRING_ARRAY} must be a JSON array of texts, numbers, booleans, null.",
            )


def _stored_attribute(value: Mapping[str, Any]) -> SnsAttribute:
    kind = str(value["DataType"])
    if kind.startswith("Binary"):
        return SnsAttribute(kind, base64.b64encode(value["BinaryValue"]).decode())
    return SnsAttribute(kind, str(value["StringValue"]))


def _native_headers(attributes: Mapping[str, SnsAttribute]) -> dict[str, str]:
    """The attributes as native readers see them: those that can be headers."""
    found = {}
    for name, one in attributes.items():
        is_short = len(one.value) <= _HEADER_CHARS_MAX and one.value == one.value.strip() and one.value.isprintable()
        if is_short and not is_own_header(name):
            found[name] = one.value
    return found if sum(len(name) + len(value.encode()) for name, value in found.items()) <= _HEADER_CHARS_MAX * 4 else {}


def _is_json(text: str) -> bool:
    if text[:1] not in "{[":
        return False
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _failure(entry_id: str, problem: AwsError | PostroadError) -> Values:
    error = problem if isinstance(problem, AwsError) else sns_error(problem) or aws_error(problem)
    view = view_of(error, service_model("sns"))
    return {"Id": entry_id, "SenderFault": view.status < 500, "Code": view.code, "Message": view.message}
