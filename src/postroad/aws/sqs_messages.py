"""SQS operations on messages: send, receive, delete, change visibility, and their batches."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from postroad.api.queues import AlreadySettled, LeaseExpired, NewMessage, Published
from postroad.aws.batches import check_entries
from postroad.aws.calls import Call, OnResult, StartCall
from postroad.aws.errors import AwsError, aws_error, view_of
from postroad.aws.message_attributes import (
    SYSTEM,
    attributes_of,
    body_of,
    check_attributes,
    check_body,
    check_system_attributes,
    headers_of,
    md5_of_attributes,
    md5_of_text,
    payload_of,
    selected,
    size_of,
)
from postroad.aws.model import Values, service_model
from postroad.aws.queue_attributes import MESSAGE_BYTES_MAX
from postroad.aws.resource_names import queue_arn, sequence_number
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError
from postroad.queues.consuming import Consumer
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.ordered_leases import MakeMessage
from postroad.queues.publishing import Publisher
from postroad.queues.records import QueueRecord, StoredMessage

_VISIBILITY_SECONDS_MAX = 43_200
_SYSTEM_NAMES = frozenset(service_model("sqs").shapes["MessageSystemAttributeName"].enum)
_QUEUE_NAMES = frozenset(service_model("sqs").shapes["QueueAttributeName"].enum)
_FIFO_ID = re.compile(r"[!-~]{1,128}")
_GROUP_MISSING = "The request must contain the parameter MessageGroupId."
_DEDUPE_ID_MISSING = (
    "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly"
)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A message to publish, and the digests of the response."""

    new: NewMessage
    digests: dict[str, str]
    size: int


