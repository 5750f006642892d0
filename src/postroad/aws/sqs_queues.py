"""SQS operations on queues: create, look up, list, change, tag, purge, delete."""

import base64
import binascii
import itertools
import json
import re
from typing import Any

import msgspec

from postroad.api.queues import TAGS_MAX, QueueNotFound, StrictQueueSettings
from postroad.aws.calls import Call
from postroad.aws.errors import QUEUE_MISSING, AwsError
from postroad.aws.model import Values
from postroad.aws.queue_attributes import (
    COUNTS,
    allows_source,
    attributes_of,
    check_names,
    check_policy,
    default_settings,
    is_fifo_wanted,
    missing_target,
    mixed_target,
    refused_target,
    with_attributes,
)
from postroad.aws.resource_names import queue_arn
from postroad.queues.browsing import QueueBrowser
from postroad.queues.lifecycle import QueueLifecycle, check_readable_dead_letters
from postroad.queues.records import QueueRecord
from postroad.queues.stats import QueueStatsReader

_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_FIFO_NAME = re.compile(r"[A-Za-z0-9_-]{1,75}\.fifo")
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ACCOUNT = re.compile(r"[0-9]{12}")
_ACTIONS = (
    *("*", "SendMessage", "ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes"),
    *("GetQueueUrl", "ListDeadLetterSourceQueues", "PurgeQueue"),
)
_PAGE_MAX = 1000
_PURGE_SECONDS = 60


