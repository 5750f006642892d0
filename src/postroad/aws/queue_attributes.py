"""Attributes of SQS queues: ranges, defaults, and the settings of a queue that they stand for. Pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

import msgspec

from postroad.api.queues import QueueStats, StrictQueueSettings
from postroad.aws.errors import AwsError
from postroad.aws.resource_names import queue_arn, queue_of_arn

MESSAGE_BYTES_MAX = 1_048_576
RECEIVES_MAX = 1000
_POLICY_CHARS_MAX = 65_536


class Range(NamedTuple):
    min: int
    max: int
    default: int


RANGES = {
    "VisibilityTimeout": Range(0, 43_200, 30),
    "DelaySeconds": Range(0, 900, 0),
    "MessageRetentionPeriod": Range(60, 1_209_600, 345_600),
    "MaximumMessageSize": Range(1024, MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX),
    "ReceiveMessageWaitTimeSeconds": Range(0, 20, 0),
    "KmsDataKeyReusePeriodSeconds": Range(60, 86_400, 300),
}
_SETTINGS = {"VisibilityTimeout": "visibility_timeout_ms", "DelaySeconds": "delay_ms", "MessageRetentionPeriod": "retention_ms"}
STORED_ONLY = ("Policy", "KmsMasterKeyId", "KmsDataKeyReusePeriodSeconds", "SqsManagedSseEnabled")
FIFO = ("FifoQueue", "ContentBasedDeduplication", "DeduplicationScope", "FifoThroughputLimit")
_DEDUPE_SCOPES: dict[str, Literal["queue", "group"]] = {"queue": "queue", "messageGroup": "group"}
_THROUGHPUT_LIMITS = ("perQueue", "perMessageGroupId")
READ_ONLY = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
    "CreatedTimestamp",
    "LastModifiedTimestamp",
    "QueueArn",
)
COUNTS = READ_ONLY[:3]
SETTABLE = (*RANGES, "RedrivePolicy", "RedriveAllowPolicy", *(name for name in STORED_ONLY if name not in RANGES))
_REDRIVE_PERMISSIONS = ("allowAll", "denyAll", "byQueue")
_SOURCES_MAX = 10


def default_settings(*, is_fifo: bool = False) -> StrictQueueSettings:
    """The settings of a queue that is created through SQS: a message is delivered until it is deleted or expires. A FIFO queue is
    an ordered queue."""
    changes = {field: RANGES[name].default * 1000 for name, field in _SETTINGS.items()}
    return StrictQueueSettings(max_attempts=0, ordered=is_fifo, **changes)  # type: ignore[arg-type]


def is_fifo_wanted(given: Mapping[str, str]) -> bool:
    return given.get("FifoQueue", "").lower() == "true"


def with_attributes(settings: StrictQueueSettings, given: Mapping[str, str], account: str) -> StrictQueueSettings:
    """The settings after these attributes are set. Raises AwsError."""
    changes: dict[str, Any] = {}
    stored = dict(settings.sqs_attributes)
    for name, value in given.items():
        _check_name(name, is_fifo=settings.ordered)
        if name in _SETTINGS:
            changes[_SETTINGS[name]] = _number(name, value) * 1000
        elif name == "RedrivePolicy":
            changes |= _redrive_changes(value, account)
        elif name in FIFO[:3]:
            changes |= _fifo_changes(name, value)
        elif not value:
            stored.pop(name, None)
        else:
            stored[name] = _stored_value(name, value, account)
    changed = msgspec.structs.replace(settings, sqs_attributes=stored, **changes)
    if stored.get("FifoThroughputLimit") == "perMessageGroupId" and changed.dedupe_scope != "group":
        raise AwsError(
            "InvalidAttributeValue",
            "Invalid value for the parameter FifoThroughputLimit. Reason: The perMessageGroupId value is allowed only when the "
            "value for DeduplicationScope is messageGroup.",
        )
    return changed


def _check_name(name: str, *, is_fifo: bool) -> None:
    if name in FIFO[2:] and not is_fifo:
        raise AwsError("InvalidAttributeName", f"You can specify the {name} only when FifoQueue is set to true.")
    if name not in SETTABLE and not (is_fifo and name in FIFO):
        raise AwsError("InvalidAttributeName", f"Unknown Attribute {name[:100]}.")


def _fifo_changes(name: str, value: str) -> dict[str, Any]:
    """The settings of a FIFO queue for an attribute. Raises AwsError."""
    if name == "FifoQueue":
        if value.lower() != "true":
            raise AwsError(
                "InvalidAttributeValue",
                "Invalid value for the parameter FifoQueue. Reason: Modifying queue type is not supported.",
            )
        return {}
    if name == "ContentBasedDeduplication":
        if value.lower() not in ("true", "false"):
            raise _invalid(name)
        return {"dedupe_by_content": value.lower() == "true"}
    if value not in _DEDUPE_SCOPES:
        raise _invalid(name)
    return {"dedupe_scope": _DEDUPE_SCOPES[value]}


def _stored_value(name: str, value: str, account: str) -> str:
    if name in RANGES:
        return str(_number(name, value))
    if name == "SqsManagedSseEnabled" and value not in ("true", "false"):
        raise _invalid(name)
    if name == "FifoThroughputLimit" and value not in _THROUGHPUT_LIMITS:
        raise _invalid(name)
    if name == "RedriveAllowPolicy":
        _allow_policy(value, account)
    if name == "Policy":
        check_policy(value)
    if len(value) > _POLICY_CHARS_MAX:
        raise _invalid(name)
    return value


def _number(name: str, value: str) -> int:
    low, high, _ = RANGES[name]
    if not (value.isascii() and value.isdecimal() and len(value) < 10) or not low <= int(value) <= high:
        raise _invalid(name)
    return int(value)


def _redrive_changes(value: str, account: str) -> dict[str, Any]:
    if not value:
        return {"dead_letter_queue": None, "max_attempts": 0}
    policy = _json_object("RedrivePolicy", value)
    arn, count = policy.get("deadLetterTargetArn"), policy.get("maxReceiveCount")
    if not isinstance(arn, str) or count is None:
        raise _invalid_policy(
            value, "Redrive policy does not contain mandatory attribute: deadLetterTargetArn or maxReceiveCount."
        )
    text = str(count)
    if (
        isinstance(count, bool)
        or not (text.isascii() and text.isdecimal() and len(text) < 6)
        or not 1 <= int(text) <= RECEIVES_MAX
    ):
        raise _invalid_policy(
            value, f"Invalid value for maxReceiveCount: {text[:20]}, valid values are from 1 to {RECEIVES_MAX} both inclusive."
        )
    try:
        return {"dead_letter_queue": queue_of_arn(arn, account, "deadLetterTargetArn"), "max_attempts": int(text)}
    except AwsError as exc:
        raise _invalid_policy(value, "Dead letter target does not exist or is invalid.") from exc


def missing_target(policy: str) -> AwsError:
    return _invalid_policy(policy, "Dead letter target does not exist.")


def refused_target(policy: str) -> AwsError:
    return _invalid_policy(policy, "The dead letter queue does not allow this queue as a source.")


def mixed_target(policy: str) -> AwsError:
    return _invalid_policy(policy, "Dead-letter queue must be same type of queue as the source.")


def allows_source(target: StrictQueueSettings, source: str, account: str) -> bool:
    """Whether the `RedriveAllowPolicy` of a dead-letter queue allows this queue as its source."""
    text = target.sqs_attributes.get("RedriveAllowPolicy")
    if text is None:
        return True
    permission, sources = _allow_policy(text, account)
    return permission == "allowAll" or (permission == "byQueue" and source in sources)


def _allow_policy(text: str, account: str) -> tuple[str, list[str]]:
    policy = _json_object("RedriveAllowPolicy", text)
    permission, arns = policy.get("redrivePermission"), policy.get("sourceQueueArns", [])
    if permission not in _REDRIVE_PERMISSIONS or not isinstance(arns, list) or len(arns) > _SOURCES_MAX:
        raise _invalid("RedriveAllowPolicy")
    if (permission == "byQueue") != bool(arns) or not all(isinstance(one, str) for one in arns):
        raise _invalid("RedriveAllowPolicy")
    return permission, [queue_of_arn(one, account, "sourceQueueArns") for one in arns]


def check_policy(text: str) -> dict[str, Any]:
    """A policy document. It is stored and has no effect. Raises AwsError."""
    policy = _json_object("Policy", text)
    if not isinstance(policy.get("Statement"), list | dict):
        raise _invalid("Policy")
    return policy


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if len(text) <= _POLICY_CHARS_MAX else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _invalid(name)
    return found


def attributes_of(
    settings: StrictQueueSettings,
    stats: QueueStats | None,
    names: Iterable[str],
    *,
    name: str,
    region: str,
    account: str,
    created_at_ms: int,
    updated_at_ms: int,
) -> dict[str, str]:
    """The attributes of a queue as SQS returns them, all values being strings."""
    stored = settings.sqs_attributes
    values = {
        "VisibilityTimeout": str((settings.visibility_timeout_ms or 0) // 1000),
        "DelaySeconds": str(settings.delay_ms // 1000),
        "MessageRetentionPeriod": str(min(settings.retention_ms // 1000 or 10**9, RANGES["MessageRetentionPeriod"].max)),
        "MaximumMessageSize": stored.get("MaximumMessageSize", str(MESSAGE_BYTES_MAX)),
        "ReceiveMessageWaitTimeSeconds": stored.get("ReceiveMessageWaitTimeSeconds", "0"),
        "SqsManagedSseEnabled": stored.get("SqsManagedSseEnabled", "false" if "KmsMasterKeyId" in stored else "true"),
        "CreatedTimestamp": str(created_at_ms // 1000),
        "LastModifiedTimestamp": str(updated_at_ms // 1000),
        "QueueArn": queue_arn(region, account, name),
    }
    if settings.ordered:
        values |= {
            "FifoQueue": "true",
            "ContentBasedDeduplication": "true" if settings.dedupe_by_content else "false",
            "DeduplicationScope": "messageGroup" if settings.dedupe_scope == "group" else "queue",
            "FifoThroughputLimit": stored.get("FifoThroughputLimit", "perQueue"),
        }
    for one in ("Policy", "RedriveAllowPolicy", "KmsMasterKeyId"):
        if one in stored:
            values[one] = stored[one]
    if "KmsMasterKeyId" in stored:
        values["KmsDataKeyReusePeriodSeconds"] = stored.get("KmsDataKeyReusePeriodSeconds", "300")
    if settings.dead_letter_queue is not None:
        target = queue_arn(region, account, settings.dead_letter_queue)
        values["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": target, "maxReceiveCount": settings.max_attempts})
    if stats is not None:
        counts = (stats.ready, stats.delayed, stats.leased + stats.retrying)
        values |= dict(zip(COUNTS, map(str, counts), strict=True))
    wanted = set(names)
    return values if "All" in wanted else {one: value for one, value in values.items() if one in wanted}


def check_names(names: Iterable[str]) -> None:
    """Raises AwsError for a name that no queue has."""
    unknown = next((one for one in names if one not in ("All", *SETTABLE, *READ_ONLY, *FIFO)), None)
    if unknown is not None:
        raise AwsError("InvalidAttributeName", f"Unknown Attribute {unknown[:100]}.")


def _invalid(name: str) -> AwsError:
    return AwsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.")


def _invalid_policy(value: str, reason: str) -> AwsError:
    return AwsError("InvalidParameterValue", f"Value {value[:300]} for parameter RedrivePolicy is invalid. Reason: {reason}")