class SqsMessages:
    def __init__(self, lifecycle: QueueLifecycle, publisher: Publisher, consumer: Consumer, clock: Clock) -> None:
        self._lifecycle, self._publisher, self._consumer, self._clock = lifecycle, publisher, consumer, clock

    async def _queue(self, call: Call) -> QueueRecord:
        tenant = call.context.tenant
        return self._lifecycle.cached(tenant, call.queue) or await self._lifecycle.find(tenant, call.queue)

    # Sending

    async def send_message(self, call: Call) -> Values:
        prepared = _prepare(call.values, await self._queue(call))
        published = await self._publisher.publish(call.context, call.queue, prepared.new)
        return {**_sent(published), **prepared.digests}

    def prepare_send(self, call: Call) -> StartCall | None:
        record = self._lifecycle.cached(call.context.tenant, call.queue)
        if record is None:
            return None
        prepared = _prepare(call.values, record)
        single = self._publisher.prepare_single(call.context, call.queue, prepared.new)
        if single is None:
            return None

        def start(on_result: OnResult) -> None:
            def on_published(outcome: Published | Exception) -> None:
                on_result(outcome if isinstance(outcome, Exception) else {**_sent(outcome), **prepared.digests})

            self._publisher.store_single(single, on_published)

        return start

    async def send_message_batch(self, call: Call) -> Values:
        entries = _entries(call, "SendMessageBatchRequestEntry")
        record = await self._queue(call)
        if record.is_ordered:
            _check_fifo_entries(entries, record)
        outcomes: list[_Prepared | AwsError] = []
        for entry in entries:
            try:
                outcomes.append(_prepare(entry, record))
            except AwsError as error:
                outcomes.append(error)
        size = sum(size_of(entry.get("MessageBody", ""), _attributes(entry)) for entry in entries)
        if size > MESSAGE_BYTES_MAX:
            raise AwsError(
                "BatchRequestTooLong",
                f"Batch requests cannot be longer than {MESSAGE_BYTES_MAX} bytes. You have sent {size} bytes.",
            )
        valid = [one for one in outcomes if isinstance(one, _Prepared)]
        stored = iter(await self._publisher.publish_batch(call.context, call.queue, [one.new for one in valid]) if valid else [])
        successful, failed = [], []
        for entry, outcome in zip(entries, outcomes, strict=True):
            if isinstance(outcome, AwsError):
                failed.append(_failure(entry["Id"], outcome))
                continue
            published = next(stored)
            if isinstance(published, Published):
                successful.append({"Id": entry["Id"], **_sent(published), **outcome.digests})
            else:
                failed.append(_failure(entry["Id"], aws_error(published)))
        return _batch_result(successful, failed)

    # Receiving

    async def receive_message(self, call: Call) -> Values:
        receive = _receive(call, await self._queue(call))
        pulling = self._consumer.pull_as(
            receive.make,
            call.context,
            call.queue,
            count=receive.size,
            visibility_timeout_ms=receive.lease_ms,
            wait_ms=receive.wait_ms,
            receive_id=receive.attempt_id,
        )
        return _messages(await call.request.cancel_on_disconnect(pulling) if receive.wait_ms else await pulling)

    def prepare_receive(self, call: Call) -> StartCall | None:
        """A receive of what is visible now. One that waits needs a task."""
        record = self._lifecycle.cached(call.context.tenant, call.queue)
        receive = None if record is None else _receive(call, record)
        if receive is None or receive.wait_ms or receive.attempt_id is not None:
            return None
        pull = self._consumer.prepare_pull(
            call.context, call.queue, count=receive.size, visibility_timeout_ms=receive.lease_ms, make=receive.make
        )
        if pull is None:
            return None

        def start(on_result: OnResult) -> None:
            def on_pulled(outcome: list[Values] | Exception) -> None:
                on_result(outcome if isinstance(outcome, Exception) else _messages(outcome))

            self._consumer.start_pull(pull, on_pulled)

        return start

    # Deleting

    async def delete_message(self, call: Call) -> None:
        [error] = await self._delete(call, [call.get("ReceiptHandle")])
        if error is not None:
            raise error

    async def delete_message_batch(self, call: Call) -> Values:
        entries = _entries(call, "DeleteMessageBatchRequestEntry")
        errors = await self._delete(call, [entry.get("ReceiptHandle", "") for entry in entries])
        return _entry_results(entries, errors)

    def prepare_delete(self, call: Call) -> StartCall | None:
        return self._prepare_deletes(call, [call.get("ReceiptHandle")], None)

    def prepare_delete_batch(self, call: Call) -> StartCall | None:
        entries = _entries(call, "DeleteMessageBatchRequestEntry")
        return self._prepare_deletes(
            call,
            [entry.get("ReceiptHandle", "") for entry in entries],
            _batch_result([{"Id": entry["Id"]} for entry in entries], []),
        )

    def _prepare_deletes(self, call: Call, receipts: Sequence[str], result: Values | None) -> StartCall | None:
        """Deletions whose receipts are all held; the others have outcomes of their own, which `_delete` makes."""
        acks = self._consumer.prepare_ack(call.context, call.queue, receipts)
        if acks is None:
            return None

        def start(on_result: OnResult) -> None:
            self._consumer.start_ack(acks, lambda problem: on_result(result if problem is None else problem))

        return start

    async def _delete(self, call: Call, receipts: Sequence[str]) -> list[AwsError | None]:
        """Any receipt of a message deletes it, and one of a message that is gone is no error. In a FIFO queue the message must
        still be held by the receipt: another consumer may have it."""
        errors = await self._consumer.ack(call.context, call.queue, receipts, accepts_expired=True)
        return [None if error is None else _delete_error(error, text) for error, text in zip(errors, receipts, strict=True)]

    # Visibility

    async def change_message_visibility(self, call: Call) -> None:
        error = await self._change(call, call.get("ReceiptHandle"), call.get("VisibilityTimeout"))
        if error is not None:
            raise error

    async def change_message_visibility_batch(self, call: Call) -> Values:
        entries = _entries(call, "ChangeMessageVisibilityBatchRequestEntry")
        errors = [await self._change(call, entry.get("ReceiptHandle", ""), entry.get("VisibilityTimeout")) for entry in entries]
        return _entry_results(entries, errors)

    async def _change(self, call: Call, handle: str, seconds: int | None) -> AwsError | None:
        if seconds is None:
            return AwsError("MissingParameter", "The request must contain the parameter VisibilityTimeout.")
        if not 0 <= seconds <= _VISIBILITY_SECONDS_MAX:
            return AwsError(
                "InvalidParameterValue",
                f"Value {seconds} for parameter VisibilityTimeout is invalid. Reason: VisibilityTimeout must be an integer "
                "between 0 and 43200.",
            )
        record = await self._queue(call)
        try:
            receipt = self._consumer.receipt(record, handle)
        except PostroadError as problem:
            return _receipt_error(problem, handle)
        if self._clock() + seconds * 1000 > receipt.leased_at_ms + _VISIBILITY_SECONDS_MAX * 1000 + 1000:
            return AwsError(
                "InvalidParameterValue",
                f"Value {seconds} for parameter VisibilityTimeout is invalid. Reason: Total VisibilityTimeout for the message is "
                "beyond the limit [43200 seconds].",
            )
        [outcome] = await self._consumer.extend(call.context, call.queue, [handle], seconds * 1000, follows_extensions=True)
        return _receipt_error(outcome, handle) if isinstance(outcome, PostroadError) else None


