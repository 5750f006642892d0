"""Rules of topics: subjects, patterns, headers, idempotency. Pure."""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from postroad.api.topics import SUBJECT_TOKENS_MAX, NewTopicMessage, TopicSettings
from postroad.kernel import matching
from postroad.kernel.errors import InvalidParameter, TooLarge
from postroad.kernel.json import invalid_field
from postroad.kernel.media_types import BYTES, JSON, is_json

# Names of the stored NATS headers. Those of the publisher keep their own names.
CONTENT_TYPE = "Content-Type"
TRACEPARENT = "traceparent"
HOPS = "Postroad-Hops"
IDEMPOTENCY = "Postroad-Idempotency"
BUCKET, OPERATION, REVISION = "Postroad-Bucket", "Postroad-Operation", "Postroad-Revision"  # of a change of a bucket
CHANGED_AT = "Postroad-Changed-At-Ms"  # time of that change
GROUP = "Postroad-Group"
EXTENSION = "Postroad-Extension"  # what another protocol keeps with a message, as JSON
_SHOWN_HEADERS = frozenset({BUCKET, OPERATION, REVISION, CHANGED_AT, "Postroad-Value-Omitted"})
_OWN_PREFIXES = ("nats-", "postroad-")
_OWN_HEADERS = frozenset({"content-type", "traceparent", "status", "description"})
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[^\x00-\x1f\x7f]*")
_COUNT_TERMS_MAX = 64


# Subjects and patterns


def check_subject(text: str) -> str:
    """Return the text if messages can be published to this subject. Raises InvalidParameter."""
    return _checked(matching.subject(text))


def check_pattern(text: str) -> str:
    """Return the text if it is a pattern of subjects. Raises InvalidParameter."""
    return _checked(matching.pattern(text))


def query_patterns(texts: Sequence[str], parameter: str) -> tuple[str, ...]:
    """The patterns of a query parameter. Raises InvalidParameter with the path."""
    for index, text in enumerate(texts):
        try:
            check_pattern(text)
        except InvalidParameter as problem:
            raise InvalidParameter(f"query parameter: {problem.detail} - at `$.{parameter}[{index}]`") from problem
    return tuple(texts)


def _checked(text: str) -> str:
    if "$" in text:
        raise InvalidParameter(f"'$' is reserved and not allowed in a subject: {text[:100]!r}")
    if text.count(".") >= SUBJECT_TOKENS_MAX:
        raise InvalidParameter(f"a subject has at most {SUBJECT_TOKENS_MAX} tokens: {text[:100]!r}")
    return text


def common_pattern(patterns: Sequence[str]) -> str:
    """A pattern that matches every subject that one of the patterns matches."""
    if not patterns:
        return ">"
    tokens = patterns[0].split(".")
    for other in (one.split(".") for one in patterns[1:]):
        merged = [one if one == two else "*" for one, two in zip(tokens, other, strict=False)]
        if len(tokens) != len(other) or ">" in (tokens[-1], other[-1]):
            merged[-1] = ">"  # for one token or more
        tokens = merged
    return ".".join(tokens)


def intersection(one: str, other: str) -> str | None:
    """The pattern of the subjects that both match; None if there are none."""
    first, second, common = one.split("."), other.split("."), list[str]()
    while first and second:
        if first[0] == ">":
            return ".".join([*common, *second])
        if second[0] == ">":
            return ".".join([*common, *first])
        left, right = first.pop(0), second.pop(0)
        if left != right and "*" not in (left, right):
            return None
        common.append(right if left == "*" else left)
    return None if first or second else ".".join(common)


def count_terms(patterns: Sequence[str]) -> list[tuple[str, int]]:
    """Patterns with factors, so that the sum of factor times count is the number of subjects that one of the patterns matches.

    By inclusion and exclusion. Raises InvalidParameter if the patterns overlap too much.
    """
    terms: list[tuple[str, int]] = []
    for pattern in _without_covered(patterns or (">",)):
        shared = [(common, -factor) for term, factor in terms if (common := intersection(term, pattern)) is not None]
        terms += [*shared, (pattern, 1)]
        if len(terms) > _COUNT_TERMS_MAX:
            raise InvalidParameter("so many overlapping patterns cannot be counted together; count fewer at a time")
    return terms


def _without_covered(patterns: Sequence[str]) -> list[str]:
    """The patterns that no other one covers, each once."""
    distinct = list(dict.fromkeys(patterns))
    return [one for one in distinct if not any(other != one and intersection(one, other) == one for other in distinct)]


# Messages


@dataclass(frozen=True, slots=True)
class MessageLimits:
    headers_max: int
    headers_bytes_max: int


@dataclass(frozen=True, slots=True)
class MessageBody:
    """The bytes of a message and their content type."""

    data: bytes
    content_type: str


