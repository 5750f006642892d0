"""The OTLP messages of traces as protobuf: `ExportTraceServiceRequest`, and the count in its response. Pure.

Field numbers are those of opentelemetry-proto 1; a test decodes requests with that package.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct

from postroad.kernel.spans import Attribute, Span, SpanContext

_KIND_AND_TIMES = Struct("<BBBQBQ").pack  # fields 6, 7 and 8 of a span
_DOUBLE = Struct("<Bd").pack
_SAMPLED_SPAN = b"\x85\x01\x01\x00\x00\x00"  # flags (16)
_SAMPLED_LINK = b"\x35\x01\x00\x00\x00"  # flags (6)
_UNIQUE = frozenset({"messaging.message.id", "messaging.postroad.job.id", "postroad.request.id"})  # not worth a cache
_INT64_MASK = (1 << 64) - 1


def export_request(resource: Mapping[str, Attribute], version: str, spans: Sequence[bytes]) -> bytes:
    """A request with encoded spans."""
    described = b"".join([_field(0x0A, attribute(name, value)) for name, value in resource.items()])
    scope = _field(0x0A, b"postroad") + _field(0x12, version.encode())
    scoped = _field(0x0A, scope) + b"".join([_field(0x12, span) for span in spans])
    return _field(0x0A, _field(0x0A, described) + _field(0x12, scoped))


def encode_span(span: Span) -> bytes:
    parts = [
        b"\x0a\x10",
        bytes.fromhex(span.trace_id),
        b"\x12\x08",
        bytes.fromhex(span.span_id),
        b"\x22\x08" + bytes.fromhex(span.parent_id) if span.parent_id else b"",
        _name(span.name),
        _KIND_AND_TIMES(0x30, span.kind, 0x39, span.start_ns, 0x41, span.end_ns),
    ]
    for name, value in span.attributes.items():
        parts.append(_attribute_field(name, value) if name in _UNIQUE else _cached_attribute(name, value))
    parts += [_link(one) for one in span.links]
    if span.error:
        parts += [_cached_attribute("error.type", span.error), b"\x7a\x02\x18\x02"]  # status (15): code (3) is ERROR (2)
    parts.append(_SAMPLED_SPAN)
    return b"".join(parts)


def attribute(name: str, value: Attribute) -> bytes:
    """A `KeyValue`."""
    if isinstance(value, str):
        found = _field(0x0A, value.encode("utf-8", "replace"))
    elif isinstance(value, bool):
        found = b"\x10\x01" if value else b"\x10\x00"
    elif isinstance(value, int):
        found = b"\x18" + _varint(value & _INT64_MASK)
    else:
        found = _DOUBLE(0x21, value)
    return _key(name) + _field(0x12, found)


def rejected_spans(response: bytes) -> int:
    """The number of spans that the collector has not accepted, according to its response. 0 if that is malformed."""
    try:
        partial_success = _fields(response).get(1, b"")
        count = _fields(partial_success).get(1, 0) if isinstance(partial_success, bytes) else 0
    except (IndexError, ValueError):
        return 0
    return count if isinstance(count, int) else 0


def _attribute_field(name: str, value: Attribute) -> bytes:
    return _field(0x4A, attribute(name, value))


_cached_attribute = lru_cache(2048, typed=True)(_attribute_field)  # typed: True equals 1


@lru_cache(256)
def _key(name: str) -> bytes:
    return _field(0x0A, name.encode("utf-8", "replace"))


@lru_cache(1024)
def _name(name: str) -> bytes:
    return _field(0x2A, name.encode("utf-8", "replace"))


def _link(context: SpanContext) -> bytes:
    ids = b"\x0a\x10" + bytes.fromhex(context.trace_id) + b"\x12\x08" + bytes.fromhex(context.span_id)
    return _field(0x6A, ids + _SAMPLED_LINK if context.is_sampled else ids)


def _field(tag: int, body: bytes) -> bytes:
    """A length-delimited field; `tag` is its number and type in one byte."""
    size = len(body)
    return (bytes((tag, size)) if size < 128 else bytes((tag,)) + _varint(size)) + body


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = body[at]
        number, at, shift = number | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return number, at


def _fields(body: bytes) -> dict[int, int | bytes]:
    """The last value of each field that is a varint or length-delimited; others are not in a response. Raises ValueError."""
    found: dict[int, int | bytes] = {}
    at = 0
    while at < len(body):
        tag, at = _read_varint(body, at)
        value, at = _read_varint(body, at)
        if tag & 7 == 0:
            found[tag >> 3] = value
        elif tag & 7 == 2:
            found[tag >> 3], at = body[at : at + value], at + value
        else:
            raise ValueError(f"wire type {tag & 7}")
    return found
