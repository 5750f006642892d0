"""CloudEvents 1.0: the rules of attributes, and an event as headers (binary mode) and as JSON (structured mode). Pure.

Everything that accepts or produces an event uses these functions, so there is one mapping (decision 0119).
"""

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from postroad.kernel.clock import AwareDatetime
from postroad.kernel.json import encode, invalid_field
from postroad.kernel.media_types import CONTENT_TYPE_CHARS_MAX, JSON, MEDIA_TYPE, is_json, is_text

EVENT = "application/cloudevents+json"
BATCH = "application/cloudevents-batch+json"
PREFIX = "ce-"  # of the headers of an event in binary mode
TYPES = "X-MQ-Event-Types"  # header with the types of attributes that are no strings, such as `retries=integer`
SPEC_VERSION = "1.0"
OWN_ATTRIBUTES = "postroad"  # prefix of attributes that describe a delivery; they are not stored
NAME_CHARS_MAX = 64
INTEGER_MAX = 2**31 - 1

Attribute = str | bool | int
Json = Mapping[str, msgspec.Raw]

# The patterns are those of the OpenAPI document, too.
TEXT = r"^[^\u0000-\u001f\u007f-\u009f]+$"
NAME = rf"^[a-z0-9]{{1,{NAME_CHARS_MAX}}}$"
_URI_CHAR = r"([A-Za-z0-9._~:/?#@!$&'()*+,;=\[\]-]|%[0-9A-Fa-f]{2})"
URI_REFERENCE = rf"^{_URI_CHAR}+$"
URI = rf"^[A-Za-z][A-Za-z0-9+.-]*:{_URI_CHAR}+$"
BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

_REQUIRED = ("specversion", "id", "source", "type")
_FORMS = {
    "source": (re.compile(URI_REFERENCE), "is not a URI reference"),
    "dataschema": (re.compile(URI), "is not an absolute URI"),
    "datacontenttype": (re.compile(MEDIA_TYPE), "is not a media type"),
}
_STRINGS = frozenset({*_REQUIRED, *_FORMS, "time", "subject"})
_NAME = re.compile(NAME)
_TEXT = re.compile(TEXT)
_NUMBER = re.compile(r"-?(0|[1-9][0-9]{0,9})")
_UNENCODED = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_TYPE_NAMES = {bool: "boolean", int: "integer"}

_decode_value = msgspec.json.Decoder(str | bool | int | float | None).decode


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """An event. `attributes` include the required ones and `datacontenttype`, without which `data` is JSON.

    `data` are the bytes of the content; None if the event has none.
    """

    attributes: Mapping[str, Attribute]
    data: bytes | None = None

    @property
    def content_type(self) -> str:
        return str(self.attributes.get("datacontenttype", JSON))

    @property
    def key(self) -> str:
        """Identifies the event: `source` and `id`, neither of which has a control character."""
        return f"{self.attributes['source']}\0{self.attributes['id']}"


# Rules


def checked(attributes: Mapping[str, Attribute], where: Callable[[str], str]) -> dict[str, Attribute]:
    """The attributes without those of a delivery, the required ones first. Raises BodyInvalid; `where` is the path of a name."""
    version = attributes.get("specversion")
    if version is not None and version != SPEC_VERSION:
        raise invalid_field(where("specversion"), f"is {str(version)[:20]!r}; {SPEC_VERSION!r} is the supported version")
    for name in _REQUIRED:
        if name not in attributes:
            raise invalid_field(where(name), f"the attribute `{name}` is required")
    found = {name: attributes[name] for name in _REQUIRED}
    found |= {name: value for name, value in attributes.items() if not name.startswith(OWN_ATTRIBUTES)}
    for name, value in found.items():
        _check(name, value, where)
    return found


