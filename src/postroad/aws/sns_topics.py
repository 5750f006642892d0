"""SNS operations on topics: create, list, attributes, tags, permissions, delete."""

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from postroad.api.queues import TAGS_MAX
from postroad.api.subscriptions import SubscriptionState
from postroad.api.topics import StrictTopicSettings, TopicNotFound
from postroad.aws.calls import Call
from postroad.aws.delivery_policies import effective_topic_policy
from postroad.aws.errors import AwsError
from postroad.aws.model import Values
from postroad.aws.resource_names import topic_arn
from postroad.aws.sns_errors import invalid, topic_missing
from postroad.aws.topic_attributes import (
    ARCHIVE_BEGINS,
    FIFO,
    RETENTION_MS,
    archive_begins_ms,
    checked_attributes,
    default_policy,
    is_fifo,
    is_fifo_wanted,
    policy_of,
    topic_settings,
)
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.names import TOPIC_CHARS_MAX
from postroad.subscriptions.service import Subscriptions
from postroad.topics.lifecycle import TopicLifecycle
from postroad.topics.records import TopicRecord

_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{TOPIC_CHARS_MAX}}}")
_FIFO_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{TOPIC_CHARS_MAX - 5}}}\.fifo")
_LABEL = re.compile(r"[A-Za-z0-9_-]{1,80}")
_ACCOUNT = re.compile(r"[0-9]{12}")
_ACTION = re.compile(r"\*|[A-Za-z]{1,64}")
PAGE_SIZE = 100

Change = Callable[[StrictTopicSettings], StrictTopicSettings]


class SnsTopics:
    """`policy_changed` applies the delivery policy of a topic to its subscriptions."""

    def __init__(self, lifecycle: TopicLifecycle, subscriptions: Subscriptions, policy_changed: "Any", clock: Clock) -> None:
        self._lifecycle, self._subscriptions, self._policy_changed = lifecycle, subscriptions, policy_changed
        self._clock = clock

    async def create_topic(self, call: Call) -> Values:
        name, given = call.get("Name"), call.get("Attributes", {})
        is_new_fifo = is_fifo_wanted(given)
        _check_name(name, is_fifo=is_new_fifo)
        if call.get("DataProtectionPolicy"):
            raise invalid("DataProtectionPolicy is not supported")
        if not call.context.caller.may_use("topic", name):
            raise AwsError("AuthorizationErrorException", f"Not authorized to use the topic {name}")
        tags, attributes = _tags(call.get("Tags", [])), checked_attributes(given, is_fifo=is_new_fifo)
        if is_new_fifo:
            attributes["FifoTopic"] = "true"

        def make(known: TopicRecord | None) -> StrictTopicSettings:
            if known is None:
                return topic_settings(StrictTopicSettings(retention_ms=RETENTION_MS, tags=tags), attributes, self._clock())
            if is_fifo(known.settings) != is_new_fifo or any(
                known.settings.sns_attributes.get(one) != value for one, value in attributes.items()
            ):
                raise invalid("Attributes Reason: Topic already exists with different attributes")
            if tags and tags != known.settings.tags:
                raise invalid("Tags Reason: Topic already exists with different tags")
            return known.settings

        await self._lifecycle.modify(call.context, name, make)
        return {"TopicArn": topic_arn(call.region, call.account, name)}

    async def delete_topic(self, call: Call) -> None:
        try:
            record = await self._lifecycle.find(call.context.tenant, call.topic)
            if "ArchivePolicy" in record.settings.sns_attributes:
                raise AwsError("InvalidStateException", "Invalid state: Cannot delete a topic with an ArchivePolicy")
            await self._lifecycle.delete(call.context, call.topic, cascade=True)
        except TopicNotFound:
            return

    async def list_topics(self, call: Call) -> Values:
        page = self._lifecycle.page(call.context.caller, PAGE_SIZE, after(call.get("NextToken")))
        found: Values = {"Topics": [{"TopicArn": topic_arn(call.region, call.account, one.name)} for one in page.items]}
        if page.next_cursor is not None:
            found["NextToken"] = next_token(page.next_cursor)
        return found

    async def get_topic_attributes(self, call: Call) -> Values:
        record = await self._lifecycle.find(call.context.tenant, call.topic)
        stored, arn = record.settings.sns_attributes, topic_arn(call.region, call.account, record.name)
        states = [one.state for one in self._subscriptions.of_topic(record)]
        pending = states.count(SubscriptionState.PENDING)
        attributes = {
            "TopicArn": arn,
            "Owner": call.account,
            "DisplayName": "",
            "Policy": default_policy(arn, call.account),
            "EffectiveDeliveryPolicy": effective_topic_policy(stored.get("DeliveryPolicy")),
            "SubscriptionsConfirmed": str(len(states) - pending),
            "SubscriptionsPending": str(pending),
            "SubscriptionsDeleted": "0",
            **stored,
        }
        if is_fifo(record.settings):
            attributes = {"ContentBasedDeduplication": "false", "FifoThroughputScope": "Topic", **attributes}
            begins_ms = archive_begins_ms(record.settings, self._clock())
            if begins_ms is not None:
                attributes[ARCHIVE_BEGINS] = rfc3339(begins_ms)
        return {"Attributes": attributes}

    async def set_topic_attributes(self, call: Call) -> None:
        name, value = call.get("AttributeName"), call.get("AttributeValue", "")
        if name == "FifoTopic":
            raise invalid("AttributeName")
        if name not in FIFO:
            checked_attributes({name: value}, is_fifo=False)

        def change(settings: StrictTopicSettings) -> StrictTopicSettings:
            checked = checked_attributes({name: value}, is_fifo=is_fifo(settings))
            kept = {one: text for one, text in settings.sns_attributes.items() if one != name}
            return topic_settings(settings, kept | checked, self._clock())

        record = await self._modify(call, change)
        if name == "DeliveryPolicy":
            await self._policy_changed(call, record)

    async def _modify(self, call: Call, change: Change) -> TopicRecord:
        def make(known: TopicRecord | None) -> StrictTopicSettings:
            if known is None:
                raise topic_missing()
            return change(known.settings)

        return await self._lifecycle.modify(call.context, call.topic, make)

    # Tags

    async def tag_resource(self, call: Call) -> Values:
        added = _tags(call.get("Tags"))

        def change(settings: StrictTopicSettings) -> StrictTopicSettings:
            tags = {**settings.tags, **added}
            if len(tags) > TAGS_MAX:
                raise AwsError("TagLimitExceededException", "Could not complete request: tag quota of per resource exceeded")
            return msgspec.structs.replace(settings, tags=tags)

        await self._tagged(call, change)
        return {}

    async def untag_resource(self, call: Call) -> Values:
        removed = call.get("TagKeys")
        await self._tagged(
            call,
            lambda settings: msgspec.structs.replace(
                settings, tags={name: value for name, value in settings.tags.items() if name not in removed}
            ),
        )
        return {}

    async def list_tags_for_resource(self, call: Call) -> Values:
        try:
            record = await self._lifecycle.find(call.context.tenant, call.topic)
        except TopicNotFound as exc:
            raise AwsError("ResourceNotFoundException", "Resource does not exist") from exc
        return {"Tags": [{"Key": name, "Value": value} for name, value in record.settings.tags.items()]}

    async def _tagged(self, call: Call, change: Change) -> None:
        try:
            await self._modify(call, change)
        except AwsError as error:
            if error.code == "NotFoundException":
                raise AwsError("ResourceNotFoundException", "Resource does not exist") from error
            raise

    # Permissions, which are stored in the policy and have no effect

    async def add_permission(self, call: Call) -> None:
        label, accounts, actions = call.get("Label"), call.get("AWSAccountId"), call.get("ActionName")
        if not _LABEL.fullmatch(label):
            raise invalid("Label")
        if not accounts or not all(_ACCOUNT.fullmatch(one) for one in accounts):
            raise invalid("AWSAccountId")
        if not actions or not all(_ACTION.fullmatch(one) for one in actions):
            raise invalid("Policy statement action out of service scope!")
        arn = topic_arn(call.region, call.account, call.topic)
        statement = {
            "Sid": label,
            "Effect": "Allow",
            "Principal": {"AWS": [f"arn:aws:iam::{one}:root" for one in accounts]},
            "Action": [f"SNS:{one}" for one in actions],
            "Resource": arn,
        }

        def change(settings: StrictTopicSettings) -> StrictTopicSettings:
            policy = policy_of(settings.sns_attributes.get("Policy") or default_policy(arn, call.account))
            if any(one.get("Sid") == label for one in policy["Statement"]):
                raise invalid("Statement already exists")
            policy["Statement"].append(statement)
            return _with_policy(settings, policy)

        await self._modify(call, change)

    async def remove_permission(self, call: Call) -> None:
        label, arn = call.get("Label"), topic_arn(call.region, call.account, call.topic)

        def change(settings: StrictTopicSettings) -> StrictTopicSettings:
            policy = policy_of(settings.sns_attributes.get("Policy") or default_policy(arn, call.account))
            kept = [one for one in policy["Statement"] if one.get("Sid") != label]
            return _with_policy(settings, {**policy, "Statement": kept})

        await self._modify(call, change)


