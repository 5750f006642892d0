"""Subscriptions to durable streams, with the field names of the Durable Streams protocol."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from postroad.api.pages import Limit, page_of
from postroad.kernel.clock import Timestamp
from postroad.kernel.errors import ConflictError, InvalidRequest, NotFound

LEASE_MS_DEFAULT = 30_000


class SubscriptionNotFound(NotFound, code="subscription-not-found", status=404, title="Subscription not found"):
    """No subscription has this id, or the key may not use its streams."""


class WebhookRefused(InvalidRequest, code="webhook-refused", status=400, title="Webhook URL not allowed"):
    """A webhook URL must use `https` and a public address; `http` is allowed for `localhost` only."""


class WakeFenced(ConflictError, code="wake-fenced", status=409, title="Wake superseded"):
    """The wake was completed or released, or its lease expired; the call has no effect."""


class OffsetRefused(ConflictError, code="offset-refused", status=409, title="Offset refused"):
    """The offset is before the last acknowledged one or beyond the end of the stream, or the stream is not subscribed."""


class LeaseHeld(ConflictError, code="lease-held", status=409, title="Lease held by another worker"):
    """Another worker holds the lease; `error.current_holder` names it."""


class NothingPending(ConflictError, code="nothing-pending", status=409, title="Nothing pending"):
    """All messages in the subscription's streams are acknowledged."""


# Requests. Values are checked by the rules, with the protocol's error codes; so nearly all fields have defaults here.


class NewWebhook(msgspec.Struct, frozen=True):
    url: str = ""


class ListedStreamSubscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subscription in a list. `streams` is their number; `generation` that of the last wake; `pending` is true while a wake
    waits for its delivery, claim or acknowledgement. `failures` are deliveries of the wake in a row that failed."""

    id: str
    type: str
    streams: int
    status: str
    created_at: Timestamp
    generation: int
    pending: bool
    failures: int = 0
    next_attempt_at: Annotated[Timestamp | None, Meta(description="While the wake waits for its delivery.")] = None
    leased_until: Annotated[Timestamp | None, Meta(description="While a worker has the wake.")] = None
    holder: Annotated[str | None, Meta(description="The worker that claimed the wake.")] = None
    pattern: str | None = None
    webhook_url: str | None = None
    wake_stream: str | None = None
    description: str | None = None


ListedStreamSubscriptionPage = page_of(ListedStreamSubscription, "subscriptions")


class StreamSubscriptionQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    prefix: Annotated[str, Meta(max_length=128, description="Only ids that begin with this.")] | None = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(min_length=1, max_length=128)] | None = None


class NewStreamSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """`type` is `webhook` or `pull-wake`. A pattern, streams, or both select the streams."""

    type: str = ""
    pattern: str | None = None
    streams: list[str] | None = None
    webhook: NewWebhook | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int = LEASE_MS_DEFAULT
    description: str | None = None


class AddStreamsRequest(msgspec.Struct, frozen=True):
    streams: list[str] = []


class ClaimRequest(msgspec.Struct, frozen=True):
    worker: str = ""


class OffsetAck(msgspec.Struct, frozen=True):
    """`path` is another name of `stream`."""

    offset: str = ""
    stream: str | None = None
    path: str | None = None


class WakeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of the wake with this id and generation. `done`: everything up to these offsets is processed."""

    wake_id: str | None = None
    generation: int | None = None
    acks: list[OffsetAck] | None = None
    done: bool = False


# Responses


class WebhookSigning(msgspec.Struct, frozen=True):
    alg: str
    kid: str
    jwks_url: str


class Webhook(msgspec.Struct, frozen=True):
    url: str
    signing: WebhookSigning


class StreamLink(msgspec.Struct, frozen=True):
    """A subscribed stream and its last acknowledged offset. `link_type` is `explicit` or `glob`."""

    path: str
    link_type: str
    acked_offset: str


class StreamSubscription(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A subscription. `status` is `failed` while its webhook or wake stream fails, or if its pattern matches too many streams."""

    id: str
    subscription_id: str
    type: str
    streams: list[StreamLink]
    lease_ttl_ms: int
    created_at: str
    status: str
    pattern: str | None = None
    webhook: Webhook | None = None
    wake_stream: str | None = None
    description: str | None = None


class PendingStream(msgspec.Struct, frozen=True):
    """A subscribed stream: unread from `acked_offset` to `tail_offset`."""

    path: str
    link_type: str
    acked_offset: str
    tail_offset: str
    has_pending: bool


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A wake leased to a worker for `lease_ttl_ms`; each `ack` renews the lease. `token` authorises the holder and is not
    printed."""

    wake_id: str
    generation: int
    token: str
    streams: list[PendingStream]
    lease_ttl_ms: int

    def __repr__(self) -> str:
        return f"Claim(wake_id={self.wake_id!r}, generation={self.generation!r}, token='***', streams={self.streams!r})"


class WakeAcked(msgspec.Struct, frozen=True):
    """`next_wake`: more is pending, and another wake follows."""

    next_wake: bool
    ok: bool = True


class Jwk(msgspec.Struct, frozen=True, kw_only=True):
    kty: Literal["OKP"] = "OKP"
    crv: Literal["Ed25519"] = "Ed25519"
    x: str
    kid: str
    use: Literal["sig"] = "sig"
    alg: Literal["EdDSA"] = "EdDSA"


class JwkSet(msgspec.Struct, frozen=True):
    keys: list[Jwk]


# Messages to subscribers


class WebhookPayload(msgspec.Struct, frozen=True, kw_only=True):
    """Body of a webhook call."""

    subscription_id: str
    wake_id: str
    generation: int
    streams: list[PendingStream]
    callback_url: str
    callback_token: str


class WakeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Message in a wake stream."""

    type: str = "wake"
    subscription_id: str
    stream: str
    generation: int
    ts: int
