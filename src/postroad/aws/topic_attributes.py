"""Attributes of SNS topics: names, ranges and policies. Pure."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from postroad.api.topics import StrictTopicSettings, TopicSettings
from postroad.aws.delivery_policies import check_topic_policy
from postroad.aws.sns_errors import invalid
from postroad.kernel.clock import rfc3339

MESSAGE_BYTES_DEFAULT, MESSAGE_BYTES_MIN, MESSAGE_BYTES_MAX = 262_144, 1024, 1_048_576
_PLAIN = ("DisplayName", "KmsMasterKeyId")
_FEEDBACK = re.compile(r"(HTTP|Firehose|Lambda|Application|SQS)(Success|Failure)Feedback(RoleArn|SampleRate)")
FIFO = ("ContentBasedDeduplication", "FifoThroughputScope", "ArchivePolicy")
_THROUGHPUT_SCOPES = ("Topic", "MessageGroup")
_ARCHIVE_DAYS_MAX = 365
_DAY_MS = 86_400_000
RETENTION_MS = _DAY_MS  # without an archive: longer than any delivery is repeated
DEDUPE_WINDOW_MS = 300_000
ARCHIVE_BEGINS = "BeginningArchiveTime"
_DISPLAY_NAME_CHARS_MAX = 100
_POLICY_CHARS_MAX = 30_720
_DEFAULT_ACTIONS = (
    *("SNS:GetTopicAttributes", "SNS:SetTopicAttributes", "SNS:AddPermission", "SNS:RemovePermission", "SNS:DeleteTopic"),
    *("SNS:Subscribe", "SNS:ListSubscriptionsByTopic", "SNS:Publish"),
)


def is_fifo_wanted(given: Mapping[str, str]) -> bool:
    return given.get("FifoTopic", "").lower() == "true"


def is_fifo(settings: TopicSettings) -> bool:
    return settings.sns_attributes.get("FifoTopic") == "true"


def checked_attributes(given: Mapping[str, str], *, is_fifo: bool) -> dict[str, str]:
    """The attributes to store; one that is empty is not stored. Raises AwsError."""
    for name, value in given.items():
        if name in FIFO:
            _check_fifo(name, value, is_fifo=is_fifo)
        elif name == "FifoTopic":
            if value.lower() not in ("true", "false"):
                raise invalid("Attributes Reason: FifoTopic: must be true or false")
        else:
            _check(name, value)
    return {name: value for name, value in given.items() if value and name != "FifoTopic" and not _is_no_archive(name, value)}


def _check_fifo(name: str, value: str, *, is_fifo: bool) -> None:
    if not is_fifo:
        raise invalid(f"Attributes Reason: {name} can only be set for FIFO topics")
    if name == "ContentBasedDeduplication" and value not in ("true", "false", ""):
        raise invalid("ContentBasedDeduplication: must be true or false")
    if name == "FifoThroughputScope" and value not in (*_THROUGHPUT_SCOPES, ""):
        raise invalid("FifoThroughputScope: must be Topic or MessageGroup")
    if name == "ArchivePolicy" and value:
        archive_days(value)


def _is_no_archive(name: str, value: str) -> bool:
    return name == "ArchivePolicy" and archive_days(value) is None


def archive_days(text: str) -> int | None:
    """The days that an archive policy keeps messages for; None for an empty policy, which ends the archive. Raises AwsError."""
    try:
        policy = json.loads(text) if len(text) <= _POLICY_CHARS_MAX else None
    except (ValueError, RecursionError):
        policy = None
    if policy == {}:
        return None
    days = str(policy.get("MessageRetentionPeriod")) if isinstance(policy, dict) and len(policy) == 1 else ""
    if not (days.isascii() and days.isdecimal() and len(days) < 5 and 1 <= int(days) <= _ARCHIVE_DAYS_MAX):
        raise invalid(f"ArchivePolicy: MessageRetentionPeriod must be between 1 and {_ARCHIVE_DAYS_MAX} days")
    return int(days)


def topic_settings(settings: StrictTopicSettings, attributes: Mapping[str, str], now_ms: int) -> StrictTopicSettings:
    """The settings with these attributes, and what they stand for natively."""
    stored = {name: value for name, value in attributes.items() if name != ARCHIVE_BEGINS}
    if stored.get("FifoTopic") != "true":
        return msgspec.structs.replace(settings, sns_attributes=stored)
    retention_ms = settings.retention_ms
    policy, before = stored.get("ArchivePolicy"), settings.sns_attributes.get("ArchivePolicy")
    if policy is not None:
        retention_ms = (archive_days(policy) or 1) * _DAY_MS
        stored[ARCHIVE_BEGINS] = settings.sns_attributes.get(ARCHIVE_BEGINS) or rfc3339(now_ms)
    elif before is not None:
        retention_ms = RETENTION_MS
    return msgspec.structs.replace(
        settings,
        sns_attributes=stored,
        retention_ms=retention_ms,
        dedupe_window_ms=DEDUPE_WINDOW_MS,
        dedupe_by_content=stored.get("ContentBasedDeduplication") == "true",
        dedupe_scope="group" if stored.get("FifoThroughputScope") == "MessageGroup" else "topic",
    )


def archive_begins_ms(settings: TopicSettings, now_ms: int) -> int | None:
    """The time of the oldest message that a replay can start with; None without an archive."""
    text = settings.sns_attributes.get(ARCHIVE_BEGINS)
    if text is None:
        return None
    return max(int(datetime.fromisoformat(text).timestamp() * 1000), now_ms - settings.retention_ms)


def _check(name: str, value: str) -> None:
    if name in _PLAIN or _FEEDBACK.fullmatch(name):
        if len(value) > (_DISPLAY_NAME_CHARS_MAX if name == "DisplayName" else 2048):
            raise invalid(f"{name}: too long")
    elif name == "Policy":
        if value:
            policy_of(value)
    elif name == "DeliveryPolicy":
        if value:
            check_topic_policy(value)
    elif name == "SignatureVersion":
        if value not in ("", "1", "2"):
            raise invalid("SignatureVersion: must be 1 or 2")
    elif name == "TracingConfig":
        if value not in ("", "PassThrough", "Active"):
            raise invalid("TracingConfig: must be PassThrough or Active")
    elif name == "MaximumMessageSize":
        is_number = value.isascii() and value.isdecimal() and len(value) < 9
        if value and not (is_number and MESSAGE_BYTES_MIN <= int(value) <= MESSAGE_BYTES_MAX):
            raise invalid(f"MaximumMessageSize: must be between {MESSAGE_BYTES_MIN} and {MESSAGE_BYTES_MAX}")
    else:
        raise invalid(f"AttributeName: {name[:100]}")


def message_bytes_max(attributes: Mapping[str, str]) -> int:
    return int(attributes.get("MaximumMessageSize", MESSAGE_BYTES_DEFAULT))


def default_policy(arn: str, account: str) -> str:
    """The policy that a topic without one shows. Policies have no effect: API keys decide."""
    statement = {
        "Sid": "__default_statement_ID",
        "Effect": "Allow",
        "Principal": {"AWS": "*"},
        "Action": list(_DEFAULT_ACTIONS),
        "Resource": arn,
        "Condition": {"StringEquals": {"AWS:SourceOwner": account}},
    }
    return json.dumps({"Version": "2008-10-17", "Id": "__default_policy_ID", "Statement": [statement]})


def policy_of(text: str) -> dict[str, Any]:
    """A policy document with a list of statements. Raises AwsError."""
    try:
        policy = json.loads(text) if len(text) <= _POLICY_CHARS_MAX else None
    except (ValueError, RecursionError):
        policy = None
    statements = policy.get("Statement") if isinstance(policy, dict) else None
    if not isinstance(policy, dict) or not isinstance(statements, list | dict):
        raise invalid("Policy Error: null")
    listed = statements if isinstance(statements, list) else [statements]
    return {**policy, "Statement": [one for one in listed if isinstance(one, dict)]}
