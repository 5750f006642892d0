"""Delivery policies of SNS: when a failed delivery to an HTTP endpoint is repeated, and how fast. Pure.

A policy is that of the subscription, else that of its topic, else the default: three retries, 20 seconds apart.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from postroad.aws.errors import AwsError

RETRIES_MAX = 100
SECONDS_MAX = 3600
_BACKOFFS = ("arithmetic", "exponential", "geometric", "linear")
_COUNTS = ("numNoDelayRetries", "numMinDelayRetries", "numMaxDelayRetries")
_DEFAULT: dict[str, Any] = {
    "minDelayTarget": 20,
    "maxDelayTarget": 20,
    "numRetries": 3,
    "numMaxDelayRetries": 0,
    "numNoDelayRetries": 0,
    "numMinDelayRetries": 0,
    "backoffFunction": "linear",
}
_TOPIC_KEYS = {
    "defaultHealthyRetryPolicy": "healthyRetryPolicy",
    "defaultThrottlePolicy": "throttlePolicy",
    "defaultRequestPolicy": "requestPolicy",
}
_CONTENT_TYPES = (
    *("application/json", "application/octet-stream", "application/x-www-form-urlencoded", "application/xml", "text/plain"),
    *("application/xhtml+xml", "text/html", "text/xml", "text/css", "text/csv", "application/soap+xml", "application/atom+xml"),
)

_CONTENT_TYPE_CHARS_MAX = 256


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """`retry`: the healthy retry policy with all its values."""

    retry: dict[str, Any]
    max_per_second: int | None = None
    content_type: str | None = None

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The delay before each retry: none, the shortest, growing ones, the longest."""
        policy = self.retry
        low, high = policy["minDelayTarget"], policy["maxDelayTarget"]
        none, least, most = (policy[name] for name in _COUNTS)
        growing = policy["numRetries"] - none - least - most
        steps = [_backoff(policy["backoffFunction"], low, high, index, growing) for index in range(growing)]
        seconds = [0.0] * none + [float(low)] * least + steps + [float(high)] * most
        return tuple(int(one * 1000) for one in seconds)

    def view(self) -> dict[str, Any]:
        """The policy as `EffectiveDeliveryPolicy` of a subscription shows it."""
        shown: dict[str, Any] = {"healthyRetryPolicy": self.retry}
        if self.max_per_second is not None:
            shown["throttlePolicy"] = {"maxReceivesPerSecond": self.max_per_second}
        if self.content_type is not None:
            shown["requestPolicy"] = {"headerContentType": self.content_type}
        return shown


DEFAULT_POLICY = DeliveryPolicy(_DEFAULT)


def effective_policy(subscription: str | None, topic: str | None) -> DeliveryPolicy:
    """Raises AwsError if one is invalid."""
    of_topic = _topic_sections(topic) if topic else {}
    of_subscription = _object(subscription) if subscription and not of_topic.get("disableSubscriptionOverrides") else {}
    return _policy({**of_topic, **of_subscription})


def check_topic_policy(text: str) -> None:
    """Raises AwsError."""
    _policy(_topic_sections(text))


def effective_topic_policy(text: str | None) -> str:
    sections = _topic_sections(text) if text else {}
    shown = _policy(sections).view()
    names = {name: shown[section] for name, section in _TOPIC_KEYS.items() if section in shown}
    return json.dumps({"http": {**names, "disableSubscriptionOverrides": sections.get("disableSubscriptionOverrides", False)}})


def check_subscription_policy(text: str) -> None:
    """Raises AwsError."""
    _policy(_object(text))


def _topic_sections(text: str) -> dict[str, Any]:
    http = _object(text).get("http")
    if not isinstance(http, dict):
        raise _invalid("Unexpected JSON member: expected http")
    found: dict[str, Any] = {}
    for name, value in http.items():
        if name == "disableSubscriptionOverrides" and isinstance(value, bool):
            found[name] = value
        elif name in _TOPIC_KEYS:
            found[_TOPIC_KEYS[name]] = value
        else:
            raise _invalid(f"Unexpected JSON member: http.{name[:50]}")
    return found