def _prepare(values: Mapping[str, Any], record: QueueRecord) -> _Prepared:
    """Check one message. Raises AwsError."""
    body, attributes = values.get("MessageBody", ""), _attributes(values)
    check_body(body)
    check_attributes(attributes)
    system_attributes = values.get("MessageSystemAttributes", {})
    check_system_attributes(system_attributes)
    size = size_of(body, attributes)
    limit = int(record.settings.sqs_attributes.get("MaximumMessageSize", MESSAGE_BYTES_MAX))
    if size > limit:
        raise AwsError(
            "InvalidParameterValue", f"One or more parameters are invalid. Reason: Message must be shorter than {limit} bytes."
        )
    delay = values.get("DelaySeconds")
    if delay is not None and not 0 <= delay <= 900:
        raise AwsError(
            "InvalidParameterValue",
            f"Value {delay} for parameter DelaySeconds is invalid. Reason: DelaySeconds must be >= 0 and <= 900.",
        )
    group, dedupe_id = values.get("MessageGroupId"), values.get("MessageDeduplicationId")
    _check_fifo_id("MessageDeduplicationId", dedupe_id)
    _check_fifo_id("MessageGroupId", group)
    if record.is_ordered:
        _check_fifo(delay, group, dedupe_id, record)
        delay = None
    elif dedupe_id is not None:
        _check_fifo_parameter("MessageDeduplicationId", dedupe_id, record)
    system = {name: str(value["StringValue"]) for name, value in system_attributes.items()}
    headers, types = headers_of(attributes, system)
    digests = {"MD5OfMessageBody": md5_of_text(body)}
    if attributes:
        digests["MD5OfMessageAttributes"] = md5_of_attributes(attributes)
    if system_attributes:
        digests["MD5OfMessageSystemAttributes"] = md5_of_attributes(system_attributes)
    new = NewMessage(
        payload=payload_of(body),
        headers=headers,
        header_types=types,
        delay_ms=None if delay is None else delay * 1000,
        group_id=group,
        dedupe_id=dedupe_id,
    )
    return _Prepared(new, digests, size)


# FIFO queues


def _check_fifo_id(name: str, value: str | None) -> None:
    if value is not None and not _FIFO_ID.fullmatch(value):
        raise AwsError(
            "InvalidParameterValue",
            f"Value {value[:128]} for parameter {name} is invalid. Reason: {name} can only include alphanumeric and punctuation "
            "characters. 1 to 128 in length.",
        )


def _check_fifo_parameter(name: str, value: str, record: QueueRecord) -> None:
    """Raises AwsError if the queue is not FIFO, or the value is invalid."""
    if not record.is_ordered:
        raise AwsError(
            "InvalidParameterValue",
            f"Value {value[:128]} for parameter {name} is invalid. Reason: The request includes a parameter that is not valid "
            "for this queue type.",
        )
    _check_fifo_id(name, value)


def _check_fifo(delay: int | None, group: str | None, dedupe_id: str | None, record: QueueRecord) -> None:
    if delay:
        raise AwsError(
            "InvalidParameterValue",
            f"Value {delay} for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid for "
            "this queue type.",
        )
    if group is None:
        raise AwsError("MissingParameter", _GROUP_MISSING)
    if dedupe_id is None and not record.settings.dedupe_by_content:
        raise AwsError("InvalidParameterValue", _DEDUPE_ID_MISSING)


def _check_fifo_entries(entries: Sequence[Mapping[str, Any]], record: QueueRecord) -> None:
    """What a batch to a FIFO queue is refused for as a whole. Raises AwsError."""
    for entry in entries:
        if not entry.get("MessageDeduplicationId") and not record.settings.dedupe_by_content:
            raise AwsError("InvalidParameterValue", _DEDUPE_ID_MISSING)
        if not entry.get("MessageGroupId"):
            raise AwsError("MissingParameter", _GROUP_MISSING)


def _sent(published: Published) -> Values:
    if published.sequence is None:
        return {"MessageId": published.message_id}
    return {"MessageId": published.message_id, "SequenceNumber": sequence_number(published.sequence)}


