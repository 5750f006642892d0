"""The kinds of resources that a file can declare: how each is read from the server, created, changed and deleted.

`KINDS` is in the order in which resources can be created; they are deleted in reverse.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import UNSET

from postroad.api.access import TenantState
from postroad.api.alerts import ChannelDefinition, RuleDefinition
from postroad.api.buckets import BucketSettings
from postroad.api.command_limits import QuotaDefinition
from postroad.api.commands import GrantDefinition, RouteDefinition, ServiceDefinition
from postroad.api.governance import TenantSettingsChange
from postroad.api.queues import StrictQueueSettings
from postroad.api.topics import StrictTopicSettings
from postroad.client import Postroad
from postroad.declarations.definitions import (
    UNKNOWN_HEADER,
    KeyDefinition,
    ScheduleDefinition,
    SettingDefinition,
    StreamSubscriptionDefinition,
    SubscriptionDefinition,
    TenantDefinition,
)
from postroad.declarations.kind import Created, Existing, Kind, Normalise, converted, created_at, fields_of, put_kind

_PAGE = 1000


# Tenants and settings


def _read_tenants(client: Postroad) -> Iterator[Existing]:
    for one in client.tenants.list(page_size=_PAGE):
        if one.state in (TenantState.READY, TenantState.DISABLED):
            definition = TenantDefinition(description=one.description, enabled=one.state is TenantState.READY)
            yield Existing(one.id, definition, one.created_at)


def _create_tenant(client: Postroad, name: str, wanted: Any) -> Created:
    made = client.tenants.create(name, description=wanted.description)
    if not wanted.enabled:
        client.tenants.update(name, enabled=False)
    return Created(made.created_at)


def _change_tenant(client: Postroad, name: str, _before: Any, wanted: Any) -> None:
    client.tenants.update(name, description=wanted.description, enabled=wanted.enabled)


_SETTINGS = {one.encode_name: one.name for one in msgspec.structs.fields(TenantSettingsChange)}


def _read_settings(client: Postroad) -> Iterator[Existing]:
    for name, value in client.settings.get().chosen.items():
        yield Existing(name, SettingDefinition(value), "")


def _set(client: Postroad, name: str, wanted: Any) -> None:
    client.settings.update(**{_SETTINGS[name]: wanted.value})


def _create_setting(client: Postroad, name: str, wanted: Any) -> Created:
    _set(client, name, wanted)
    return Created("")


# Keys: found by name, changed by id


def _read_keys(client: Postroad) -> Iterator[Existing]:
    for one in client.keys.list(page_size=_PAGE):
        yield Existing(one.name, converted(one, KeyDefinition), one.created_at)


def _key_id(client: Postroad, name: str) -> str:
    found = [one.id for one in client.keys.list(page_size=_PAGE) if one.name == name]
    if len(found) != 1:
        raise ValueError(f"{len(found)} keys have the name {name!r}; a file can declare a key with a name of its own only")
    return found[0]


def _create_key(client: Postroad, name: str, wanted: Any) -> Created:
    fields = fields_of(wanted)
    enabled = fields.pop("enabled")
    issued = client.keys.create(name, **fields)
    if not enabled:
        client.keys.update(issued.record.id, enabled=False)
    return Created(issued.record.created_at, issued.key)


def _change_key(client: Postroad, name: str, _before: Any, wanted: Any) -> None:
    client.keys.update(_key_id(client, name), **fields_of(wanted))


# Queues, topics, buckets, schedules


def _read_queues(client: Postroad) -> Iterator[Existing]:
    for one in client.queues.list(page_size=_PAGE):
        yield Existing(one.name, converted(one.settings, StrictQueueSettings), one.created_at)


def _queue_normaliser(client: Postroad) -> Normalise:
    """A queue without a visibility timeout gets the tenant's when it is created or changed. A queue in the engine is one without
    a backend: the server names the backend of each."""
    default = client.settings.get().settings.visibility_timeout_ms

    def normalise(queue: Any) -> Any:
        lease_ms = None if queue.visibility_timeout_ms == default else queue.visibility_timeout_ms
        backend = UNSET if queue.backend == "engine" else queue.backend
        return msgspec.structs.replace(queue, visibility_timeout_ms=lease_ms, backend=backend)

    return normalise


def _read_topics(client: Postroad) -> Iterator[Existing]:
    """Those that exist by themselves: the topic of a change stream belongs to its bucket."""
    for one in client.topics.list(page_size=_PAGE):
        if one.fed_by is None:
            yield Existing(one.name, converted(one.settings, StrictTopicSettings), one.created_at)


class _BucketDefinition(BucketSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a bucket."""


