"""Rules of buckets: keys, prefixes, preconditions, content types, event ids. Pure."""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from msgspec import UNSET

from postroad.api.buckets import BucketWrite
from postroad.api.selectors import KEY, KEY_CHARS_MAX, PREFIX
from postroad.kernel.errors import InvalidParameter, TooLarge
from postroad.kernel.json import invalid_field
from postroad.kernel.media_types import CONTENT_TYPE_CHARS_MAX, MEDIA_TYPE

JSON = "application/json"
BYTES = "application/octet-stream"
MARKER_SECONDS = 86_400  # how long the marker of an expired value is kept
HISTORY_MARKER_SECONDS = 60  # with a history; nats-server extends a shorter TTL of a value to this time then
_RESUME_MARGIN_MS = 60_000  # clocks differ, and reading takes time
_KEY = re.compile(KEY)
_PREFIX = re.compile(PREFIX)
_MEDIA_TYPE = re.compile(MEDIA_TYPE)
_ETAG = re.compile(r'"([1-9][0-9]{0,18})"')
_EVENT_ID = re.compile(r"([0-9]{1,19})\.([0-9]{1,16})")


_KEY_RULE = (
    f"a key has 1 to {KEY_CHARS_MAX} letters, digits and '- / _ =', in tokens separated by '.', and does not start with '_kv'"
)


def check_key(text: str) -> str:
    """Return the text if it can be a key. Raises InvalidParameter."""
    if not is_key(text):
        raise InvalidParameter(f"{_KEY_RULE}: {text[:100]!r}")
    return text


def is_key(text: str) -> bool:
    return len(text) <= KEY_CHARS_MAX and _KEY.fullmatch(text) is not None and not text.startswith("_kv")


def check_prefix(text: str | None) -> str:
    """Return the text if keys can start with it; empty for None. Raises InvalidParameter."""
    if text is not None and (len(text) > KEY_CHARS_MAX or not _PREFIX.fullmatch(text)):
        raise InvalidParameter(f"no key can start with {text[:100]!r}")
    return text or ""


def prefix_pattern(prefix: str) -> str:
    """A pattern that matches all keys with this prefix: its whole tokens, then anything."""
    whole = prefix.rpartition(".")[0]
    return f"{whole}.>" if whole else ">"


# Preconditions


@dataclass(frozen=True, slots=True)
class Precondition:
    """`revision`: the key must have it. `is_absent`: the key must not exist."""

    revision: int | None = None
    is_absent: bool = False


NONE = Precondition()


def precondition_of(if_match: str | None, if_none_match: str | None) -> Precondition:
    """Raises InvalidParameter."""
    if if_match is not None and if_none_match is not None:
        raise InvalidParameter("send If-Match or If-None-Match, not both")
    if if_none_match is not None:
        if if_none_match.strip() != "*":
            raise InvalidParameter("If-None-Match of a write is `*`")
        return Precondition(is_absent=True)
    if if_match is None:
        return NONE
    found = _ETAG.fullmatch(if_match.strip())
    if found is None:
        raise InvalidParameter(f'If-Match is a revision in quotes, such as "7": {if_match[:64]!r}')
    return Precondition(int(found[1]))


def etag(revision: int) -> str:
    return f'"{revision}"'


def matches_etag(if_none_match: str | None, revision: int) -> bool:
    """True if the header of a read names the revision."""
    tags = [] if if_none_match is None else [one.strip().removeprefix("W/") for one in if_none_match.split(",")]
    return "*" in tags or etag(revision) in tags


# Content


@dataclass(frozen=True, slots=True)
class Content:
    """A value to store."""

    data: bytes
    content_type: str


def check_content_type(text: str | None) -> str:
    """The content type of a raw value. Raises InvalidParameter."""
    if text is None:
        return BYTES
    if not is_content_type(text):
        raise InvalidParameter(f"the content type is not valid: {text[:100]!r}")
    return text


