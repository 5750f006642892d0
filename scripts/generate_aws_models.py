"""Generates the compact tables of AWS operations in `src/postroad/aws/models/` from botocore's service models (`make generate`).

botocore is not needed at run time. Its model of SQS describes the JSON protocol only; the names of the query protocol, and the
codes and statuses of its errors, are those of botocore 1.31 and stand below.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from botocore.loaders import Loader

MODELS = Path(__file__).parent.parent / "src" / "postroad" / "aws" / "models"
_SCALAR_TRAITS = ("min", "max", "enum")

# SQS in the query protocol: names of list members, of the keys of maps, and of members that are maps.
_LIST_MEMBERS = {
    "AWSAccountIdList": "AWSAccountId",
    "ActionNameList": "ActionName",
    "AttributeNameList": "AttributeName",
    "BinaryList": "BinaryListValue",
    "MessageAttributeNameList": "MessageAttributeName",
    "MessageSystemAttributeList": "MessageSystemAttributeName",
    "QueueUrlList": "QueueUrl",
    "StringList": "StringListValue",
    "TagKeyList": "TagKey",
}
_MAP_KEYS = {"TagMap": "Key"}
_MAP_MEMBERS = {
    "QueueAttributeMap": "Attribute",
    "MessageSystemAttributeMap": "Attribute",
    "MessageBodyAttributeMap": "MessageAttribute",
    "MessageBodySystemAttributeMap": "MessageSystemAttribute",
    "TagMap": "Tag",
}
_SQS_PREFIX = "AWS.SimpleQueueService."
_SQS_ERRORS = {
    **{
        name: (_SQS_PREFIX + name, 400)
        for name in (
            "BatchEntryIdsNotDistinct",
            "BatchRequestTooLong",
            "EmptyBatchRequest",
            "InvalidBatchEntryId",
            "MessageNotInflight",
            "QueueDeletedRecently",
            "TooManyEntriesInBatchRequest",
            "UnsupportedOperation",
        )
    },
    "QueueDoesNotExist": (_SQS_PREFIX + "NonExistentQueue", 400),
    "QueueNameExists": ("QueueAlreadyExists", 400),
    "PurgeQueueInProgress": (_SQS_PREFIX + "PurgeQueueInProgress", 403),
    "OverLimit": ("OverLimit", 403),
    "ResourceNotFoundException": ("ResourceNotFoundException", 404),
}


def compact(service: str, operations: tuple[str, ...] = ()) -> dict[str, Any]:
    """The model without documentation, and with the shapes that the operations use; of all operations if none is named."""
    model = Loader().load_service_model(service, "service-2")
    metadata, shapes = model["metadata"], model["shapes"]
    chosen = {name: model["operations"][name] for name in operations or model["operations"]}
    used: dict[str, Any] = {}
    for one in chosen.values():
        for part in ("input", "output"):
            if part in one:
                _add(one[part]["shape"], shapes, used, is_query_only=metadata["protocol"] == "query")
    errors = {error["shape"] for one in chosen.values() for error in one.get("errors", ())}
    return {
        "service": metadata["endpointPrefix"],
        "version": metadata["apiVersion"],
        "namespace": metadata.get("xmlNamespace", "http://queue.amazonaws.com/doc/2012-11-05/"),
        "target": metadata.get("targetPrefix", ""),
        "operations": {
            name: [one.get("input", {}).get("shape"), one.get("output", {}).get("shape")] for name, one in chosen.items()
        },
        "errors": {name: _error(service, name, shapes[name]) for name in sorted(errors)},
        "shapes": dict(sorted(used.items())),
    }


def _add(name: str, shapes: dict[str, Any], used: dict[str, Any], *, is_query_only: bool) -> None:
    if name in used:
        return
    shape = shapes[name]
    kind = shape["type"]
    found: dict[str, Any] = {"type": kind}
    used[name] = found
    related: list[str] = []
    if kind == "structure":
        found["members"] = {
            member: [
                one["shape"],
                one.get("locationName") or (member if is_query_only else _member_name(one["shape"], member, shapes)),
            ]
            for member, one in shape["members"].items()
        }
        if shape.get("required"):
            found["required"] = shape["required"]
        related = [one["shape"] for one in shape["members"].values()]
    elif kind == "list":
        member = shape["member"]["shape"]
        default = "member" if is_query_only else _LIST_MEMBERS.get(name, member)
        found |= {"member": member, "name": shape["member"].get("locationName") or default}
        related = [member]
    elif kind == "map":
        key, value = shape["key"]["shape"], shape["value"]["shape"]
        found |= {"key": key, "value": value, "name": _MAP_KEYS.get(name, "Name")}
        if is_query_only:
            found["name"] = shape["key"].get("locationName", "key")
            found["value_name"] = shape["value"].get("locationName", "value")
        related = [key, value]
    else:
        found |= {trait: shape[trait] for trait in _SCALAR_TRAITS if trait in shape}
    if kind in ("list", "map") and (shape.get("flattened") or not is_query_only):
        found["flattened"] = True
    for one in related:
        _add(one, shapes, used, is_query_only=is_query_only)


def _member_name(shape: str, member: str, shapes: dict[str, Any]) -> str:
    """The name of a member in the query protocol. A flattened list has that of its members."""
    if shape in _MAP_MEMBERS:
        return _MAP_MEMBERS[shape]
    if shape in _LIST_MEMBERS:
        return _LIST_MEMBERS[shape]
    found = shapes[shape]
    is_flattened = found["type"] == "list" and found.get("flattened")
    return str(found["member"]["shape"]) if is_flattened else member


def _error(service: str, name: str, shape: dict[str, Any]) -> list[Any]:
    given, known = shape.get("error", {}), _SQS_ERRORS if service == "sqs" else {}
    return list(known.get(name, (given.get("code", name), given.get("httpStatusCode", 400))))


_SNS_OPERATIONS = (
    *("AddPermission", "ConfirmSubscription", "CreateTopic", "DeleteTopic", "GetSubscriptionAttributes", "GetTopicAttributes"),
    *("ListSubscriptions", "ListSubscriptionsByTopic", "ListTagsForResource", "ListTopics", "Publish", "PublishBatch"),
    *("RemovePermission", "SetSubscriptionAttributes", "SetTopicAttributes", "Subscribe", "TagResource", "Unsubscribe"),
    "UntagResource",
)

TABLES: dict[str, Callable[[], dict[str, Any]]] = {
    "sns.json": lambda: compact("sns", _SNS_OPERATIONS),
    "sqs.json": lambda: compact("sqs"),
    "sts.json": lambda: compact("sts", ("AssumeRole", "GetCallerIdentity", "GetSessionToken")),
}


def main() -> int:
    stale = []
    for name, make in TABLES.items():
        text = json.dumps(make(), separators=(",", ":"), sort_keys=True) + "\n"
        path = MODELS / name
        if path.exists() and path.read_text() == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv:
            path.write_text(text)
    if stale and "--check" in sys.argv:
        print(f"not up to date, run `make generate`: {', '.join(stale)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