def _check(name: str, value: Attribute, where: Callable[[str], str]) -> None:
    if not _NAME.fullmatch(name):
        raise invalid_field(where(name), f"{name[:100]!r} is no name of an attribute: up to {NAME_CHARS_MAX} of a-z and 0-9")
    if not isinstance(value, str):
        if name in _STRINGS:
            raise invalid_field(where(name), "is not a string")
        if not -INTEGER_MAX - 1 <= value <= INTEGER_MAX:
            raise invalid_field(where(name), "is not an integer of 32 bits")
    elif not _TEXT.fullmatch(value):
        raise invalid_field(where(name), "is empty, or has a control character")
    elif name in _FORMS and not _FORMS[name][0].fullmatch(value):
        raise invalid_field(where(name), _FORMS[name][1])
    elif name == "datacontenttype" and len(value) > CONTENT_TYPE_CHARS_MAX:
        raise invalid_field(where(name), f"has over {CONTENT_TYPE_CHARS_MAX} characters")
    elif name == "time" and not _is_time(value):
        raise invalid_field(where(name), "is not a time with an offset, such as 2027-01-31T12:00:00Z")


def _is_time(text: str) -> bool:
    try:
        msgspec.convert(text, AwareDatetime)
    except msgspec.ValidationError:
        return False
    return True


# Binary mode


def to_headers(event: CloudEvent) -> dict[str, str]:
    """The headers `ce-…` of the event. Its content type is a header of its own."""
    return {PREFIX + name: encode_value(_text(value)) for name, value in event.attributes.items() if name != "datacontenttype"}


def from_headers(headers: Iterable[tuple[str, str]], content_type: str | None, data: bytes | None) -> CloudEvent:
    """The event of headers with lower-case names. Raises BodyInvalid with the name of a header."""
    attributes: dict[str, Attribute] = {}
    for header, value in headers:
        if header.startswith(PREFIX):
            name = header[len(PREFIX) :]
            if name == "datacontenttype":
                raise invalid_field(header, "is the header Content-Type")
            try:
                attributes[name] = decode_value(value)
            except UnicodeDecodeError as exc:
                raise invalid_field(header, "is not percent-encoded UTF-8") from exc
    if content_type is not None:
        attributes["datacontenttype"] = content_type
    return CloudEvent(checked(attributes, _header_of), data)


def _header_of(name: str) -> str:
    return "Content-Type" if name == "datacontenttype" else PREFIX + name


def encode_value(text: str) -> str:
    """The value of a header: spaces, quotes, percent signs and characters outside of ASCII are percent-encoded."""
    return quote(text, safe=_UNENCODED)


def decode_value(text: str) -> str:
    """Raises UnicodeDecodeError."""
    if len(text) >= 2 and text[0] == text[-1] == '"':  # the form of RFC 7230, which receivers must understand
        text = re.sub(r"\\(.)", r"\1", text[1:-1])
    return unquote(text, errors="strict") if "%" in text else text


def _text(value: Attribute) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def types_of(event: CloudEvent) -> str:
    """The types of the attributes that are no strings: the value of the header `TYPES`, empty if there are none."""
    typed = ((name, _TYPE_NAMES.get(type(value))) for name, value in event.attributes.items())
    return ",".join(f"{name}={kind}" for name, kind in typed if kind is not None)


def with_types(event: CloudEvent, types: str) -> CloudEvent:
    """The event with attributes of these types. A value that is not of its type stays a string."""
    attributes = dict(event.attributes)
    for one in types.split(","):
        name, _, kind = one.partition("=")
        value = attributes.get(name)
        if kind == "boolean" and value in ("true", "false"):
            attributes[name] = value == "true"
        elif kind == "integer" and isinstance(value, str) and _NUMBER.fullmatch(value):
            attributes[name] = int(value)
    return CloudEvent(attributes, event.data)


# Structured mode