def _attributes(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = values.get("MessageAttributes") or {}
    return found


class _Receive(NamedTuple):
    """What a receive asks for, and how its messages are made."""

    size: int  # messages at most
    wait_ms: int
    lease_ms: int | None
    attempt_id: str | None
    make: MakeMessage[Values]


def _receive(call: Call, record: QueueRecord) -> _Receive:
    """Raises AwsError."""
    count = call.integer("MaxNumberOfMessages", 1, 10, "Must be between 1 and 10, if provided.") or 1
    wait = call.integer("WaitTimeSeconds", 0, 20, "Must be >= 0 and <= 20, if provided.")
    timeout = call.integer(
        "VisibilityTimeout", 0, _VISIBILITY_SECONDS_MAX, "VisibilityTimeout must be an integer between 0 and 43200."
    )
    if wait is None:
        wait = int(record.settings.sqs_attributes.get("ReceiveMessageWaitTimeSeconds", "0"))
    system = {*call.get("AttributeNames", ()), *call.get("MessageSystemAttributeNames", ())}
    unknown = next((one for one in system if one not in _SYSTEM_NAMES and one not in _QUEUE_NAMES), None)
    if unknown is not None:
        raise AwsError("InvalidAttributeName", f"Unknown Attribute {unknown[:100]}.")
    names, attempt_id = call.get("MessageAttributeNames", ()), call.get("ReceiveRequestAttemptId")
    if attempt_id is not None:
        _check_fifo_parameter("ReceiveRequestAttemptId", attempt_id, record)

    def make(stored: StoredMessage, attempt: int, receipt: str, first_ms: int, sequence: int | None) -> Values:
        return _received(call, stored, attempt, receipt, first_ms, sequence, system, names)

    return _Receive(count, wait * 1000, None if timeout is None else timeout * 1000, attempt_id, make)


def _messages(messages: list[Values]) -> Values:
    return {"Messages": messages} if messages else {}


def _received(
    call: Call,
    stored: StoredMessage,
    attempt: int,
    receipt: str,
    first_ms: int,
    sequence: int | None,
    system: set[str],
    names: Sequence[str],
) -> Values:
    body = body_of(stored.payload)
    message: Values = {"MessageId": stored.id, "ReceiptHandle": receipt, "MD5OfBody": md5_of_text(body), "Body": body}
    if system:
        values = {
            "SenderId": stored.by,
            "SentTimestamp": str(stored.at),
            "ApproximateReceiveCount": str(attempt),
            "ApproximateFirstReceiveTimestamp": str(first_ms),
        }
        if sequence is not None:
            values["SequenceNumber"] = sequence_number(sequence)
        if stored.group:
            values["MessageGroupId"] = stored.group
        if stored.dedupe:
            values["MessageDeduplicationId"] = stored.dedupe
        if stored.dead is not None:
            values["DeadLetterQueueSourceArn"] = queue_arn(call.region, call.account, stored.dead.queue)
        for name, kind in stored.types.items():
            if kind == SYSTEM and name in _SYSTEM_NAMES:
                values[name] = stored.headers[name]
        if found := values if "All" in system else {name: value for name, value in values.items() if name in system}:
            message["Attributes"] = found
    if names and stored.headers and (chosen := selected(attributes_of(stored.headers, stored.types), names)):
        message["MessageAttributes"] = chosen
        message["MD5OfMessageAttributes"] = md5_of_attributes(chosen)
    return message


# Batches


def _entries(call: Call, name: str) -> list[dict[str, Any]]:
    """The entries of a batch. Raises AwsError."""
    entries: list[dict[str, Any]] = call.get("Entries")
    check_entries(entries, name)
    return entries


def _entry_results(entries: Sequence[Mapping[str, Any]], errors: Sequence[AwsError | None]) -> Values:
    pairs = list(zip(entries, errors, strict=True))
    return _batch_result(
        [{"Id": entry["Id"]} for entry, error in pairs if error is None],
        [_failure(entry["Id"], error) for entry, error in pairs if error is not None],
    )


def _batch_result(successful: list[Values], failed: list[Values]) -> Values:
    return {"Successful": successful, **({"Failed": failed} if failed else {})}


def _failure(entry_id: str, error: AwsError) -> Values:
    view = view_of(error, service_model("sqs"))
    return {"Id": entry_id, "SenderFault": view.status < 500, "Code": view.code, "Message": view.message}


def _delete_error(problem: PostroadError, handle: str) -> AwsError:
    """The error of a delete. Only a FIFO queue refuses one after the lease has ended."""
    if isinstance(problem, LeaseExpired | AlreadySettled):
        return AwsError(
            "InvalidParameterValue",
            f"Value {handle[:200]} for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired.",
        )
    return _receipt_error(problem, handle)


def _receipt_error(problem: PostroadError, handle: str) -> AwsError:
    error = aws_error(problem)
    if error.code == "ReceiptHandleIsInvalid":
        return AwsError(error.code, f'The input receipt handle "{handle[:100]}" is not a valid receipt handle.')
    return error
