"""What is stored of a subscription, under `<tenant>.<id>`. It is the whole truth: any worker can serve any call from it."""

from enum import StrEnum

import msgspec

from postroad.kernel.names import escape


class Kind(StrEnum):
    WEBHOOK = "webhook"
    PULL_WAKE = "pull-wake"


class Link(msgspec.Struct, frozen=True, array_like=True):
    """A stream that is subscribed to: because it was named, because its path matches, or both."""

    acked: str
    is_explicit: bool = False
    is_glob: bool = False

    @property
    def kind(self) -> str:
        return "explicit" if self.is_explicit else "glob"


class Wake(msgspec.Struct, frozen=True, kw_only=True):
    """The one wake that is under way.

    It is to be told (`attempt_at_ms`: when next), told and not taken up yet (neither), or leased (`lease_until_ms`).
    """

    id: str
    trigger: str  # the stream that was the reason
    attempt_at_ms: int | None = None
    lease_until_ms: int | None = None
    holder: str | None = None


class SubscriptionRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`root` is where its own API is, as the one who made it reached us. `is_full`: more streams match than it can have."""

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
