"""Headers of the protocol: what a request's say, checked, and what an answer's are."""

import re
from datetime import datetime
from urllib.parse import unquote, urlsplit

from postroad.http.request import Request
from postroad.kernel.errors import InvalidParameter, StreamNotFound
from postroad.kernel.names import stream_id
from postroad.streams.lifecycle import CreateStream, ForkOf
from postroad.streams.offsets import offset_text, parse_offset
from postroad.streams.reading import Chunk
from postroad.streams.rules import Outcome, ProducerClaim, parse_producer

Headers = list[tuple[bytes, bytes]]

_TTL = re.compile(r"0|[1-9][0-9]{0,15}")
_CONTENT_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+\s*(;[\x20-\x7e]*)?")
_CONTENT_TYPE_CHARS_MAX = 256
TTL_SECONDS_MAX = 100 * 366 * 86_400

UP_TO_DATE = (b"stream-up-to-date", b"true")
CLOSED = (b"stream-closed", b"true")
RESOURCE_POLICY = (b"cross-origin-resource-policy", b"cross-origin")
NO_STORE = (b"cache-control", b"no-store")


def next_offset(sequence: int) -> tuple[bytes, bytes]:
    return b"stream-next-offset", offset_text(sequence).encode()


def is_true(request: Request, name: bytes) -> bool:
    """Only the word `true` counts; anything else is as if it were not there."""
    value = request.headers.get(name)
    return value is not None and value.lower() == b"true"


def content_type_of(request: Request) -> str | None:
    """None if it is missing, or nothing that could be one."""
    value = request.header(b"content-type")
    if value is None or len(value) > _CONTENT_TYPE_CHARS_MAX or not _CONTENT_TYPE.fullmatch(value.strip()):
        return None
    return value.strip()


def claim_of(request: Request) -> ProducerClaim | None:
    headers = request.headers
    if b"producer-id" not in headers and b"producer-epoch" not in headers and b"producer-seq" not in headers:
        return None
    return parse_producer(request.header(b"producer-id"), request.header(b"producer-epoch"), request.header(b"producer-seq"))


def blueprint_of(request: Request, tenant: str) -> CreateStream:
    """Raises InvalidParameter, and StreamNotFound for a fork of something that cannot be a stream of this tenant."""
    ttl, expires = request.header(b"stream-ttl"), request.header(b"stream-expires-at")
    if ttl is not None and expires is not None:
        raise InvalidParameter("a stream has either Stream-TTL or Stream-Expires-At")
    if ttl is not None and (not _TTL.fullmatch(ttl) or int(ttl) > TTL_SECONDS_MAX):
        raise InvalidParameter(f"Stream-TTL is a whole number of seconds up to {TTL_SECONDS_MAX}, without sign or leading zeros")
    return CreateStream(
        content_type=content_type_of(request),
        ttl_seconds=None if ttl is None else int(ttl),
        expires_at_ms=None if expires is None else _time_of(expires),
        expires_at=expires,
        is_closed=is_true(request, b"stream-closed"),
        is_public=True if is_true(request, b"stream-public") else None,
        fork=_fork_of(request, tenant),
    )


def _time_of(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None or "T" not in text.upper():
            raise ValueError
        return int(moment.timestamp() * 1000)
    except (ValueError, OverflowError, OSError) as exc:
        raise InvalidParameter("Stream-Expires-At is a time as RFC 3339 writes it, such as 2030-01-31T12:00:00Z") from exc


def _fork_of(request: Request, tenant: str) -> ForkOf | None:
    source = request.header(b"stream-forked-from")
    offset, sub_offset = request.header(b"stream-fork-offset"), request.header(b"stream-fork-sub-offset")
    if sub_offset is not None and not _TTL.fullmatch(sub_offset):
        raise InvalidParameter("Stream-Fork-Sub-Offset is a whole number, without sign or leading zeros")
    if source is None:
        if offset is not None or sub_offset is not None:
            raise InvalidParameter("Stream-Fork-Offset and Stream-Fork-Sub-Offset need Stream-Forked-From")
        return None
    count = int(sub_offset or 0)
    if count and offset is None:
        raise InvalidParameter("Stream-Fork-Sub-Offset needs Stream-Fork-Offset")
    return ForkOf(_source_id(source, tenant), None if offset is None else parse_offset(offset), count)


def _source_id(text: str, tenant: str) -> str:
    """The stream that a URL's path names, if it is one of this tenant's."""
    try:
        path = unquote(urlsplit(text).path)
    except ValueError:  # such as `http://[`
        path = ""
    for root in ("/v1/stream/", f"/v1/{tenant}/stream/"):
        if path.startswith(root):
            return stream_id(path.removeprefix(root))
    raise StreamNotFound("Stream-Forked-From is not the path of one of your streams")


def outcome_headers(outcome: Outcome) -> Headers:
    headers = [next_offset(outcome.next_offset)]
    if outcome.is_closed:
        headers.append(CLOSED)
    if outcome.claim is not None:
        headers.append((b"producer-epoch", str(outcome.claim.epoch).encode()))
        headers.append((b"producer-seq", str(outcome.claim.sequence).encode()))
    return headers


def etag_of(chunk: Chunk) -> str:
    return f'"{chunk.record.born}:{chunk.start}:{chunk.next_offset}{":c" if chunk.is_closed else ""}"'


def is_fresh(given: str | None, etag: str) -> bool:
    """Whether `If-None-Match` names this version."""
    if given is None:
        return False
    return given.strip() == "*" or any(one.strip().removeprefix("W/") == etag for one in given.split(","))


def chunk_headers(chunk: Chunk) -> Headers:
    headers = [next_offset(chunk.next_offset), RESOURCE_POLICY]
    if chunk.is_end:
        headers.append(UP_TO_DATE)
    if chunk.is_closed:
        headers.append(CLOSED)
    return headers
