"""Messages of the multiplexed WebSocket `/v1/ws` (subprotocol `postroad.v1`). JSON objects; `op` is the kind."""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from postroad.api.problems import Problem
from postroad.api.selectors import PATTERNS_MAX, SubjectPattern
from postroad.api.topics import (
    FromSequence,
    FromTime,
    LatestOnly,
    LiveEventId,
    LivePositionQuery,
)
from postroad.kernel.clock import Timestamp
from postroad.kernel.names import TOPIC_CHARS_MAX

SUBPROTOCOL = "postroad.v1"
SUBSCRIPTIONS_MAX = 64
REF_CHARS_MAX = 64

Ref = Annotated[str, Meta(min_length=1, max_length=REF_CHARS_MAX, description="The client's name of the subscription.")]


class LiveSocketQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tenant: Annotated[str, Meta(min_length=1, max_length=64, description="The tenant of a JWT.")] | None = None


class LiveSubscriptionSocketQuery(LivePositionQuery, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    after: LiveEventId | None = None


class ClientOp(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What every message of a client has."""

    op: str
    ref: msgspec.Raw | UnsetType = UNSET


class Subscribe(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """`after` continues after the `id` of a message, and precedes `fromSequence` and `fromTime`."""

    op: str
    ref: Ref
    topic: Annotated[str, Meta(min_length=1, max_length=TOPIC_CHARS_MAX)]
    filter: Annotated[tuple[SubjectPattern, ...], Meta(max_length=PATTERNS_MAX)] | SubjectPattern = ()
    after: LiveEventId | None = None
    from_sequence: FromSequence | None = None
    from_time: FromTime | None = None
    latest_only: LatestOnly | None = None


class Unsubscribe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    op: str
    ref: Ref


class RenewToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Replaces the credential of the connection."""

    op: str
    token: Annotated[str, Meta(min_length=1, max_length=8192)]


class Ping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    op: str


class Subscribed(msgspec.Struct, frozen=True, tag_field="op", tag="subscribed", rename="camel", kw_only=True, omit_defaults=True):
    """The subscription starts after `sequence`. `pending` is the number of messages to catch up with, before filters."""

    ref: str | UnsetType = UNSET
    id: str
    topic: str
    sequence: int
    pending: int


class Unsubscribed(msgspec.Struct, frozen=True, tag_field="op", tag="unsubscribed"):
    ref: str


class Expiring(msgspec.Struct, frozen=True, tag_field="op", tag="expiring", rename="camel"):
    """The credential expires soon: send another one."""

    expires_at: Timestamp


class TokenAccepted(msgspec.Struct, frozen=True, tag_field="op", tag="token", rename="camel"):
    expires_at: Timestamp | None


class Pong(msgspec.Struct, frozen=True, tag_field="op", tag="pong"):
    pass


class LiveError(msgspec.Struct, frozen=True, tag_field="op", tag="error", omit_defaults=True):
    """A message that could not be processed, or a subscription that has ended."""

    problem: Problem
    ref: str | UnsetType = UNSET
