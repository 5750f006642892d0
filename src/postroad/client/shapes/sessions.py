"""Sessions, and what became of a publish to them, as the client hands them back."""

from typing import Annotated

import msgspec

from postroad.client.shapes.streams import Appended

Milliseconds = Annotated[int, msgspec.Meta(description="Since 1970.")]


class Subscribed(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`session_stream_path` is where the session's messages are read. It ends at `expires_at_ms`, unless it is touched."""

    session_id: str
    stream_id: str
    session_stream_path: str
    expires_at_ms: Milliseconds = msgspec.field(name="expiresAt")
    is_new_session: bool


class Unsubscribed(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    session_id: str
    stream_id: str


class SessionSubscription(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`outstanding` is how many messages of the stream are still to come; None is not known, as for a pattern."""

    stream_id: str
    subscribed_at: str
    envelope: bool
    outstanding: int | None = None


class Session(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`next_offset` is where its stream ends: who reads from there gets what is to come."""

    session_id: str
    session_stream_path: str
    content_type: str
    created_at: str
    expires_at_ms: Milliseconds = msgspec.field(name="expiresAt")
    next_offset: str
    subscriptions: list[SessionSubscription]


class Touched(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    session_id: str
    expires_at_ms: Milliseconds = msgspec.field(name="expiresAt")


class FannedOut(Appended, frozen=True, kw_only=True):
    """What was published is stored at `offset`; and what became of its copies by the time of the answer.

    `mode` is `inline` (all of `count` have it, save `failures`), `queued`, `circuit-open` or `skipped`: then they get it later.
    """

    mode: str
    count: int
    successes: int
    failures: int


class Fanout(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """How far a stream's fan-out has come: everything up to `done_offset` is with everyone, `outstanding` messages are not."""

    stream_id: str
    subscribers: int
    done_offset: str
    outstanding: int
    breaker: str
