"""Rules of fan-outs: the subscribers of a message, the order of copies and the size of batches. Pure."""

import base64
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from postroad.api.sessions import SESSION_CHARS_MAX, SESSION_PATTERN
from postroad.kernel.errors import InvalidParameter
from postroad.kernel.matching import glob_matches
from postroad.kernel.names import SESSION_PREFIX, STREAM_CHARS_MAX, stream_id
from postroad.sessions.records import FanoutState, Subscriber

_SESSION = re.compile(SESSION_PATTERN)
_PATTERN = re.compile(r"[A-Za-z0-9_.:~@+=/*-]+")
_PATTERN_STARS_MAX = 8


class FanoutMode(StrEnum):
    """How a publish reaches the sessions. After `skipped` and `circuit-open` the reconciler makes the copies later."""

    INLINE = "inline"
    QUEUED = "queued"
    CIRCUIT_OPEN = "circuit-open"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class FanoutLimits:
    queue_threshold: int
    inline_max: int
    has_queue: bool

    @property
    def inline_count_max(self) -> int:
        """Subscribers up to which a fan-out is inline."""
        return min(self.queue_threshold, self.inline_max) if self.has_queue else self.inline_max


def session_id(text: str) -> str:
    """Raises InvalidParameter."""
    if len(text) > SESSION_CHARS_MAX or not _SESSION.fullmatch(text):
        raise InvalidParameter(f"a session id has 1 to 128 letters, digits and '_ . : -', and not only dots: {text[:64]!r}")
    return text


def source_id(text: str) -> str:
    """Id of a stream, or a pattern of ids in which `*` matches any characters except `/`. Raises InvalidParameter."""
    if text.startswith(SESSION_PREFIX):
        raise InvalidParameter("sessions cannot subscribe to the stream of a session")
    if "*" not in text:
        return stream_id(text)
    if len(text) > STREAM_CHARS_MAX or not _PATTERN.fullmatch(text) or text.count("*") > _PATTERN_STARS_MAX:
        raise InvalidParameter(f"not a pattern of stream ids: {text[:100]!r}")
    return text


def is_pattern(name: str) -> bool:
    return "*" in name


def pattern_matches(pattern: str, stream: str) -> bool:
    """Streams of sessions match no pattern: a session would receive its own messages again and again."""
    parts, names = pattern.split("/"), stream.split("/")
    if stream.startswith(SESSION_PREFIX) or len(parts) != len(names):
        return False
    return all(glob_matches(part, name) for part, name in zip(parts, names, strict=True))


def mode_for(count: int, limits: FanoutLimits) -> FanoutMode:
    """Mode for this number of subscribers while the circuit breaker is closed."""
    if count > limits.queue_threshold and limits.has_queue:
        return FanoutMode.QUEUED
    return FanoutMode.SKIPPED if count > limits.inline_max else FanoutMode.INLINE


# Batches of copies


@dataclass(frozen=True, slots=True)
class SourceMessage:
    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Copy:
    subscriber: Subscriber
    message: SourceMessage


@dataclass(frozen=True, slots=True)
class CopyBatch:
    """Copies to write together, and the state after them."""

    copies: Sequence[Copy]
    state: FanoutState


class SubscriberList:
    """Subscribers of a stream in the order of their ids, those of patterns included. A session counts from its first join."""

    def __init__(self, groups: Iterable[Iterable[Subscriber]]) -> None:
        by_session: dict[str, Subscriber] = {}
        for group in groups:
            for one in group:
                other = by_session.get(one.session)
                if other is None or one.joined_at < other.joined_at:
                    by_session[one.session] = one
        self._sessions = sorted(by_session)
        self._subscribers = [by_session[session] for session in self._sessions]

    def __len__(self) -> int:
        return len(self._subscribers)

    def first_joined(self) -> int:
        return min((one.joined_at for one in self._subscribers), default=0)

    def after(self, session: str) -> Sequence[Subscriber]:
        return self._subscribers[bisect_right(self._sessions, session) :] if session else self._subscribers

    def count_eligible(self, sequence: int, media: str) -> int:
        return sum(is_eligible(one, sequence, media) for one in self._subscribers)


def is_eligible(subscriber: Subscriber, sequence: int, media: str) -> bool:
    """True if the subscriber gets a message with this sequence and media type."""
    return subscriber.joined_at < sequence and (subscriber.envelope or subscriber.media == media)


def next_batch(
    state: FanoutState,
    messages: Sequence[SourceMessage],
    subscribers: SubscriberList,
    media: str,
    limit: int,
    bytes_max: int = 2**63,
) -> CopyBatch:
    """Up to `limit` copies of up to `bytes_max` in total, but at least one: message by message, each to all eligible
    subscribers."""
    copies: list[Copy] = []
    size = 0
    for message in messages:
        if message.sequence <= state.done:
            continue
        upto = state.upto if state.at == message.sequence else ""
        for subscriber in subscribers.after(upto):
            if len(copies) >= limit or (copies and size + len(message.payload) > bytes_max):
                last = copies[-1]
                if last.message.sequence == message.sequence:
                    upto = last.subscriber.session
                return CopyBatch(copies, FanoutState(done=state.done, at=message.sequence, upto=upto))
            if is_eligible(subscriber, message.sequence, media):
                copies.append(Copy(subscriber, message))
                size += len(message.payload)
        state = FanoutState(done=message.sequence)
    return CopyBatch(copies, state)


# Envelopes


def envelope(stream: str, offset: str, payload: bytes, media: str) -> bytes:
    """A message with its source. JSON stays JSON, text becomes a string, other bytes become base64."""
    start = _envelope_start(stream, offset)
    if media == "application/json":
        return start + b',"messages":[' + payload + b"]}"
    if media.startswith("text/"):
        return start + b',"text":' + msgspec.json.encode(payload.decode("utf-8", "replace")) + b"}"
    return start + b',"base64":"' + base64.b64encode(payload) + b'"}'


def empty_envelope(stream: str, offset: str) -> bytes:
    """For a message that would be too large in an envelope: readers get it from its source."""
    return _envelope_start(stream, offset) + b',"isOmitted":true}'


def _envelope_start(stream: str, offset: str) -> bytes:
    return msgspec.json.encode({"stream": stream, "offset": offset})[:-1]
