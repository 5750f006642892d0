"""Rules of subscriptions: configuration, subscribed streams, acknowledged offsets. Pure: no I/O, clock or randomness."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from postroad.api.stream_subscriptions import OffsetRefused, PendingStream
from postroad.kernel.errors import InvalidParameter
from postroad.kernel.matching import path_glob_matches
from postroad.kernel.names import stream_id
from postroad.stream_subscriptions.records import Kind, Link, SubscriptionRecord

ZERO = "0000000000000000_0000000000000000"
BEFORE_FIRST = "-1"  # acknowledged offset of a stream created after the subscription: all of its data is pending

LEASE_MS_MIN, LEASE_MS_MAX = 1_000, 600_000
LINKS_MAX = 1_000  # one record and each webhook call contain all of them
PATTERN_CHARS_MAX = 256
DESCRIPTION_CHARS_MAX = 1_000
WORKER_CHARS_MAX = 256

_ID = re.compile(r"[A-Za-z0-9_.:~@+=-]{1,128}")
_OFFSET = re.compile(r"[0-9]{16}_[0-9]{16}")
_ROOT_PATH = re.compile(r"/v1/(?:[^/]+/)?stream$")
_PATTERN = re.compile(r"[A-Za-z0-9_.:~@+=*-]+(?:/[A-Za-z0-9_.:~@+=*-]+)*")


@dataclass(frozen=True, slots=True)
class Config:
    """Requested properties of a subscription, normalised."""

    kind: Kind
    pattern: str | None
    streams: tuple[str, ...]
    webhook_url: str | None
    wake_stream: str | None
    lease_ttl_ms: int
    description: str | None

    @property
    def hash(self) -> str:
        """Equal for equal properties."""
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
    """Normalise a request. Raises InvalidParameter. Does not check whether the webhook URL is allowed."""
    if kind not in (Kind.WEBHOOK, Kind.PULL_WAKE):
        raise InvalidParameter("type must be 'webhook' or 'pull-wake'")
    if not pattern and not streams:
        raise InvalidParameter("a subscription needs a pattern, streams, or both")
    if not LEASE_MS_MIN <= lease_ttl_ms <= LEASE_MS_MAX:
        raise InvalidParameter(f"lease_ttl_ms must be from {LEASE_MS_MIN} to {LEASE_MS_MAX}")
    if description is not None and len(description) > DESCRIPTION_CHARS_MAX:
        raise InvalidParameter(f"description has at most {DESCRIPTION_CHARS_MAX} characters")
    if kind == Kind.WEBHOOK and not webhook_url:
        raise InvalidParameter("a webhook subscription needs webhook.url")
    if kind == Kind.PULL_WAKE and not wake_stream:
        raise InvalidParameter("a pull-wake subscription needs wake_stream")
    paths = stream_paths(streams)
    wake_path = stream_path(wake_stream) if kind == Kind.PULL_WAKE and wake_stream else None
    if wake_path in paths:
        raise InvalidParameter("a subscription cannot include its own wake stream: each wake would cause another")
    return Config(
        kind=Kind(kind),
        pattern=_pattern(pattern) if pattern else None,
        streams=paths,
        webhook_url=webhook_url if kind == Kind.WEBHOOK else None,
        wake_stream=wake_path,
        lease_ttl_ms=lease_ttl_ms,
        description=description,
    )


def subscription_id(text: str) -> str:
    """Raises InvalidParameter."""
    if not _ID.fullmatch(text):
        raise InvalidParameter(f"a subscription id has 1 to 128 letters, digits and '_ . : ~ @ + = -': {text[:100]!r}")
    return text


def stream_path(text: str) -> str:
    """Stream id without slashes around it. Raises InvalidParameter."""
    return stream_id(text.strip("/"))


def stream_paths(texts: Iterable[str]) -> tuple[str, ...]:
    """Raises InvalidParameter."""
    paths = tuple(sorted({stream_path(text) for text in texts}))
    if len(paths) > LINKS_MAX:
        raise InvalidParameter(f"a subscription has at most {LINKS_MAX} streams")
    return paths


def _pattern(text: str) -> str:
    pattern = text.strip("/")
    is_valid = len(pattern) <= PATTERN_CHARS_MAX and _PATTERN.fullmatch(pattern)
    if not is_valid or any("*" in part and part not in ("*", "**") for part in pattern.split("/")):
        raise InvalidParameter(
            f"a pattern is a path of at most {PATTERN_CHARS_MAX} characters in which '*' is one segment and '**' any number"
        )
    return pattern


# Links


def matches_pattern(record: SubscriptionRecord, path: str) -> bool:
    """True if the pattern selects the path. It never selects the wake stream: each wake would cause another."""
    return record.pattern is not None and path != record.wake_stream and path_glob_matches(record.pattern, path)


def link_matching(record: SubscriptionRecord, acked: Mapping[str, str]) -> SubscriptionRecord:
    """Link streams that match the pattern, at these offsets unless they are linked already. Leaves out those beyond the limit."""
    links = dict(record.links)
    is_full = record.is_full
    for path, offset in acked.items():
        known = links.get(path)
        if known is None and len(links) >= LINKS_MAX:
            is_full = True
        elif known is None or not known.is_glob:
            links[path] = Link(known.acked if known else offset, bool(known and known.is_explicit), True)
    return msgspec.structs.replace(record, links=links, is_full=is_full)


def link_named(record: SubscriptionRecord, acked: Mapping[str, str]) -> SubscriptionRecord:
    """Like `link_matching`, for streams named in a request. Raises InvalidParameter beyond the limit."""
    if record.wake_stream in acked:
        raise InvalidParameter("a subscription cannot include its own wake stream: each wake would cause another")
    links = dict(record.links)
    for path, offset in acked.items():
        known = links.get(path)
        links[path] = Link(known.acked if known else offset, True, bool(known and known.is_glob))
    if len(links) > LINKS_MAX:
        raise InvalidParameter(f"a subscription has at most {LINKS_MAX} streams")
    return msgspec.structs.replace(record, links=links)


def unlink_named(record: SubscriptionRecord, path: str) -> SubscriptionRecord:
    """Remove a named stream; it stays linked if it matches the pattern."""
    known = record.links.get(path)
    if known is None or not known.is_explicit:
        return record
    links = {other: link for other, link in record.links.items() if other != path}
    if known.is_glob:
        links[path] = Link(known.acked, False, True)
    return msgspec.structs.replace(record, links=links)


def unlink_deleted(record: SubscriptionRecord, deleted: Iterable[str]) -> SubscriptionRecord:
    """Remove deleted streams that matched the pattern. Named ones stay: they may be created again."""
    dropped = {path for path in deleted if (link := record.links.get(path)) is not None and not link.is_explicit}
    if not dropped:
        return record
    links = {path: link for path, link in record.links.items() if path not in dropped}
    return msgspec.structs.replace(record, links=links, is_full=False)


# Pending data


def is_pending(link: Link, tail: str) -> bool:
    """True if the stream has data after the acknowledged offset."""
    return tail > (ZERO if link.acked == BEFORE_FIRST else link.acked)


def first_pending(record: SubscriptionRecord, tails: Mapping[str, str]) -> str | None:
    return next((path for path, link in record.links.items() if is_pending(link, tails.get(path, ZERO))), None)


def pending_streams(record: SubscriptionRecord, tails: Mapping[str, str]) -> list[PendingStream]:
    return [
        PendingStream(path, link.kind, link.acked, tail, is_pending(link, tail))
        for path, link in record.links.items()
        for tail in (tails.get(path, ZERO),)
    ]


def acknowledge(record: SubscriptionRecord, offsets: Sequence[tuple[str, str]], tails: Mapping[str, str]) -> SubscriptionRecord:
    """Acknowledge all of the offsets or none. Raises OffsetRefused."""
    links = dict(record.links)
    for path, offset in offsets:
        link = links.get(path)
        if link is None:
            raise OffsetRefused(f"the subscription has no stream {path[:100]!r}")
        if not _OFFSET.fullmatch(offset):
            raise OffsetRefused(f"not an offset: {offset[:64]!r}")
        if offset < link.acked:
            raise OffsetRefused(f"{path!r} is acknowledged up to {link.acked} already")
        if offset > tails.get(path, ZERO):
            raise OffsetRefused(f"the offset is beyond the end of {path!r}")
        links[path] = Link(offset, link.is_explicit, link.is_glob)
    return msgspec.structs.replace(record, links=links)


def acknowledge_sent(record: SubscriptionRecord, tails: Mapping[str, str]) -> SubscriptionRecord:
    """Acknowledge everything up to the tails sent to a webhook. Higher acknowledged offsets stay."""
    links = {
        path: Link(max(link.acked, tails[path]), link.is_explicit, link.is_glob) if path in tails else link
        for path, link in record.links.items()
    }
    return msgspec.structs.replace(record, links=links)


def signed_text(at_seconds: int, body: bytes) -> bytes:
    """Input of a webhook signature."""
    return b"%d.%b" % (at_seconds, body)


def root_at(public_url: str | None, root: str) -> str:
    """The base URL of the streams API at `public_url`, for one that was stored before it was configured."""
    found = _ROOT_PATH.search(root)
    return root if public_url is None or found is None else public_url.rstrip("/") + found[0]