def _policy(sections: dict[str, Any]) -> DeliveryPolicy:
    for name in sections:
        if name not in ("healthyRetryPolicy", "throttlePolicy", "requestPolicy", "disableSubscriptionOverrides"):
            raise _invalid(f"Unexpected JSON member: {name[:50]}")
    throttle, request = _section(sections, "throttlePolicy"), _section(sections, "requestPolicy")
    rate = throttle.get("maxReceivesPerSecond")
    if rate is not None:
        _integer("throttlePolicy.maxReceivesPerSecond", rate, 1, 100_000)
    content_type = request.get("headerContentType")
    if content_type is not None:
        _check_content_type(content_type)
    return DeliveryPolicy(_retry_policy(_section(sections, "healthyRetryPolicy")), rate, content_type)


def _check_content_type(given: Any) -> None:
    """A supported type whose parameters can be sent in a header."""
    is_supported = isinstance(given, str) and given.partition(";")[0].strip() in _CONTENT_TYPES
    if not is_supported or not (given.isascii() and given.isprintable() and len(given) <= _CONTENT_TYPE_CHARS_MAX):
        raise _invalid("requestPolicy.headerContentType is not a supported content type")


def _section(sections: dict[str, Any], name: str) -> dict[str, Any]:
    found = sections.get(name) or {}
    if not isinstance(found, dict):
        raise _invalid(f"{name} must be an object")
    return found


def _retry_policy(given: dict[str, Any]) -> dict[str, Any]:
    unknown = next((name for name in given if name not in _DEFAULT), None)
    if unknown is not None:
        raise _invalid(f"Unexpected JSON member: healthyRetryPolicy.{unknown[:50]}")
    policy = {**_DEFAULT, **{name: value for name, value in given.items() if value is not None}}
    if "minDelayTarget" in given and "maxDelayTarget" not in given:
        policy["maxDelayTarget"] = max(20, given["minDelayTarget"] if isinstance(given["minDelayTarget"], int) else 20)
    if policy["backoffFunction"] not in _BACKOFFS:
        raise _invalid(f"healthyRetryPolicy.backoffFunction must be one of {', '.join(_BACKOFFS)}")
    _integer("healthyRetryPolicy.maxDelayTarget", policy["maxDelayTarget"], 1, SECONDS_MAX)
    _integer("healthyRetryPolicy.minDelayTarget", policy["minDelayTarget"], 1, policy["maxDelayTarget"])
    _integer("healthyRetryPolicy.numRetries", policy["numRetries"], 0, RETRIES_MAX)
    for name in _COUNTS:
        _integer(f"healthyRetryPolicy.{name}", policy[name], 0, policy["numRetries"])
    if sum(policy[name] for name in _COUNTS) > policy["numRetries"]:
        raise _invalid("healthyRetryPolicy.numRetries must be greater than or equal to the retries of all phases")
    if sum(DeliveryPolicy(policy).delays_ms) > SECONDS_MAX * 1000:
        raise _invalid(f"healthyRetryPolicy: the delays are over {SECONDS_MAX} seconds in total")
    return policy


def _backoff(function: str, low: int, high: int, index: int, count: int) -> float:
    """The delay of a retry of the growing phase, from the shortest to the longest."""
    share = index / (count - 1) if count > 1 else 1.0
    if function == "linear":
        return low + (high - low) * share
    if function == "arithmetic":  # the steps grow evenly
        return low + (high - low) * share * (share + 1) / 2
    if function == "geometric":
        return float(low * math.pow(high / low, share))
    return min(float(high), low * math.pow(2, index))  # exponential


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise _invalid("failed to parse JSON")
    return found


def _integer(name: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _invalid(f"{name} must be an integer between {low} and {high}")


def _invalid(reason: str) -> AwsError:
    return AwsError("InvalidParameterException", f"Invalid parameter: DeliveryPolicy: {reason}")
