"""Stored format of subscriptions, under `<tenant>.<id>`. The record is the complete state: any worker can serve any call from
it."""

from enum import StrEnum

import msgspec

from postroad.api.stream_subscriptions import ListedStreamSubscription, StreamLink, StreamSubscription, Webhook, WebhookSigning
from postroad.kernel.clock import rfc3339
from postroad.kernel.names import escape


class Kind(StrEnum):
    WEBHOOK = "webhook"
    PULL_WAKE = "pull-wake"


class Link(msgspec.Struct, frozen=True, array_like=True):
    """A subscribed stream: named in the request, matched by the pattern, or both."""

    acked: str
    is_explicit: bool = False
    is_glob: bool = False

    @property
    def kind(self) -> str:
        return "explicit" if self.is_explicit else "glob"


class Wake(msgspec.Struct, frozen=True, kw_only=True):
    """The current wake. It waits for delivery (`attempt_at_ms` is the next attempt), for a claim (no times), or is leased."""

    id: str
    trigger: str  # path of the stream with new data
    attempt_at_ms: int | None = None
    lease_until_ms: int | None = None
    holder: str | None = None


class SubscriptionRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`root` is the base URL of the streams API at the time of the create request. `is_full`: the pattern matches more
    streams than allowed."""

    v: int = 1
    id: str
    tenant: str
    kind: Kind
    pattern: str | None = None
    webhook_url: str | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int
    description: str | None = None
    config_hash: str
    root: str
    created_at_ms: int
    links: dict[str, Link] = {}
    is_full: bool = False
    generation: int = 0
    wake: Wake | None = None
    failures: int = 0

    @property
    def key(self) -> str:
        return record_key(self.tenant, self.id)


def record_key(tenant: str, subscription: str) -> str:
    return f"{tenant}.{escape(subscription)}"


def listed(record: SubscriptionRecord) -> ListedStreamSubscription:
    wake = record.wake
    attempt_at_ms, lease_until_ms = (None, None) if wake is None else (wake.attempt_at_ms, wake.lease_until_ms)
    return ListedStreamSubscription(
        id=record.id,
        type=record.kind.value,
        streams=len(record.links),
        status=_status(record),
        created_at=rfc3339(record.created_at_ms),
        generation=record.generation,
        pending=wake is not None,
        failures=record.failures,
        next_attempt_at=None if attempt_at_ms is None else rfc3339(attempt_at_ms),
        leased_until=None if lease_until_ms is None else rfc3339(lease_until_ms),
        holder=None if wake is None else wake.holder,
        pattern=record.pattern,
        webhook_url=record.webhook_url,
        wake_stream=record.wake_stream,
        description=record.description,
    )


def _status(record: SubscriptionRecord) -> str:
    return "failed" if record.failures or record.is_full else "active"


def subscription_of(record: SubscriptionRecord, kid: str, root: str) -> StreamSubscription:
    signing = WebhookSigning("ed25519", kid, f"{root}/__ds/jwks.json")
    return StreamSubscription(
        id=record.id,
        subscription_id=record.id,
        type=record.kind.value,
        streams=[StreamLink(path, link.kind, link.acked) for path, link in record.links.items()],
        lease_ttl_ms=record.lease_ttl_ms,
        created_at=rfc3339(record.created_at_ms),
        status=_status(record),
        pattern=record.pattern or None,
        webhook=Webhook(record.webhook_url, signing) if record.webhook_url else None,
        wake_stream=record.wake_stream or None,
        description=record.description,
    )
