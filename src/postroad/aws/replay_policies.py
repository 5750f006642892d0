"""Replay policies of SNS subscriptions: what they ask for, and errors. Pure."""

import json
from datetime import datetime
from typing import Any

from postroad.api.subscriptions import RewindRequest
from postroad.aws.sns_errors import invalid

_KNOWN = frozenset({"PointType", "StartingPoint", "EndingPoint"})
_CHARS_MAX = 1024


def replay_request(text: str, archive_begins_ms: int | None, now_ms: int) -> RewindRequest:
    """What a policy asks for. Raises AwsError if it is invalid, or if the topic has no archive of that time."""
    if archive_begins_ms is None:
        raise invalid("ReplayPolicy: the topic must have an ArchivePolicy")
    policy = _policy(text)
    start = _time(policy, "StartingPoint")
    if start is None:
        raise invalid("ReplayPolicy: StartingPoint is required")
    end = _time(policy, "EndingPoint")
    start_ms = int(start.timestamp() * 1000)
    if start_ms > now_ms:
        raise invalid("ReplayPolicy: StartingPoint must not be in the future")
    if start_ms < archive_begins_ms - 1000:  # times of policies have whole seconds
        raise invalid("ReplayPolicy: StartingPoint must not be before BeginningArchiveTime")
    if end is not None and end <= start:
        raise invalid("ReplayPolicy: EndingPoint must be after StartingPoint")
    return RewindRequest(from_time=start, to_time=end)


def _policy(text: str) -> dict[str, Any]:
    try:
        policy = json.loads(text) if len(text) <= _CHARS_MAX else None
    except (ValueError, RecursionError):
        policy = None
    if not isinstance(policy, dict):
        raise invalid("ReplayPolicy: failed to parse JSON")
    unknown = next((name for name in policy if name not in _KNOWN), None)
    if unknown is not None:
        raise invalid(f"ReplayPolicy: unknown field {unknown[:50]}")
    if policy.get("PointType") != "Timestamp":
        raise invalid("ReplayPolicy: PointType must be Timestamp")
    return policy


def _time(policy: dict[str, Any], name: str) -> datetime | None:
    text = policy.get(name)
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise invalid(f"ReplayPolicy: {name} must be a timestamp such as 2024-01-31T12:00:00Z")
    return found