def _read_buckets(client: Postroad) -> Iterator[Existing]:
    for one in client.buckets.list(page_size=_PAGE):
        yield Existing(one.name, converted(one.settings, _BucketDefinition), one.created_at)


def _create_bucket(client: Postroad, name: str, wanted: Any) -> Created:
    return Created(client.buckets.create(name, **fields_of(wanted)).created_at)


def _change_bucket(client: Postroad, name: str, _before: Any, wanted: Any) -> None:
    client.buckets.update(name, **fields_of(wanted))


def _read_schedules(client: Postroad) -> Iterator[Existing]:
    for one in client.schedules.list(page_size=_PAGE):
        yield Existing(one.name, converted(one, ScheduleDefinition), one.created_at)


# Subscriptions of topics are named `<topic>/<name>`


def _read_subscriptions(client: Postroad) -> Iterator[Existing]:
    """Those with a name that were not made through the SNS API."""
    for one in client.subscriptions.list(page_size=_PAGE):
        if one.name is not None and one.sns is None:
            definition = converted(one, SubscriptionDefinition)
            headers = dict.fromkeys(one.header_names, UNKNOWN_HEADER)
            yield Existing(f"{one.topic}/{one.name}", msgspec.structs.replace(definition, headers=headers), one.created_at)


def _subscription_normaliser(_client: Postroad) -> Normalise:
    """Values of headers are not returned, and where to start matters only when the subscription is created."""

    def normalise(one: Any) -> Any:
        return msgspec.structs.replace(
            one,
            filter=(one.filter,) if isinstance(one.filter, str) else tuple(one.filter),
            headers=dict.fromkeys(sorted(name.lower() for name in one.headers), UNKNOWN_HEADER),
            start_from="new",
            start_sequence=None,
            start_time=None,
        )

    return normalise


def _subscription_id(client: Postroad, name: str) -> str:
    topic, _, own = name.rpartition("/")
    return next(one.id for one in client.subscriptions.list(topic=topic, page_size=_PAGE) if one.name == own)


def _create_subscription(client: Postroad, name: str, wanted: Any) -> Created:
    if UNKNOWN_HEADER in wanted.headers.values():
        raise ValueError(f"subscriptions {name}: the values of its headers are not in the file")
    topic, _, own = name.rpartition("/")
    made = client.subscriptions.create(topic, name=own, **fields_of(wanted))
    return Created(made.created_at, made.secret)


def _change_subscription(client: Postroad, name: str, before: Any, wanted: Any) -> None:
    fields = fields_of(wanted)
    for left_out in ("delivery_type", "start_from", "start_sequence", "start_time"):
        del fields[left_out]
    if UNKNOWN_HEADER in wanted.headers.values():
        if {one.lower() for one in before.headers} != {one.lower() for one in wanted.headers}:
            raise ValueError(f"subscriptions {name}: the values of its headers are not in the file")
        del fields["headers"]
    client.subscriptions.update(_subscription_id(client, name), **fields)


def _has_other_type(before: Any, after: Any) -> bool:
    return bool(before.delivery_type != after.delivery_type)


# Stream subscriptions


def _read_stream_subscriptions(client: Postroad) -> Iterator[Existing]:
    for listed in client.stream_subscriptions.list(page_size=_PAGE):
        one = client.stream_subscriptions.get(listed.id)
        definition = StreamSubscriptionDefinition(
            pattern=one.pattern,
            streams=tuple(sorted(link.path for link in one.streams if link.link_type == "explicit")),
            webhook_url=None if one.webhook is None else one.webhook.url,
            wake_stream=one.wake_stream,
            lease_ttl_ms=one.lease_ttl_ms,
            description=one.description,
        )
        yield Existing(one.id, definition, one.created_at)


def _stream_subscription_normaliser(_client: Postroad) -> Normalise:
    return lambda one: msgspec.structs.replace(one, streams=tuple(sorted(one.streams)))


def _create_stream_subscription(client: Postroad, name: str, wanted: Any) -> Created:
    fields = fields_of(wanted)
    fields["streams"] = list(wanted.streams) or None
    return Created(client.stream_subscriptions.create(name, **fields).created_at)


def _differs_in_more_than_streams(before: Any, after: Any) -> bool:
    return bool(msgspec.structs.replace(before, streams=()) != msgspec.structs.replace(after, streams=()))


def _change_streams(client: Postroad, name: str, before: Any, wanted: Any) -> None:
    if added := sorted(set(wanted.streams) - set(before.streams)):
        client.stream_subscriptions.add_streams(name, added)
    for removed in sorted(set(before.streams) - set(wanted.streams)):
        client.stream_subscriptions.remove_stream(name, removed)


# Services, routes `<service>/<command>`, grants and quotas `<service>/<command>/<sender>`


