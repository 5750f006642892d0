"""Queue URLs, ARNs and sequence numbers. Pure."""

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from postroad.aws.errors import QUEUE_MISSING, AwsError

_PATH = re.compile(r"/([0-9]{12})/([^/]{1,200})/?")
_SNS_ARN = re.compile(r"arn:aws[a-z-]*:sns:([a-z0-9-]*):([0-9]{12}):([A-Za-z0-9_.-]{1,256})(?::([0-9a-f-]{36}))?")
_ARN = re.compile(r"arn:aws[a-z-]*:(sqs|sns):[a-z0-9-]*:([0-9]{12}):(.{1,256})")


def queue_path(text: str) -> tuple[str, str]:
    """Account and name in a queue URL, of which only the path counts. Raises AwsError."""
    try:
        path = urlsplit(text).path
    except ValueError:
        path = ""
    found = _PATH.fullmatch(unquote(path)) if "%" in path else _PATH.fullmatch(path)
    if found is None:
        raise AwsError("InvalidAddress", f"The address {text[:100]} is not valid for this endpoint.")
    return found[1], found[2]


def queue_arn(region: str, account: str, name: str) -> str:
    return f"arn:aws:sqs:{region}:{account}:{name}"


def topic_arn(region: str, account: str, name: str) -> str:
    return f"arn:aws:sns:{region}:{account}:{name}"


def subscription_arn(region: str, account: str, topic: str, subscription: str) -> str:
    return f"{topic_arn(region, account, topic)}:{subscription}"


def sequence_number(sequence: int) -> str:
    """The number of a message in a FIFO queue or topic: 20 digits, so that numbers and texts have the same order."""
    return f"{sequence:020d}"


class SnsName(NamedTuple):
    """What an ARN of SNS names. `subscription` is empty for a topic."""

    account: str
    topic: str
    subscription: str
    region: str = ""


def sns_name(arn: str, parameter: str) -> SnsName:
    """What an ARN names; the region does not count. Raises AwsError."""
    found = _SNS_ARN.fullmatch(arn)
    if found is None:
        raise AwsError("InvalidParameterException", f"Invalid parameter: {parameter}")
    return SnsName(found[2], found[3], found[4] or "", found[1])


def queue_of_arn(arn: str, account: str, parameter: str) -> str:
    """The name of a queue of this account; the region does not count. Raises AwsError."""
    found = _ARN.fullmatch(arn)
    if found is None or found[1] != "sqs":
        raise AwsError(
            "InvalidParameterValue",
            f"Value {arn[:200]} for parameter {parameter} is invalid. Reason: It is not an ARN of a queue.",
        )
    if found[2] != account:
        raise AwsError("ResourceNotFoundException", QUEUE_MISSING)
    return found[3]
