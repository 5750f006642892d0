"""Stored formats of sessions, in the JetStream stream of the tenant's durable streams, so that one atomic batch can change
several of them together.

    x.<tenant>.<session>     the session and its subscriptions; the last one counts
    f.<tenant>.<name>.u      subscribers of a stream or pattern: a log of changes, compacted now and then
    f.<tenant>.<name>.s      progress of a stream's fan-out; the last one counts
    f.<tenant>.<name>.c<n>   empty messages that carry a precondition
    g.<tenant>.p             patterns with subscribers

The stream of session `42` is the durable stream `session:42`. Its record has the time at which the session expires.
"""

from enum import StrEnum

import msgspec

from postroad.kernel.names import escape

VERSION = 1


class Subscription(msgspec.Struct, frozen=True, array_like=True):
    since_ms: int
    envelope: bool = False


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the session's `session.ended` event, stored so that a repeated event is identical."""

    id: str
    at_ms: int
    is_expired: bool
    subscriptions: int


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`expires_at_ms` is the expiry as of the last subscribe, a hint for the clean-up: the stream's record has the actual one. A
    record with `ended` remains until the rest of the session is removed."""

    v: int = VERSION
    id: str
    content_type: str
    created_at_ms: int
    expires_at_ms: int
    subscriptions: dict[str, Subscription]
    ended: Ending | None = None


class ChangeKind(StrEnum):
    JOIN = "+"
    LEAVE = "-"
    SNAPSHOT = "="  # the log begins here
    CONTINUATION = "&"  # more members of the snapshot


class Subscriber(msgspec.Struct, frozen=True, array_like=True):
    """A subscribed session. It gets messages of the source after `joined_at`; 0 means the sequence of the change itself."""

    session: str
    joined_at: int
    media: str
    envelope: bool = False


class SubscriberChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    v: int = VERSION
    kind: ChangeKind = msgspec.field(name="op")
    joined: tuple[Subscriber, ...] = msgspec.field(default=(), name="members")
    left: tuple[str, ...] = msgspec.field(default=(), name="sessions")


class FanoutState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All subscribers have everything up to the source's sequence `done`. Of the message `at`, if it is not 0, the sessions up to
    `upto` in the order of their ids have a copy."""

    v: int = VERSION
    done: int = 0
    at: int = 0
    upto: str = ""


class PatternAdded(msgspec.Struct, frozen=True, kw_only=True):
    v: int = VERSION
    pattern: str


encode = msgspec.json.Encoder().encode
decode_session = msgspec.json.Decoder(SessionRecord).decode
decode_change = msgspec.json.Decoder(SubscriberChange).decode
decode_state = msgspec.json.Decoder(FanoutState).decode
decode_pattern = msgspec.json.Decoder(PatternAdded).decode


def session_subject(tenant: str, session: str) -> str:
    return f"x.{tenant}.{escape(session)}"


def subscribers_subject(tenant: str, name: str) -> str:
    return f"f.{tenant}.{escape(name)}.u"


def state_subject(tenant: str, name: str) -> str:
    return f"f.{tenant}.{escape(name)}.s"


def condition_subject(tenant: str, name: str, number: int) -> str:
    """Subject of an empty message that carries a precondition for which no other message is left."""
    return f"f.{tenant}.{escape(name)}.c{number}"


def patterns_subject(tenant: str) -> str:
    return f"g.{tenant}.p"
