"""Who gets what, in which order, and how much at a time. Pure."""

import base64
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from postroad.kernel.errors import InvalidParameter
from postroad.kernel.matching import glob_matches
from postroad.kernel.names import STREAM_CHARS_MAX, stream_id
from postroad.sessions.records import STREAM_PREFIX, FanoutState, Member

SESSION = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
_PATTERN = re.compile(r"[A-Za-z0-9_.:~@+=/*-]+")

# The seed's names and values.
DEFAULT_SESSION_TTL_SECONDS = 1800
FANOUT_QUEUE_THRESHOLD = 200
MAX_INLINE_FANOUT = 1000
FANOUT_RPC_TIMEOUT_MS = 10_000
CIRCUIT_BREAKER_FAILURE_THRESHOLD = 5
CIRCUIT_BREAKER_RECOVERY_MS = 60_000


class Mode(StrEnum):
    """How a publish reaches the sessions; `skipped` and `circuit-open` are made good later."""

    INLINE = "inline"
    QUEUED = "queued"
    CIRCUIT_OPEN = "circuit-open"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class FanoutLimits:
    queue_threshold: int = FANOUT_QUEUE_THRESHOLD
    inline_max: int = MAX_INLINE_FANOUT
    has_queue: bool = True


def session_id(text: str) -> str:
    if not SESSION.fullmatch(text):
        raise InvalidParameter(f"a session's id is 1 to 128 of letters, digits and '_ . : -': {text[:64]!r}")
    return text


def source_name(text: str) -> str:
    """A stream's id, or a pattern of ids in which `*` stands for any characters but `/`. Raises InvalidParameter."""
    if text.startswith(STREAM_PREFIX):
        raise InvalidParameter("a session's stream is where messages end: nobody subscribes to it")
    if "*" not in text:
        return stream_id(text)
    if len(text) > STREAM_CHARS_MAX or not _PATTERN.fullmatch(text) or text.count("*") > 8:
        raise InvalidParameter(f"not a pattern of stream ids: {text[:100]!r}")
    return text


def is_pattern(name: str) -> bool:
    return "*" in name


def pattern_matches(pattern: str, stream: str) -> bool:
    """Streams of sessions fit no pattern: a session would get its own messages, over and over."""
    parts, names = pattern.split("/"), stream.split("/")
    if stream.startswith(STREAM_PREFIX) or len(parts) != len(names):
        return False
    return all(glob_matches(part, name) for part, name in zip(parts, names, strict=True))


def mode_for(count: int, limits: FanoutLimits, *, is_open: bool) -> Mode:
    if count > limits.queue_threshold and limits.has_queue:
        return Mode.QUEUED
    if count > limits.inline_max:
        return Mode.SKIPPED
    return Mode.CIRCUIT_OPEN if is_open else Mode.INLINE


# What to write next


@dataclass(frozen=True, slots=True)
class SourceMessage:
    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Write:
    member: Member
    message: SourceMessage


@dataclass(frozen=True, slots=True)
class Step:
    """Some writes, and the state that is true once they are made."""

    writes: Sequence[Write]
    state: FanoutState


class SubscriberList:
    """The members of a stream in the order of their ids, with those that patterns bring. Who came twice counts from the first."""

    def __init__(self, groups: Iterable[Iterable[Member]]) -> None:
        by_session: dict[str, Member] = {}
        for group in groups:
            for member in group:
                known = by_session.get(member.session)
                if known is None or member.joined_at < known.joined_at:
                    by_session[member.session] = member
        self.sessions = sorted(by_session)
        self.members = [by_session[session] for session in self.sessions]

    def __len__(self) -> int:
        return len(self.members)

    def first_joined(self) -> int:
        return min((member.joined_at for member in self.members), default=0)

    def after(self, session: str) -> Sequence[Member]:
        return self.members[bisect_right(self.sessions, session) :] if session else self.members


def takes(member: Member, sequence: int, media: str) -> bool:
    """Whether a message of this sequence and type is for the member."""
    return member.joined_at < sequence and (member.envelope or member.media == media)


def next_step(
    state: FanoutState, messages: Sequence[SourceMessage], roster: SubscriberList, media: str, limit: int, bytes_max: int = 2**63
) -> Step:
    """Up to `limit` writes of up to `bytes_max`, but at least one: message by message, each to all who were there before it."""
    writes: list[Write] = []
    size = 0
    for message in messages:
        if message.sequence <= state.done:
            continue
        upto = state.upto if state.at == message.sequence else ""
        for member in roster.after(upto):
            if len(writes) >= limit or (writes and size + len(message.payload) > bytes_max):
                last = writes[-1]
                is_same = last.message.sequence == message.sequence
                return Step(
                    writes, FanoutState(done=state.done, at=message.sequence, upto=last.member.session if is_same else upto)
                )
            if takes(member, message.sequence, media):
                writes.append(Write(member, message))
                size += len(message.payload)
        state = FanoutState(done=message.sequence)
    return Step(writes, state)


def eligible(roster: SubscriberList, sequence: int, media: str) -> int:
    return sum(takes(member, sequence, media) for member in roster.members)


def enveloped(stream: str, offset: str, payload: bytes, media: str) -> bytes:
    """A message with where it comes from. JSON stays JSON, text a string, and other bytes are base64."""
    head = _envelope_head(stream, offset)
    if media == "application/json":
        return head + b',"messages":[' + payload + b"]}"
    if media.startswith("text/"):
        return head + b',"text":' + msgspec.json.encode(payload.decode("utf-8", "replace")) + b"}"
    return head + b',"base64":"' + base64.b64encode(payload) + b'"}'


def envelope_alone(stream: str, offset: str) -> bytes:
    """For a message that is too large with it: it is where the envelope says."""
    return _envelope_head(stream, offset) + b',"isOmitted":true}'


def _envelope_head(stream: str, offset: str) -> bytes:
    return msgspec.json.encode({"stream": stream, "offset": offset})[:-1]
