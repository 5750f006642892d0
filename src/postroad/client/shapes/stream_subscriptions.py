"""Subscriptions to durable streams, as the client hands them back, in the protocol's own spelling."""

import msgspec


class WebhookSigning(msgspec.Struct, frozen=True):
    alg: str
    kid: str
    jwks_url: str


class Webhook(msgspec.Struct, frozen=True):
    url: str
    signing: WebhookSigning


class StreamLink(msgspec.Struct, frozen=True):
    """A stream that is followed, and up to where it was acknowledged."""

    path: str
    link_type: str
    acked_offset: str


class StreamSubscription(msgspec.Struct, frozen=True, kw_only=True):
    """`type` is `webhook` or `pull-wake`. `failed` as `status`: it cannot reach its subscriber, or not follow all it should."""

    id: str
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
    """What is to be read of a stream: after `acked_offset`, up to `tail_offset`."""

    path: str
    link_type: str
    acked_offset: str
    tail_offset: str
    has_pending: bool


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A wake that is this worker's for `lease_ttl_ms`; each `ack` begins that anew. `token` is the proof, and is not printed."""

    wake_id: str
    generation: int
    token: str
    streams: list[PendingStream]
    lease_ttl_ms: int

    def __repr__(self) -> str:
        return f"Claim(wake_id={self.wake_id!r}, generation={self.generation!r}, token='***', streams={self.streams!r})"


class WakeAcked(msgspec.Struct, frozen=True):
    """`next_wake`: there is more already, and another wake will come."""

    next_wake: bool