def _read_services(client: Postroad) -> Iterator[Existing]:
    for one in client.services.list(page_size=_PAGE):
        yield Existing(one.name, converted(one, ServiceDefinition), one.created_at)


def _read_routes(client: Postroad) -> Iterator[Existing]:
    for one in client.routes.list(page_size=_PAGE):
        yield Existing(f"{one.service}/{one.command}", converted(one, RouteDefinition), one.created_at)


def _read_grants(client: Postroad) -> Iterator[Existing]:
    for one in client.grants.list(page_size=_PAGE):
        service = one.target.partition("/")[2]
        yield Existing(f"{service}/{one.command}/{one.source}", converted(one, GrantDefinition), one.created_at)


def _read_quotas(client: Postroad) -> Iterator[Existing]:
    for one in client.quotas.list(page_size=_PAGE):
        service = one.target.partition("/")[2]
        yield Existing(f"{service}/{one.command}/{one.source}", converted(one, QuotaDefinition), one.created_at)


# Alerts


def _read_channels(client: Postroad) -> Iterator[Existing]:
    for one in client.alerts.channels().channels:
        if one.kind in ("email", "webhook"):
            yield Existing(one.name, converted(one, ChannelDefinition), created_at(one))


def _put_channel(client: Postroad, name: str, wanted: Any) -> Created:
    saved = client.alerts.put_channel(name, **fields_of(wanted))
    return Created(created_at(saved), saved.secret)


def _read_rules(client: Postroad) -> Iterator[Existing]:
    """A built-in rule counts as a resource once it was changed."""
    for one in client.alerts.rules().rules:
        if one.changed or not one.built_in:
            yield Existing(one.name, converted(one, RuleDefinition), "")


KINDS: tuple[Kind, ...] = (
    Kind(
        "tenants",
        TenantDefinition,
        _read_tenants,
        _create_tenant,
        _change_tenant,
        lambda c, name: _ignore(c.tenants.delete(name)),
    ),
    Kind(
        "settings",
        SettingDefinition,
        _read_settings,
        _create_setting,
        lambda client, name, _before, wanted: _set(client, name, wanted),
        lambda client, name: _ignore(client.settings.reset(_SETTINGS[name])),
    ),
    Kind("keys", KeyDefinition, _read_keys, _create_key, _change_key, lambda c, name: c.keys.delete(_key_id(c, name))),
    put_kind(
        "queues",
        StrictQueueSettings,
        _read_queues,
        lambda c: c.queues.put,
        lambda c: c.queues.delete,
        normaliser=_queue_normaliser,
    ),
    put_kind("topics", StrictTopicSettings, _read_topics, lambda c: c.topics.put, lambda c: c.topics.delete),
    Kind("buckets", _BucketDefinition, _read_buckets, _create_bucket, _change_bucket, lambda c, name: c.buckets.delete(name)),
    Kind(
        "subscriptions",
        SubscriptionDefinition,
        _read_subscriptions,
        _create_subscription,
        _change_subscription,
        lambda c, name: c.subscriptions.delete(_subscription_id(c, name)),
        _has_other_type,
        _subscription_normaliser,
    ),
    Kind(
        "streamSubscriptions",
        StreamSubscriptionDefinition,
        _read_stream_subscriptions,
        _create_stream_subscription,
        _change_streams,
        lambda c, name: c.stream_subscriptions.delete(name),
        _differs_in_more_than_streams,
        _stream_subscription_normaliser,
    ),
    put_kind(
        "schedules",
        ScheduleDefinition,
        _read_schedules,
        lambda c: c.schedules.put,
        lambda c: c.schedules.delete,
    ),
    put_kind("services", ServiceDefinition, _read_services, lambda c: c.services.put, lambda c: c.services.delete),
    put_kind("routes", RouteDefinition, _read_routes, lambda c: c.routes.put, lambda c: c.routes.delete, parts=2),
    put_kind("grants", GrantDefinition, _read_grants, lambda c: c.grants.put, lambda c: c.grants.delete, parts=3),
    put_kind("quotas", QuotaDefinition, _read_quotas, lambda c: c.quotas.put, lambda c: c.quotas.delete, parts=3),
    Kind(
        "alertChannels",
        ChannelDefinition,
        _read_channels,
        _put_channel,
        lambda client, name, _before, wanted: _ignore(_put_channel(client, name, wanted)),
        lambda c, name: c.alerts.delete_channel(name),
    ),
    put_kind("alertRules", RuleDefinition, _read_rules, lambda c: c.alerts.put_rule, lambda c: c.alerts.delete_rule),
)
KINDS_BY_NAME: Mapping[str, Kind] = {kind.name: kind for kind in KINDS}


def _ignore(_result: object) -> None:
    """A call whose result is not needed."""