def message_body(new: NewTopicMessage, bytes_max: int, path: str = "$") -> MessageBody:
    """The body of a new message. Raises BodyInvalid with the path, TooLarge."""
    if (new.payload is UNSET) == (new.body_b64 is UNSET):
        raise invalid_field(path, "send either `payload` or `body_b64`")
    if new.payload is not UNSET:
        body = MessageBody(bytes(new.payload), new.content_type or JSON)
        if new.content_type is not None and not is_json(new.content_type):
            raise invalid_field(f"{path}.contentType", "of a `payload` is a JSON type; send other content as `body_b64`")
    else:
        body = MessageBody(_decoded(str(new.body_b64), f"{path}.body_b64"), new.content_type or BYTES)
    if len(body.data) > bytes_max:
        raise TooLarge(f"the message at {path} has {len(body.data)} bytes; at most {bytes_max} are allowed")
    return body


def _decoded(text: str, path: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as exc:
        raise invalid_field(path, f"is not base64: {exc}") from exc


def check_message(new: NewTopicMessage, limits: MessageLimits, path: str = "$") -> None:
    """Check subject and headers. Raises BodyInvalid with the path."""
    try:
        check_subject(new.subject)
    except InvalidParameter as problem:
        raise invalid_field(f"{path}.subject", problem.detail) from problem
    if new.dedupe_id is not None and new.idempotency_key is not None:
        raise invalid_field(f"{path}.dedupeId", "send either `dedupeId` or `idempotencyKey`")
    if not new.headers:
        return
    if len(new.headers) > limits.headers_max:
        raise invalid_field(f"{path}.headers", f"{len(new.headers)} headers; at most {limits.headers_max} are allowed")
    if sum(len(name.encode()) + len(value.encode()) for name, value in new.headers.items()) > limits.headers_bytes_max:
        raise invalid_field(f"{path}.headers", f"names and values are over {limits.headers_bytes_max} bytes together")
    for name, value in new.headers.items():
        _check_header(name, value, f"{path}.headers")


def _check_header(name: str, value: str, path: str) -> None:
    """Headers are stored as NATS headers, which have no escapes."""
    if not _HEADER_NAME.fullmatch(name):
        raise invalid_field(path, f"{name[:100]!r} is not a header name: letters, digits and punctuation without ':'")
    if is_own_header(name):
        raise invalid_field(path, f"the header {name[:100]!r} is reserved")
    if not _HEADER_VALUE.fullmatch(value) or value != value.strip():
        raise invalid_field(path, f"the value of {name[:100]!r} has a control character, or a space at its start or end")


def is_own_header(name: str) -> bool:
    """True for headers of the engine and of Postroad, which are no headers of the publisher."""
    lowered = name.lower()
    return lowered in _OWN_HEADERS or lowered.startswith(_OWN_PREFIXES)


def is_shown_header(name: str) -> bool:
    """True for headers that readers get: those of the publisher, and those that describe a change of a bucket."""
    return name in _SHOWN_HEADERS or not is_own_header(name)


# Idempotency


def message_id(key_id: str, idempotency_key: str) -> str:
    """The id that the engine deduplicates by. Idempotency keys are separate for each API key and topic."""
    return hashlib.sha256(f"{key_id}\0{idempotency_key}".encode()).hexdigest()[:40]


def dedupe_message_id(new: NewTopicMessage, settings: TopicSettings, body: "MessageBody") -> str | None:
    """The id that the engine deduplicates a message with a `dedupeId` by; None if it has none. It is that of all publishers."""
    dedupe_id = new.dedupe_id
    if dedupe_id is None:
        if not settings.dedupe_by_content or new.idempotency_key is not None:
            return None
        dedupe_id = hashlib.sha256(body.data).hexdigest()
    scope = (new.group_id or "") if settings.dedupe_scope == "group" else ""
    return hashlib.sha256(f"dedupe\0{len(scope)}\0{scope}{dedupe_id}".encode()).hexdigest()[:40]


def body_hash(new: NewTopicMessage, body: MessageBody) -> str:
    """A hash of the message that does not depend on white space and the order of keys in JSON."""
    content: object = body.data
    if new.payload is not UNSET:
        try:
            content = msgspec.json.decode(body.data)
        except msgspec.DecodeError:  # a number out of range: its text is compared instead
            content = body.data
    fields = {"subject": new.subject, "type": body.content_type, "headers": new.headers, "body": content}
    return hashlib.sha256(msgspec.json.encode(fields, order="deterministic")).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class IdempotencyMark:
    """Time and hash of a message with an idempotency key, as its header `Postroad-Idempotency` (`1 <ms> <hash>`)."""

    at_ms: int
    body_hash: str

    def __str__(self) -> str:
        return f"1 {self.at_ms} {self.body_hash}"


def parse_mark(headers: Mapping[str, str]) -> IdempotencyMark | None:
    """None without a header of this form: another client of the NATS server may have written the message."""
    version, _, rest = headers.get(IDEMPOTENCY, "").partition(" ")
    at_ms, _, hashed = rest.partition(" ")
    if version != "1" or not at_ms.isdecimal() or len(at_ms) > 15 or not hashed:
        return None
    return IdempotencyMark(int(at_ms), hashed)


def hops_of(headers: Mapping[str, str]) -> int:
    text = headers.get(HOPS, "")
    return int(text) if text.isdecimal() and len(text) <= 6 else 0