def is_content_type(text: str) -> bool:
    return len(text) <= CONTENT_TYPE_CHARS_MAX and _MEDIA_TYPE.fullmatch(text) is not None


def check_ttl(seconds: int | None, seconds_min: int) -> None:
    """Raises InvalidParameter."""
    if seconds is not None and seconds < seconds_min:
        raise InvalidParameter(
            f"`ttlSeconds` of a value is at least {seconds_min} in a bucket with a `history` above 1 or a change stream"
        )


def check_size(data: bytes, bytes_max: int) -> None:
    """Raises TooLarge."""
    if len(data) > bytes_max:
        raise TooLarge(f"the value has {len(data)} bytes; at most {bytes_max} are allowed")


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def batch_content(write: BucketWrite, bytes_max: int, path: str) -> Content | None:
    """The content of a write of a batch, None of a deletion. Raises BodyInvalid with the path, TooLarge."""
    given = (write.value is not UNSET) + (write.value_b64 is not UNSET)
    if write.operation == "delete":
        if given or write.content_type is not None or write.ttl_seconds is not None:
            raise invalid_field(path, "a `delete` has no value, content type or `ttlSeconds`")
        return None
    if given != 1:
        raise invalid_field(path, "send either `value` or `valueB64`")
    if write.value is not UNSET:
        if write.content_type is not None and not is_json(write.content_type):
            raise invalid_field(f"{path}.contentType", "of a `value` is a JSON type; send other content as `valueB64`")
        content = Content(bytes(write.value), write.content_type or JSON)
    else:
        content = Content(_decoded(str(write.value_b64), f"{path}.valueB64"), write.content_type or BYTES)
    check_size(content.data, bytes_max)
    return content


def _decoded(text: str, path: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as exc:
        raise invalid_field(path, f"is not base64: {exc}") from exc


def check_batch(writes: Sequence[BucketWrite]) -> None:
    """Keys and preconditions of a batch. Raises BodyInvalid with the path."""
    seen: set[str] = set()
    for index, write in enumerate(writes):
        path = f"$.writes[{index}]"
        if not is_key(write.key):
            raise invalid_field(f"{path}.key", f"{_KEY_RULE}: {write.key[:100]!r}")
        if write.key in seen:
            raise invalid_field(f"{path}.key", "the key is written twice")
        seen.add(write.key)
        if write.if_absent and write.if_revision is not None:
            raise invalid_field(path, "send `ifRevision` or `ifAbsent`, not both")


# Operations, by the headers of NATS KV


def operation_of(headers: Mapping[str, str]) -> str:
    """`put`, `delete` (of a purge, too) or `expire`. Other clients may write any headers."""
    reason = headers.get("Nats-Marker-Reason")
    if reason is not None:
        return "expire" if reason == "MaxAge" else "delete"
    return "delete" if headers.get("KV-Operation") in ("DEL", "PURGE") else "put"


# Watching


def event_id(revision: int, at_ms: int) -> str:
    return f"{revision}.{at_ms}"


def parse_event_id(text: str) -> tuple[int, int]:
    """The revision and the time. Raises InvalidParameter."""
    found = _EVENT_ID.fullmatch(text.strip())
    if found is None:
        raise InvalidParameter("Last-Event-ID was not sent by this stream; connect without it")
    return int(found[1]), int(found[2])


def can_resume(at_ms: int, created_at_ms: int, now_ms: int, *, marker_seconds: int, ttl_seconds: int) -> bool:
    """True if every change since `at_ms` left a trace: markers of expired values, and with a TTL all changes, go in time."""
    kept_ms = 1000 * (min(marker_seconds, ttl_seconds) if ttl_seconds else marker_seconds)
    margin = min(_RESUME_MARGIN_MS, kept_ms // 2)
    return at_ms >= created_at_ms and now_ms - at_ms <= kept_ms - margin
