"""Headers of the Durable Streams protocol: parsing of requests, and the headers of responses."""

import re
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

from msgspec import Meta

from postroad.api.streams import OFFSET_PATTERN, StreamNotFound, media_type
from postroad.http.request import Request
from postroad.kernel.errors import InvalidParameter, MalformedJson, PostroadError
from postroad.kernel.names import stream_id
from postroad.streams.content import json_data
from postroad.streams.lifecycle import CreateStream, ForkOf
from postroad.streams.offsets import offset_text, parse_offset
from postroad.streams.reading import ReadResult
from postroad.streams.records import Retention, StreamRecord
from postroad.streams.rules import (
    PRODUCER_CHARS_MAX,
    SAFE_INTEGER,
    SEQ_CHARS_MAX,
    AppendOutcome,
    AppendRequest,
    ProducerClaim,
    check_seq,
    parse_producer,
)

Headers = list[tuple[bytes, bytes]]

_INTEGER = re.compile(r"0|[1-9][0-9]{0,15}")
_INTEGER_MAX = 9_999_999_999_999_999  # the largest that `_INTEGER` matches
_CONTENT_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+\s*(;[\x20-\x7e]*)?")
_CONTENT_TYPE_CHARS_MAX = 256
_TTL_SECONDS_MAX = 100 * 366 * 86_400
_HEADER_VALUE = r"^[!-~]([ -~]*[!-~])?$"  # HTTP strips blanks at both ends


def _flag(description: str) -> Any:
    return Annotated[str, Meta(pattern="^([Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee])$", description=description)]


def _limit(description: str) -> Any:
    return Annotated[int, Meta(ge=1, le=_INTEGER_MAX, description=description)]


_RETENTION_HEADERS = {"max_age_seconds": "Stream-Max-Age", "max_bytes": "Stream-Max-Bytes", "max_count": "Stream-Max-Count"}

UP_TO_DATE = (b"stream-up-to-date", b"true")
CLOSED = (b"stream-closed", b"true")
RESOURCE_POLICY = (b"cross-origin-resource-policy", b"cross-origin")
NO_STORE = (b"cache-control", b"no-store")

CREATE_HEADERS = (
    (
        "Stream-TTL",
        Annotated[int, Meta(ge=0, le=_TTL_SECONDS_MAX, description="Seconds without reads and writes until the stream expires.")],
    ),
    ("Stream-Expires-At", Annotated[datetime, Meta(tz=True, description="Time of expiry, RFC 3339.")]),
    ("Stream-Max-Age", _limit("Seconds after which an append is dropped.")),
    ("Stream-Max-Bytes", _limit("Bytes of all appends above which the oldest are dropped; the newest stays.")),
    ("Stream-Max-Count", _limit("Number of appends above which the oldest are dropped.")),
    ("Stream-Closed", _flag("`true`: close the stream after this body.")),
    ("Stream-Public", _flag("`true`: anyone may read the stream.")),
    (
        "Stream-Forked-From",
        Annotated[str, Meta(description="Path of the source stream of a fork. A fork also needs the scope `read`.")],
    ),
    (
        "Stream-Fork-Offset",
        Annotated[str, Meta(pattern=OFFSET_PATTERN, description="Offset at which the fork leaves its source; default: its end.")],
    ),
    (
        "Stream-Fork-Sub-Offset",
        Annotated[int, Meta(ge=0, le=_INTEGER_MAX, description="Messages or bytes of the next append that the fork includes.")],
    ),
)
APPEND_HEADERS = (
    ("Stream-Closed", _flag("`true`: close the stream after this append.")),
    (
        "Stream-Seq",
        Annotated[
            str, Meta(pattern=_HEADER_VALUE, max_length=SEQ_CHARS_MAX, description="Must be greater than the last, byte by byte.")
        ],
    ),
    (
        "Producer-Id",
        Annotated[
            str,
            Meta(
                pattern=_HEADER_VALUE,
                max_length=PRODUCER_CHARS_MAX,
                description="With `Producer-Epoch` and `Producer-Seq`: a repeated append is stored once.",
            ),
        ],
    ),
    (
        "Producer-Epoch",
        Annotated[int, Meta(ge=0, le=SAFE_INTEGER, description="Increased when the producer restarts its sequence.")],
    ),
    ("Producer-Seq", Annotated[int, Meta(ge=0, le=SAFE_INTEGER, description="Number of the append, from 0 in each epoch.")]),
)


# Requests


def is_true(request: Request, name: str) -> bool:
    """The value of a header that is `true` or `false`; false without it. Raises InvalidParameter."""
    value = request.headers.get(name.lower().encode())
    if value is None:
        return False
    if value.lower() not in (b"true", b"false"):
        raise InvalidParameter(f"{name} is 'true' or 'false', not {value[:64].decode('latin-1')!r}")
    return value.lower() == b"true"


def parse_content_type(request: Request) -> str | None:
    """None if the header is missing or invalid."""
    value = request.header(b"content-type")
    if value is None or len(value) > _CONTENT_TYPE_CHARS_MAX or not _CONTENT_TYPE.fullmatch(value.strip()):
        return None
    return value.strip()


def parse_append(request: Request) -> AppendRequest:
    """The append that a request asks for. A fault of the body is kept for `rules.decide`, which reports it in the protocol's
    order.

    Raises InvalidParameter.
    """
    body: bytes = request.body
    claim, seq = parse_claim(request), check_seq(request.header(b"stream-seq"))
    closes = is_true(request, "Stream-Closed")
    if not body:
        return AppendRequest(None, None, claim, seq, closes)
    content_type = parse_content_type(request)
    fault: PostroadError | None = None
    if content_type is not None and media_type(content_type) == "application/json":
        try:
            body = json_data(body)
        except (MalformedJson, InvalidParameter) as problem:
            fault = problem
    return AppendRequest(body, content_type, claim, seq, closes, fault)


