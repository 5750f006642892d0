"""What is stored of sessions, all in the engine stream that has the tenant's durable streams, so that one atomic batch can
change several of these together.

    x.<tenant>.<session>     what a session subscribes to; the last one holds
    f.<tenant>.<name>.u      who subscribes to a stream or pattern: a log of changes, now and then written anew
    f.<tenant>.<name>.s      how far the fan-out of a stream has come; the last one holds
    f.<tenant>.<name>.c<n>   empty, carriers of a condition
    g.<tenant>.p             patterns that somebody subscribed to

The stream of session `42` is the durable stream `session:42`. When it ends is in that stream's own record.
"""

from enum import StrEnum

import msgspec

from postroad.kernel.names import escape

VERSION = 1
STREAM_PREFIX = "session:"


class Subscription(msgspec.Struct, frozen=True, array_like=True):
    since_ms: int
    envelope: bool = False


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a session ended, as its event says it: whoever has to tell that again uses the same words."""

    id: str
    at_ms: int
    is_expired: bool
    subscriptions: int


class SessionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`expires_at_ms` is when it was to end as of the last subscribe: a hint for the clean-up, which asks the stream. One that
    has `ended` is there only until its remains are removed."""

    v: int = VERSION
    id: str
    content_type: str
    created_at_ms: int
    expires_at_ms: int
    subscriptions: dict[str, Subscription]
    ended: Ending | None = None


class Op(StrEnum):
    JOIN = "+"
    LEAVE = "-"
    ANEW = "="  # the log begins again here
    MORE = "&"  # more of what it begins with


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A subscriber. `joined_at` 0: the sequence of the change that has it. It gets what was written to the source after that."""

    session: str
    joined_at: int
    media: str
    envelope: bool = False


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    v: int = VERSION
    op: Op
    members: tuple[Member, ...] = ()
    sessions: tuple[str, ...] = ()


class FanoutState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything up to the source's sequence `done` has been given to everyone; of `at`, if it is not 0, everyone up to and with
    the session `upto` in the order of their ids has it."""

    v: int = VERSION
    done: int = 0
    at: int = 0
    upto: str = ""


class PatternAdded(msgspec.Struct, frozen=True, kw_only=True):
    v: int = VERSION
    pattern: str


encode = msgspec.json.Encoder().encode
decode_session = msgspec.json.Decoder(SessionRecord).decode
decode_change = msgspec.json.Decoder(Change).decode
decode_state = msgspec.json.Decoder(FanoutState).decode
decode_pattern = msgspec.json.Decoder(PatternAdded).decode


def session_subject(tenant: str, session: str) -> str:
    return f"x.{tenant}.{escape(session)}"


def members_subject(tenant: str, name: str) -> str:
    return f"f.{tenant}.{escape(name)}.u"


def state_subject(tenant: str, name: str) -> str:
    return f"f.{tenant}.{escape(name)}.s"


def carrier_subject(tenant: str, name: str, number: int) -> str:
    """Of empty messages that only carry a condition, when there is no other to do so."""
    return f"f.{tenant}.{escape(name)}.c{number}"


def patterns_subject(tenant: str) -> str:
    return f"g.{tenant}.p"