def _with_policy(settings: StrictTopicSettings, policy: Mapping[str, Any]) -> StrictTopicSettings:
    return msgspec.structs.replace(settings, sns_attributes={**settings.sns_attributes, "Policy": json.dumps(policy)})


def _check_name(name: str, *, is_fifo: bool) -> None:
    if not (_FIFO_NAME if is_fifo else _NAME).fullmatch(name) or name.startswith("_"):
        end = "; the name of a FIFO topic ends with .fifo" if is_fifo or name.endswith(".fifo") else ""
        raise invalid(f"Topic Name: letters, digits, hyphens and underscores, at most {TOPIC_CHARS_MAX} characters{end}")


def _tags(given: list[Mapping[str, str]]) -> dict[str, str]:
    names = [one.get("Key", "") for one in given]
    if len(set(names)) != len(names):
        raise invalid("Duplicated keys are not allowed.")
    if len(names) > TAGS_MAX:
        raise AwsError("TagLimitExceededException", "Could not complete request: tag quota of per resource exceeded")
    for one in given:
        name, value = one.get("Key", ""), one.get("Value", "")
        if not 1 <= len(name) <= 128 or len(value) > 256 or name.lower().startswith("aws:"):
            raise invalid(f"Tags: the tag {name[:128]!r} is invalid: 1 to 128 characters, not aws:, a value of up to 256")
    return {one["Key"]: one.get("Value", "") for one in given}


def next_token(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def after(token: str | None) -> str | None:
    """The last item of the page before. Raises AwsError."""
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode() if token else None
    except (binascii.Error, ValueError) as exc:
        raise invalid("NextToken") from exc
