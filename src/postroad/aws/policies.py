"""Session policies: Allow statements for actions of SQS and SNS on ARNs. Pure."""

import json
import re
from typing import Any

import msgspec

from postroad.aws.errors import AwsError
from postroad.kernel.matching import glob_matches

_CHARS_MAX = 2048
_ACTION = re.compile(r"\*|(sqs|sns):[A-Za-z*]{1,64}")
_RESOURCE = re.compile(r"\*|arn:aws[a-z-]*:(sqs|sns|\*):[a-z0-9*-]*:[0-9*]{1,12}:[A-Za-z0-9_.*:-]{1,128}")
_KNOWN = frozenset({"Sid", "Effect", "Action", "Resource"})


class Statement(msgspec.Struct, frozen=True, array_like=True):
    """What a session may do: patterns of actions, and of resources."""

    actions: tuple[str, ...]
    resources: tuple[str, ...]

    def allows(self, action: str, arn: str) -> bool:
        return any(glob_matches(one.lower(), action.lower()) for one in self.actions) and any(
            glob_matches(one, arn) for one in self.resources
        )


def parse_policy(text: str) -> tuple[Statement, ...]:
    """Raises AwsError for anything but Allow statements of actions and resources that are known."""
    if len(text) > _CHARS_MAX:
        raise AwsError("PackedPolicyTooLargeException", f"The policy has more than {_CHARS_MAX} characters.")
    try:
        policy = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise _malformed("it is not JSON") from exc
    if not isinstance(policy, dict) or set(policy) - {"Version", "Id", "Statement"} or "Statement" not in policy:
        raise _malformed("it must have Version and Statement")
    statements = policy["Statement"] if isinstance(policy["Statement"], list) else [policy["Statement"]]
    return tuple(_statement(one) for one in statements)


def _statement(given: Any) -> Statement:
    if not isinstance(given, dict) or set(given) - _KNOWN or given.get("Effect") != "Allow":
        raise _malformed("a statement must have Effect Allow, Action and Resource, and nothing else but Sid")
    actions, resources = _texts(given.get("Action")), _texts(given.get("Resource"))
    if not all(_ACTION.fullmatch(one) for one in actions):
        raise _malformed("an action must be of sqs: or sns:")
    if not all(_RESOURCE.fullmatch(one) for one in resources):
        raise _malformed("a resource must be an ARN of SQS or SNS, or *")
    return Statement(actions, resources)


def _texts(given: Any) -> tuple[str, ...]:
    found = tuple(given) if isinstance(given, list) else (given,)
    if not found or not all(isinstance(one, str) for one in found):
        raise _malformed("Action and Resource must be texts")
    return found


def is_allowed(statements: tuple[Statement, ...] | None, action: str, arn: str) -> bool:
    """True without a policy, or if a statement allows the action."""
    return statements is None or any(one.allows(action, arn) for one in statements)


def _malformed(reason: str) -> AwsError:
    return AwsError("MalformedPolicyDocumentException", f"The policy is malformed: {reason}.")
