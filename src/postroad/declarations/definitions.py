"""What a file declares of each kind of resource, where that differs from the request of the API."""

from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta

from postroad.api.access import NewKey
from postroad.api.schedules import ScheduleSettings
from postroad.api.stream_subscriptions import LEASE_MS_DEFAULT
from postroad.api.subscriptions import NewSubscription

UNKNOWN_HEADER = "***"  # the value of a header in an export: the server does not return it


class TenantDefinition(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    description: Annotated[str, Meta(max_length=1000, description="Note for people.")] = ""
    enabled: Annotated[bool, Meta(description="The credentials of a disabled tenant are refused.")] = True


class SettingDefinition(msgspec.Struct, frozen=True):
    """The value of one setting of the tenant."""

    value: Any


class StreamSubscriptionDefinition(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    pattern: Annotated[str | None, Meta(description="Streams: `*` is one segment, `**` any number.")] = None
    streams: Annotated[tuple[str, ...], Meta(description="Ids of streams.")] = ()
    webhook_url: Annotated[str | None, Meta(description="Where wakes are sent.")] = None
    wake_stream: Annotated[str | None, Meta(description="Stream that wakes are appended to, instead of a webhook.")] = None
    lease_ttl_ms: Annotated[int, Meta(description="Lease of a claim.")] = LEASE_MS_DEFAULT
    description: str | None = None


def _without(request: type[msgspec.Struct], name: str, *left_out: str, **more: Any) -> Any:
    hints = get_type_hints(request, include_extras=True)
    fields: list[Any] = []
    for one in msgspec.structs.fields(request):
        if one.name not in left_out:
            default = {} if one.required else {"default": one.default, "default_factory": one.default_factory}
            default = {key: value for key, value in default.items() if value is not msgspec.NODEFAULT}
            fields.append((one.name, hints[one.name], msgspec.field(name=one.encode_name, **default)))
    fields += [(one, *kind) for one, kind in more.items()]
    return msgspec.defstruct(name, fields, frozen=True, kw_only=True, forbid_unknown_fields=True, module=__name__)


# Texts and secrets are generated and shown once: a file declares none.
KeyDefinition = _without(NewKey, "KeyDefinition", "name", "platform", enabled=(bool, True))
SubscriptionDefinition = _without(NewSubscription, "SubscriptionDefinition", "name", "secret")
ScheduleDefinition = _without(ScheduleSettings, "ScheduleDefinition", "payload", payload=(Any, None))
