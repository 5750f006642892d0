"""What the subscription API takes and gives, in the protocol's own spelling."""

import msgspec
from msgspec import UNSET, UnsetType

from postroad.kernel.clock import rfc3339
from postroad.stream_subscriptions.records import SubscriptionRecord
from postroad.stream_subscriptions.rules import LEASE_MS_DEFAULT, StreamState

# Taken. What has the wrong value is refused by the rules, in the protocol's words; so nearly everything may be left out here.


class WebhookInput(msgspec.Struct, frozen=True):
    url: str = ""


class SubscriptionInput(msgspec.Struct, frozen=True, kw_only=True):
    """`type` is `webhook` or `pull-wake`; a pattern, streams, or both say what is followed."""

    type: str = ""
    pattern: str | None = None
    streams: list[str] | None = None
    webhook: WebhookInput | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int = LEASE_MS_DEFAULT
    description: str | None = None


class StreamsInput(msgspec.Struct, frozen=True):
    streams: list[str] = []


class ClaimInput(msgspec.Struct, frozen=True):
    worker: str = ""


class AckInput(msgspec.Struct, frozen=True):
    offset: str = ""
    stream: str | None = None
    path: str | None = None


class WakeInput(msgspec.Struct, frozen=True, kw_only=True):
    """Which wake it is about, how far was read, and whether that is all."""

    wake_id: str | None = None
    generation: int | None = None
    acks: list[AckInput] | None = None
    done: bool = False


# Given


class Signing(msgspec.Struct, frozen=True):
    alg: str
    kid: str
    jwks_url: str


class WebhookView(msgspec.Struct, frozen=True):
    url: str
    signing: Signing


class LinkView(msgspec.Struct, frozen=True):
    path: str
    link_type: str
    acked_offset: str


class SubscriptionView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    subscription_id: str
    type: str
    streams: list[LinkView]
    lease_ttl_ms: int
    created_at: str
    status: str
    pattern: str | UnsetType = UNSET
    webhook: WebhookView | UnsetType = UNSET
    wake_stream: str | UnsetType = UNSET
    description: str | UnsetType = UNSET


class ClaimView(msgspec.Struct, frozen=True, kw_only=True):
    wake_id: str
    generation: int
    token: str
    streams: list[StreamState]
    lease_ttl_ms: int


class AckView(msgspec.Struct, frozen=True):
    next_wake: bool
    ok: bool = True


class WebhookBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a webhook is told."""

    subscription_id: str
    wake_id: str
    generation: int
    streams: list[StreamState]
    callback_url: str
    callback_token: str


class WakeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What is appended to a wake stream."""

    type: str = "wake"
    subscription_id: str
    stream: str
    generation: int
    ts: int


def subscription_view(record: SubscriptionRecord, kid: str) -> SubscriptionView:
    """A subscription that cannot tell its subscriber, or cannot follow all that it should, is `failed`."""
    signing = Signing("ed25519", kid, f"{record.root}/__ds/jwks.json")
    return SubscriptionView(
        id=record.id,
        subscription_id=record.id,
        type=record.kind.value,
        streams=[LinkView(path, link.kind, link.acked) for path, link in record.links.items()],
        lease_ttl_ms=record.lease_ttl_ms,
        created_at=rfc3339(record.created_at_ms),
        status="failed" if record.failures or record.is_full else "active",
        pattern=record.pattern or UNSET,
        webhook=WebhookView(record.webhook_url, signing) if record.webhook_url else UNSET,
        wake_stream=record.wake_stream or UNSET,
        description=UNSET if record.description is None else record.description,
    )