class SqsQueues:
    def __init__(self, lifecycle: QueueLifecycle, stats: QueueStatsReader, browser: QueueBrowser) -> None:
        self._lifecycle, self._stats, self._browser = lifecycle, stats, browser

    async def create_queue(self, call: Call) -> Values:
        name, given, tags = call.get("QueueName"), call.get("Attributes", {}), call.get("tags", {})
        is_fifo = is_fifo_wanted(given)
        _check_name(name, is_fifo=is_fifo)
        _check_tags(tags)
        if not call.context.caller.may_use("queue", name):
            raise AwsError("AccessDenied", f"Access to the resource {call.queue_url(name)} is denied.")
        wanted = msgspec.structs.replace(with_attributes(default_settings(is_fifo=is_fifo), given, call.account), tags=tags)
        await self._check_redrive(call, name, given, is_fifo=is_fifo)

        def make(known: QueueRecord | None) -> StrictQueueSettings:
            if known is None:
                return wanted
            is_equal = known.is_ordered == is_fifo and with_attributes(known.settings, given, call.account) == known.settings
            if not is_equal:
                raise AwsError(
                    "QueueNameExists", "A queue already exists with the same name and a different value for an attribute."
                )
            return known.settings

        await self._lifecycle.modify(call.context, name, make)
        return {"QueueUrl": call.queue_url(name)}

    async def _check_redrive(self, call: Call, name: str, given: dict[str, str], *, is_fifo: bool) -> None:
        """Raises AwsError unless the dead-letter queue exists, has the same type and allows this source; BodyInvalid if it is in
        RabbitMQ."""
        policy = given.get("RedrivePolicy")
        if not policy:
            return
        target_name = with_attributes(default_settings(), {"RedrivePolicy": policy}, call.account).dead_letter_queue
        if target_name is None or target_name == name or not call.context.caller.may_use("queue", target_name):
            raise missing_target(policy)
        try:
            target = await self._lifecycle.find(call.context.tenant, target_name)
        except QueueNotFound as exc:
            raise missing_target(policy) from exc
        check_readable_dead_letters(target)
        if target.is_ordered != is_fifo:
            raise mixed_target(policy)
        if not allows_source(target.settings, name, call.account):
            raise refused_target(policy)

    async def get_queue_url(self, call: Call) -> Values:
        name, owner = call.get("QueueName"), call.get("QueueOwnerAWSAccountId")
        if (owner is not None and owner != call.account) or not call.context.caller.may_use("queue", name):
            raise AwsError("QueueDoesNotExist", QUEUE_MISSING)
        await self._lifecycle.find(call.context.tenant, name)
        return {"QueueUrl": call.queue_url(name)}

    async def list_queues(self, call: Call) -> Values:
        records = self._lifecycle.records(call.context.caller, call.get("QueueNamePrefix", ""), _after(call.get("NextToken")))
        return _page(call, (record.name for record in records), "QueueUrls")

    async def list_dead_letter_source_queues(self, call: Call) -> Values:
        await self._lifecycle.find(call.context.tenant, call.queue)
        records = self._lifecycle.records(call.context.caller, "", _after(call.get("NextToken")))
        names = (record.name for record in records if record.settings.dead_letter_queue == call.queue)
        return {"queueUrls": [], **_page(call, names, "queueUrls")}

    async def get_queue_attributes(self, call: Call) -> Values:
        names = call.get("AttributeNames", [])
        check_names(names)
        record = await self._lifecycle.find(call.context.tenant, call.queue)
        has_counts = "All" in names or any(one in names for one in COUNTS)
        found = attributes_of(
            record.settings,
            await self._stats.stats(record, is_fresh=True) if has_counts else None,
            names,
            name=record.name,
            region=call.region,
            account=call.account,
            created_at_ms=record.created_at_ms,
            updated_at_ms=record.updated_at_ms,
        )
        return {"Attributes": found} if found else {}

    async def set_queue_attributes(self, call: Call) -> None:
        given = call.get("Attributes")
        if not given:
            raise AwsError("MissingParameter", "The request must contain the parameter Attribute.Name.")
        record = await self._lifecycle.find(call.context.tenant, call.queue)
        await self._check_redrive(call, call.queue, given, is_fifo=record.is_ordered)
        await self._modify(call, lambda settings: with_attributes(settings, given, call.account))

    async def _modify(self, call: Call, change: "Any") -> None:
        def make(known: QueueRecord | None) -> StrictQueueSettings:
            if known is None:
                raise AwsError("QueueDoesNotExist", QUEUE_MISSING)
            changed: StrictQueueSettings = change(known.settings)
            return changed

        await self._lifecycle.modify(call.context, call.queue, make)

    async def delete_queue(self, call: Call) -> None:
        await self._lifecycle.delete(call.context, call.queue)

    async def purge_queue(self, call: Call) -> None:
        record = await self._lifecycle.find(call.context.tenant, call.queue)
        if not await self._lifecycle.claim_purge(record, _PURGE_SECONDS * 1000):
            raise AwsError(
                "PurgeQueueInProgress",
                f"Only one PurgeQueue operation on {call.queue} is allowed every {_PURGE_SECONDS} seconds.",
            )
        await self._browser.purge(call.context, record, is_dry_run=False)

    # Tags

    async def tag_queue(self, call: Call) -> None:
        added = call.get("Tags")
        if not added:
            raise AwsError("MissingParameter", "The request must contain the parameter Tags.")
        _check_tags(added)

        def change(settings: StrictQueueSettings) -> StrictQueueSettings:
            tags = {**settings.tags, **added}
            if len(tags) > TAGS_MAX:
                raise AwsError("InvalidParameterValue", f"Too many tags added for queue {call.queue}.")
            return msgspec.structs.replace(settings, tags=tags)

        await self._modify(call, change)

    async def untag_queue(self, call: Call) -> None:
        removed = call.get("TagKeys")
        if not removed:
            raise AwsError("MissingParameter", "The request must contain the parameter TagKeys.")

        def change(settings: StrictQueueSettings) -> StrictQueueSettings:
            kept = {name: value for name, value in settings.tags.items() if name not in removed}
            return msgspec.structs.replace(settings, tags=kept)

        await self._modify(call, change)

    async def list_queue_tags(self, call: Call) -> Values:
        record = await self._lifecycle.find(call.context.tenant, call.queue)
        return {"Tags": record.settings.tags} if record.settings.tags else {}

    # Permissions, which are stored in the policy and have no effect

    async def add_permission(self, call: Call) -> None:
        label, accounts, actions = call.get("Label"), call.get("AWSAccountIds"), call.get("Actions")
        if not _LABEL.fullmatch(label):
            raise AwsError("InvalidParameterValue", f"Value {label[:100]} for parameter Label is invalid.")
        unknown = next((one for one in actions if one not in _ACTIONS), None)
        if not actions or unknown is not None:
            raise AwsError(
                "InvalidParameterValue",
                f"Value SQS:{(unknown or '')[:100]} for parameter ActionName is invalid. Reason: Only the queue owner is "
                "allowed to invoke this action.",
            )
        if not accounts or not all(_ACCOUNT.fullmatch(one) for one in accounts):
            raise AwsError(
                "InvalidParameterValue", f"Value {accounts} for parameter PrincipalId is invalid. Reason: Unable to verify."
            )
        arn = queue_arn(call.region, call.account, call.queue)
        statement = {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": [f"arn:aws:iam::{one}:root" for one in accounts]},
            "Action": [f"SQS:{one}" for one in actions],
            "Resource": arn,
        }

        def change(settings: StrictQueueSettings) -> StrictQueueSettings:
            policy = _policy(settings) or {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy", "Statement": []}
            if any(one.get("Sid") == label for one in policy["Statement"]):
                raise AwsError("InvalidParameterValue", f"Value {label} for parameter Label is invalid. Reason: Already exists.")
            policy["Statement"].append(statement)
            return _with_policy(settings, policy, call.account)

        await self._modify(call, change)

    async def remove_permission(self, call: Call) -> None:
        label = call.get("Label")

        def change(settings: StrictQueueSettings) -> StrictQueueSettings:
            policy = _policy(settings)
            kept = [one for one in policy["Statement"] if one.get("Sid") != label] if policy else []
            if policy is None or len(kept) == len(policy["Statement"]):
                raise AwsError(
                    "InvalidParameterValue",
                    f"Value {label[:100]} for parameter Label is invalid. Reason: can't find label on existing policy.",
                )
            return _with_policy(settings, {**policy, "Statement": kept} if kept else None, call.account)

        await self._modify(call, change)


def _check_name(name: str, *, is_fifo: bool) -> None:
    """Raises AwsError."""
    if is_fifo:
        if not _FIFO_NAME.fullmatch(name) or name.startswith("_"):
            raise AwsError(
                "InvalidParameterValue",
                "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end with .fifo "
                "suffix and be 1 to 80 in length",
            )
    elif not _NAME.fullmatch(name) or name.startswith("_"):
        raise AwsError(
            "InvalidParameterValue", "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
        )


def _policy(settings: StrictQueueSettings) -> dict[str, Any] | None:
    text = settings.sqs_attributes.get("Policy")
    if text is None:
        return None
    policy = check_policy(text)
    statements = policy["Statement"]
    policy["Statement"] = [one for one in (statements if isinstance(statements, list) else [statements]) if isinstance(one, dict)]
    return policy


def _with_policy(settings: StrictQueueSettings, policy: dict[str, Any] | None, account: str) -> StrictQueueSettings:
    return with_attributes(settings, {"Policy": json.dumps(policy) if policy else ""}, account)


def _check_tags(tags: dict[str, str]) -> None:
    if len(tags) > TAGS_MAX:
        raise AwsError("InvalidParameterValue", f"Too many tags: {len(tags)}; at most {TAGS_MAX} are allowed.")
    for name, value in tags.items():
        if not 1 <= len(name) <= 128 or len(value) > 256 or name.lower().startswith("aws:"):
            raise AwsError(
                "InvalidParameterValue",
                f"The tag {name[:128]!r} is invalid: 1 to 128 characters, not aws:, a value of up to 256.",
            )


def _page(call: Call, names: "Any", field: str) -> Values:
    limit = call.integer("MaxResults", 1, _PAGE_MAX, f"MaxResults must be an integer between 1 and {_PAGE_MAX}.")
    found = list(itertools.islice(names, (limit or _PAGE_MAX) + 1))
    shown = found[: limit or _PAGE_MAX]
    page: Values = {field: [call.queue_url(name) for name in shown]} if shown else {}
    if limit is not None and len(found) > limit:
        page["NextToken"] = base64.urlsafe_b64encode(shown[-1].encode()).decode()
    return page


def _after(token: str | None) -> str | None:
    try:
        return None if token is None else base64.b64decode(token, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as exc:
        raise AwsError("InvalidParameterValue", "Invalid or expired next token.") from exc