def from_json(found: Json, path: str = "$") -> CloudEvent:
    """The event of a JSON object. Raises BodyInvalid with the path of a member."""
    attributes: dict[str, Attribute] = {}
    for name, raw in found.items():
        if name in ("data", "data_base64"):
            continue
        try:
            value = _decode_value(raw)
        except (msgspec.DecodeError, RecursionError) as exc:
            raise invalid_field(f"{path}.{name[:100]}", "is not a string, boolean or integer") from exc
        if isinstance(value, float):
            raise invalid_field(f"{path}.{name[:100]}", "is not an integer")
        if value is not None:  # null is the same as no attribute
            attributes[name] = value
    attributes = checked(attributes, lambda name: f"{path}.{name[:100]}")
    event = CloudEvent(attributes)
    return CloudEvent(attributes, _data_of(found, event.content_type, path))


def _data_of(found: Json, content_type: str, path: str) -> bytes | None:
    data, encoded = (bytes(found.get(name, b"null")) for name in ("data", "data_base64"))
    if "data" in found and "data_base64" in found:
        raise invalid_field(f"{path}.data_base64", "send either `data` or `data_base64`")
    if encoded != b"null":
        return _decoded(encoded, content_type, f"{path}.data_base64")
    if data == b"null":
        return None
    if is_json(content_type):
        return data
    try:
        return msgspec.json.decode(data, type=str).encode()
    except (msgspec.DecodeError, RecursionError) as exc:
        raise invalid_field(f"{path}.data", f"of the type {content_type[:100]} is a string; or send `data_base64`") from exc


def _decoded(encoded: bytes, content_type: str, path: str) -> bytes:
    try:
        data = base64.b64decode(msgspec.json.decode(encoded, type=str), validate=True)
    except ValueError as exc:  # of both
        raise invalid_field(path, "is not base64") from exc
    if is_json(content_type):
        try:
            msgspec.json.decode(data)
        except (ValueError, RecursionError) as exc:
            raise invalid_field(path, f"is not JSON, and `datacontenttype` is {content_type[:100]}") from exc
    return data


def to_json(event: CloudEvent, more: Mapping[str, Attribute] | None = None) -> bytes:
    """The event as a JSON object; `more` are attributes of its delivery."""
    members: dict[str, Any] = {**event.attributes, **(more or {})}
    if event.data is not None:
        if is_json(event.content_type):
            members["data"] = msgspec.Raw(event.data)
        elif is_text(event.content_type) and (text := _utf8(event.data)) is not None:
            members["data"] = text
        else:
            members["data_base64"] = base64.b64encode(event.data).decode()
    return encode(members)


def _utf8(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


# Description

_STRING = {"type": "string", "minLength": 1, "pattern": TEXT}
_NULL = {"type": "null"}  # the same as no attribute
_INTEGER = {"type": "integer", "minimum": -INTEGER_MAX - 1, "maximum": INTEGER_MAX}


def _optional(**schema: object) -> dict[str, Any]:
    return {"anyOf": [{"type": "string", **schema}, _NULL]}


SCHEMA: dict[str, Any] = {
    "title": "CloudEvent",
    "description": "A CloudEvents 1.0 event in the JSON format. Names of further attributes have letters a-z and digits.",
    "type": "object",
    "properties": {
        "specversion": {"const": SPEC_VERSION},
        "id": _STRING,
        "source": {"type": "string", "minLength": 1, "pattern": URI_REFERENCE},
        "type": _STRING,
        "subject": _optional(minLength=1, pattern=TEXT),
        "time": _optional(format="date-time"),
        "datacontenttype": _optional(pattern=MEDIA_TYPE, maxLength=CONTENT_TYPE_CHARS_MAX),
        "dataschema": _optional(pattern=URI),
        "data": {"description": "JSON; with a `datacontenttype` that is not JSON, a string."},
        "data_base64": _optional(pattern=BASE64),
    },
    "required": list(_REQUIRED),
    "propertyNames": {"pattern": f"{NAME}|^data_base64$"},
    "additionalProperties": {"anyOf": [_STRING, {"type": "boolean"}, _INTEGER, _NULL]},
    "not": {"required": ["data", "data_base64"]},
}