def parse_claim(request: Request) -> ProducerClaim | None:
    headers = request.headers
    if b"producer-id" not in headers and b"producer-epoch" not in headers and b"producer-seq" not in headers:
        return None
    return parse_producer(request.header(b"producer-id"), request.header(b"producer-epoch"), request.header(b"producer-seq"))


def parse_create(request: Request, tenant: str, now_ms: int) -> CreateStream:
    """Raises InvalidParameter, and StreamNotFound if the source of a fork is not a path of the tenant's streams."""
    ttl, expires = request.header(b"stream-ttl"), request.header(b"stream-expires-at")
    if ttl is not None and expires is not None:
        raise InvalidParameter("a stream has either Stream-TTL or Stream-Expires-At")
    if ttl is not None and (not _INTEGER.fullmatch(ttl) or int(ttl) > _TTL_SECONDS_MAX):
        raise InvalidParameter(f"Stream-TTL is a whole number of seconds up to {_TTL_SECONDS_MAX}, without sign or leading zeros")
    retention, fork = _parse_retention(request), _parse_fork(request, tenant)
    if retention is not None and fork is not None:
        raise InvalidParameter("a fork has no retention")
    return CreateStream(
        retention=retention,
        content_type=parse_content_type(request),
        ttl_seconds=None if ttl is None else int(ttl),
        expires_at_ms=None if expires is None else _parse_expiry(expires, now_ms),
        expires_at=expires,
        is_closed=is_true(request, "Stream-Closed"),
        is_public=True if is_true(request, "Stream-Public") else None,
        fork=fork,
    )


def _parse_retention(request: Request) -> Retention | None:
    """Raises InvalidParameter."""
    limits: dict[str, int] = {}
    for field, name in _RETENTION_HEADERS.items():
        text = request.header(name.lower().encode())
        if text is None:
            continue
        if not _INTEGER.fullmatch(text) or text == "0":
            raise InvalidParameter(f"{name} is a whole number from 1 on, without sign or leading zeros")
        limits[field] = int(text)
    return Retention(**limits) if limits else None


def _parse_expiry(text: str, now_ms: int) -> int:
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None or "T" not in text.upper():
            raise ValueError
        at_ms = int(time.timestamp() * 1000)
    except (ValueError, OverflowError, OSError) as exc:
        raise InvalidParameter("Stream-Expires-At is an RFC 3339 time, such as 2030-01-31T12:00:00Z") from exc
    if at_ms <= now_ms:
        raise InvalidParameter(f"Stream-Expires-At is in the past: {text}")
    return at_ms


def _parse_fork(request: Request, tenant: str) -> ForkOf | None:
    source = request.header(b"stream-forked-from")
    offset, sub_offset = request.header(b"stream-fork-offset"), request.header(b"stream-fork-sub-offset")
    if sub_offset is not None and not _INTEGER.fullmatch(sub_offset):
        raise InvalidParameter("Stream-Fork-Sub-Offset is a whole number, without sign or leading zeros")
    if source is None:
        if offset is not None or sub_offset is not None:
            raise InvalidParameter("Stream-Fork-Offset and Stream-Fork-Sub-Offset need Stream-Forked-From")
        return None
    count = int(sub_offset or 0)
    if count and offset is None:
        raise InvalidParameter("Stream-Fork-Sub-Offset needs Stream-Fork-Offset")
    return ForkOf(_parse_source(source, tenant), None if offset is None else parse_offset(offset), count)


def _parse_source(text: str, tenant: str) -> str:
    """Stream id in the path of a URL. Raises StreamNotFound unless it is a path of the tenant's streams."""
    try:
        path = unquote(urlsplit(text).path)
    except ValueError:  # such as `http://[`
        path = ""
    for root in ("/v1/stream/", f"/v1/{tenant}/stream/"):
        if path.startswith(root):
            return stream_id(path.removeprefix(root))
    raise StreamNotFound(f"Stream-Forked-From is not the path of one of your streams: {text[:300]!r}")


def matches_etag(if_none_match: str | None, etag: str) -> bool:
    if if_none_match is None:
        return False
    return if_none_match.strip() == "*" or any(one.strip().removeprefix("W/") == etag for one in if_none_match.split(","))


# Responses


def next_offset(sequence: int) -> tuple[bytes, bytes]:
    return b"stream-next-offset", offset_text(sequence).encode()


def outcome_headers(outcome: AppendOutcome) -> Headers:
    headers = [next_offset(outcome.next_offset)]
    if outcome.is_closed:
        headers.append(CLOSED)
    if outcome.claim is not None:
        headers.append((b"producer-epoch", str(outcome.claim.epoch).encode()))
        headers.append((b"producer-seq", str(outcome.claim.sequence).encode()))
    return headers


def retention_headers(record: StreamRecord) -> Headers:
    """The limits of a stream, and its start if data was dropped."""
    headers: Headers = []
    if record.trimmed_to:
        headers.append((b"stream-start-offset", offset_text(record.trimmed_to).encode()))
    for field, name in _RETENTION_HEADERS.items():
        value = None if record.retention is None else getattr(record.retention, field)
        if value is not None:
            headers.append((name.lower().encode(), str(value).encode()))
    return headers


def etag_of(result: ReadResult) -> str:
    return f'"{result.record.incarnation}:{result.start}:{result.next_offset}{":c" if result.is_closed else ""}"'


def read_headers(result: ReadResult) -> Headers:
    headers = [next_offset(result.next_offset), RESOURCE_POLICY]
    if result.is_end:
        headers.append(UP_TO_DATE)
    if result.is_closed:
        headers.append(CLOSED)
    return headers
