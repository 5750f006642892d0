"""What a subscription wants, which streams it has, and what of them is to be read. Pure: no I/O, no clock, no chance."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from postroad.kernel.errors import InvalidParameter, OffsetRefused
from postroad.kernel.matching import path_glob_matches
from postroad.kernel.names import stream_id
from postroad.stream_subscriptions.records import Kind, Link, SubscriptionRecord

ZERO = "0000000000000000_0000000000000000"
BEFORE_FIRST = "-1"  # of a stream that appeared later: all of it is news

LEASE_MS_DEFAULT = 30_000
LEASE_MS_MIN, LEASE_MS_MAX = 1_000, 600_000
LINKS_MAX = 1_000  # all of them are in one record, and in each webhook
PATTERN_CHARS_MAX = 256
DESCRIPTION_CHARS_MAX = 1_000
WORKER_CHARS_MAX = 256

_ID = re.compile(r"[A-Za-z0-9_.:~@+=-]{1,128}")
_OFFSET = re.compile(r"[0-9]{16}_[0-9]{16}")
_PATTERN = re.compile(r"[A-Za-z0-9_.:~@+=*-]+(?:/[A-Za-z0-9_.:~@+=*-]+)*")


@dataclass(frozen=True, slots=True)
class Config:
    """What somebody wants of a subscription, in its normal form."""

    kind: Kind
    pattern: str | None
    streams: tuple[str, ...]
    webhook_url: str | None
    wake_stream: str | None
    lease_ttl_ms: int
    description: str | None

    @property
    def hash(self) -> str:
        """Equal for those that want the same."""
        parts = [
            self.kind.value,
            self.pattern,
            self.streams,
            self.webhook_url,
            self.wake_stream,
            self.lease_ttl_ms,
            self.description,
        ]
        return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def config_of(
    *,
    kind: str,
    pattern: str | None,
    streams: Sequence[str],
    webhook_url: str | None,
    wake_stream: str | None,
    lease_ttl_ms: int,
    description: str | None,
) -> Config:
    """Raises InvalidParameter. Whether the webhook may be called is not asked here."""
    if kind not in (Kind.WEBHOOK, Kind.PULL_WAKE):
        raise InvalidParameter("type is 'webhook' or 'pull-wake'")
    if not pattern and not streams:
        raise InvalidParameter("a pattern, streams, or both are needed")
    if not LEASE_MS_MIN <= lease_ttl_ms <= LEASE_MS_MAX:
        raise InvalidParameter(f"lease_ttl_ms is from {LEASE_MS_MIN} to {LEASE_MS_MAX}")
    if description is not None and len(description) > DESCRIPTION_CHARS_MAX:
        raise InvalidParameter(f"description has at most {DESCRIPTION_CHARS_MAX} characters")
    if kind == Kind.WEBHOOK and not webhook_url:
        raise InvalidParameter("a webhook subscription needs webhook.url")
    if kind == Kind.PULL_WAKE and not wake_stream:
        raise InvalidParameter("a pull-wake subscription needs wake_stream")
    named = stream_paths(streams)
    wakes = stream_path(wake_stream) if kind == Kind.PULL_WAKE and wake_stream else None
    if wakes in named:
        raise InvalidParameter("a subscription cannot follow its own wake stream: each wake would bring the next")
    return Config(
        kind=Kind(kind),
        pattern=_pattern(pattern) if pattern else None,
        streams=named,
        webhook_url=webhook_url if kind == Kind.WEBHOOK else None,
        wake_stream=wakes,
        lease_ttl_ms=lease_ttl_ms,
        description=description,
    )


def subscription_id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise InvalidParameter(f"a subscription's id is 1 to 128 of letters, digits and '_ . : ~ @ + = -': {text[:100]!r}")
    return text


def stream_path(text: str) -> str:
    """Relative to the root; slashes around it do not count."""
    return stream_id(text.strip("/"))


def stream_paths(texts: Iterable[str]) -> tuple[str, ...]:
    paths = tuple(sorted({stream_path(text) for text in texts}))
    if len(paths) > LINKS_MAX:
        raise InvalidParameter(f"a subscription has at most {LINKS_MAX} streams")
    return paths


def _pattern(text: str) -> str:
    found = text.strip("/")
    is_one = len(found) <= PATTERN_CHARS_MAX and _PATTERN.fullmatch(found)
    if not is_one or any("*" in part and part not in ("*", "**") for part in found.split("/")):
        raise InvalidParameter(
            f"a pattern is a path of at most {PATTERN_CHARS_MAX} characters in which '*' is one segment and '**' any number"
        )
    return found


# Which streams


def follows(record: SubscriptionRecord, path: str) -> bool:
    """Whether the path matches. Its own wakes are no news to a subscription: each would bring the next."""
    return record.pattern is not None and path != record.wake_stream and path_glob_matches(record.pattern, path)


def with_globs(record: SubscriptionRecord, acked: Mapping[str, str]) -> SubscriptionRecord:
    """Linked to the streams of these paths, at these offsets unless they were linked before. What finds no room is left out."""
    links = dict(record.links)
    is_full = record.is_full
    for path, offset in acked.items():
        known = links.get(path)
        if known is None and len(links) >= LINKS_MAX:
            is_full = True
        elif known is None or not known.is_glob:
            links[path] = Link(known.acked if known else offset, bool(known and known.is_explicit), True)
    return msgspec.structs.replace(record, links=links, is_full=is_full)


def with_named(record: SubscriptionRecord, acked: Mapping[str, str]) -> SubscriptionRecord:
    """The same for streams that were named. Raises InvalidParameter if there is no room for all of them."""
    if record.wake_stream in acked:
        raise InvalidParameter("a subscription cannot follow its own wake stream: each wake would bring the next")
    links = dict(record.links)
    for path, offset in acked.items():
        known = links.get(path)
        links[path] = Link(known.acked if known else offset, True, bool(known and known.is_glob))
    if len(links) > LINKS_MAX:
        raise InvalidParameter(f"a subscription has at most {LINKS_MAX} streams")
    return msgspec.structs.replace(record, links=links)


def without_named(record: SubscriptionRecord, path: str) -> SubscriptionRecord:
    """No longer linked by name; one that matches the pattern stays."""
    known = record.links.get(path)
    if known is None or not known.is_explicit:
        return record
    links = {other: link for other, link in record.links.items() if other != path}
    if known.is_glob:
        links[path] = Link(known.acked, False, True)
    return msgspec.structs.replace(record, links=links)


def without_gone(record: SubscriptionRecord, gone: Iterable[str]) -> SubscriptionRecord:
    """Without streams that matched and are no more. Those that were named may come back, and are waited for."""
    dropped = {path for path in gone if (link := record.links.get(path)) is not None and not link.is_explicit}
    if not dropped:
        return record
    links = {path: link for path, link in record.links.items() if path not in dropped}
    return msgspec.structs.replace(record, links=links, is_full=False)


# What is to be read


def is_pending(link: Link, tail: str) -> bool:
    """Whether there is something after what was acknowledged. An empty stream has nothing, however new it is."""
    return tail > (ZERO if link.acked == BEFORE_FIRST else link.acked)


def first_pending(record: SubscriptionRecord, tails: Mapping[str, str]) -> str | None:
    return next((path for path, link in record.links.items() if is_pending(link, tails.get(path, ZERO))), None)


class StreamState(msgspec.Struct, frozen=True):
    """A stream as its subscriber is told of it."""

    path: str
    link_type: str
    acked_offset: str
    tail_offset: str
    has_pending: bool


def stream_states(record: SubscriptionRecord, tails: Mapping[str, str]) -> list[StreamState]:
    return [
        StreamState(path, link.kind, link.acked, tail, is_pending(link, tail))
        for path, link in record.links.items()
        for tail in (tails.get(path, ZERO),)
    ]


def acknowledged(record: SubscriptionRecord, offsets: Sequence[tuple[str, str]], tails: Mapping[str, str]) -> SubscriptionRecord:
    """All of these or none. Raises OffsetRefused."""
    links = dict(record.links)
    for path, offset in offsets:
        link = links.get(path)
        if link is None:
            raise OffsetRefused(f"the subscription has no stream {path[:100]!r}")
        if not _OFFSET.fullmatch(offset):
            raise OffsetRefused(f"not an offset: {offset[:64]!r}")
        if offset < link.acked:
            raise OffsetRefused(f"{link.acked} of {path!r} is acknowledged already")
        if offset > tails.get(path, ZERO):
            raise OffsetRefused(f"{path!r} ends before that")
        links[path] = Link(offset, link.is_explicit, link.is_glob)
    return msgspec.structs.replace(record, links=links)


def acknowledged_as_told(record: SubscriptionRecord, told: Mapping[str, str]) -> SubscriptionRecord:
    """All that a webhook was told of. What was acknowledged beyond that meanwhile stays."""
    links = {
        path: Link(max(link.acked, told[path]), link.is_explicit, link.is_glob) if path in told else link
        for path, link in record.links.items()
    }
    return msgspec.structs.replace(record, links=links)


def signed_text(at_seconds: int, body: bytes) -> bytes:
    """What a webhook's signature is made over."""
    return b"%d.%b" % (at_seconds, body)
