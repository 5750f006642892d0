"""Message bodies and attributes of SQS: limits, MD5 digests, and their form as payload and headers. Pure."""

import base64
import binascii
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from postroad.aws.errors import AwsError

ATTRIBUTES_MAX = 10
SYSTEM = "System"  # the type of a header that is a system attribute
SYSTEM_ATTRIBUTES = ("AWSTraceHeader",)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,256}")
_TYPE = re.compile(r"(String|Number|Binary)(\.[^\x00-\x1f\x7f]{1,249})?")
_NUMBER = re.compile(r"[+-]?([0-9]{1,308}(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?")
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_RESERVED = ("aws.", "amazon.")
_encode = msgspec.json.Encoder().encode
_decode_text = msgspec.json.Decoder(str).decode

Attributes = Mapping[str, Mapping[str, Any]]  # by name: DataType, and StringValue or BinaryValue


def check_body(body: str) -> None:
    """Raises AwsError."""
    if not body:
        raise AwsError("MissingParameter", "The request must contain the parameter MessageBody.")
    check_characters(body)


def check_characters(text: str) -> None:
    if not text.isprintable() and _NOT_XML.search(text):
        raise AwsError(
            "InvalidMessageContents",
            "Invalid characters found. Valid unicode characters are #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | "
            "#x10000 to #x10FFFF.",
        )


def payload_of(body: str) -> msgspec.Raw:
    """The body as a native payload: a JSON string."""
    return msgspec.Raw(_encode(body))


def body_of(payload: msgspec.Raw) -> str:
    """The text of a native payload: the value of a JSON string, else the JSON."""
    raw = bytes(payload)
    return _decode_text(raw) if raw[:1] == b'"' else raw.decode()


def check_attributes(attributes: Attributes) -> None:
    """Raises AwsError."""
    if len(attributes) > ATTRIBUTES_MAX:
        raise _invalid(f"Number of message attributes [{len(attributes)}] exceeds the allowed maximum [{ATTRIBUTES_MAX}].")
    check_each_attribute(attributes)


def check_each_attribute(attributes: Attributes) -> None:
    """Names, types and values, however many there are. Raises AwsError."""
    for name, value in attributes.items():
        _check_name(name)
        _check_value(name, value)


def _check_name(name: str) -> None:
    is_dotted = name.startswith(".") or name.endswith(".") or ".." in name
    if not _NAME.fullmatch(name) or is_dotted or name.lower().startswith(_RESERVED):
        raise _invalid(
            f"The message attribute name '{name[:100]}' is invalid. A name has 1 to 256 letters, digits and '_ - .', "
            "does not start with AWS. or Amazon., and has no period at its ends or next to another."
        )


def _check_value(name: str, value: Mapping[str, Any]) -> None:
    kind = value.get("DataType", "")
    if not kind:
        raise _invalid(f"The message attribute '{name}' must contain a non-empty message attribute type.")
    if not _TYPE.fullmatch(kind):
        raise _invalid(
            f"The message attribute '{name}' has an invalid message attribute type, the set of supported type prefixes is "
            "Binary, Number, and String."
        )
    if value.get("StringListValues") or value.get("BinaryListValues"):
        raise AwsError("UnsupportedOperation", "Message attribute list values in SendMessage operation are not supported.")
    field, other = ("BinaryValue", "StringValue") if kind.startswith("Binary") else ("StringValue", "BinaryValue")
    if not value.get(field):
        raise _invalid(
            f"The message attribute '{name}' must contain a non-empty message attribute value for message attribute type "
            f"'{kind}'."
        )
    if value.get(other):
        raise _invalid(f"The message attribute '{name}' with type '{kind}' must use field '{field.removesuffix('Value')}'.")
    if kind.startswith("Number") and not _NUMBER.fullmatch(value[field]):
        raise _invalid(f"Can't cast the value of message (user) attribute '{name}' to a number.")
    if field == "StringValue":
        check_characters(value[field])


def check_system_attributes(attributes: Attributes) -> None:
    """Raises AwsError."""
    for name, value in attributes.items():
        if name not in SYSTEM_ATTRIBUTES:
            raise _invalid(f"Message system attribute name '{name[:100]}' is invalid.")
        if value.get("DataType") != "String" or not value.get("StringValue"):
            raise _invalid(f"The message system attribute '{name}' must have the type String and a non-empty value.")
        check_characters(value["StringValue"])


def size_of(body: str, attributes: Attributes) -> int:
    """Bytes of the body, and of names, types and values of the attributes, valid or not."""
    size = len(body) if body.isascii() else len(body.encode())
    for name, value in attributes.items():
        size += len(name.encode()) + len(str(value.get("DataType", "")).encode()) + len(_bytes(value))
    return size


def _bytes(value: Mapping[str, Any]) -> bytes:
    if str(value.get("DataType", "")).startswith("Binary"):
        return bytes(value.get("BinaryValue") or b"")
    return str(value.get("StringValue") or "").encode()


def headers_of(attributes: Attributes, system: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Native headers and their types. The values of binary attributes are base64."""
    headers, types = {}, {}
    for name, value in attributes.items():
        kind = str(value["DataType"])
        is_binary = kind.startswith("Binary")
        headers[name] = base64.b64encode(value["BinaryValue"]).decode() if is_binary else value["StringValue"]
        if kind != "String":
            types[name] = kind
    for name, text in system.items():
        headers[name] = text
        types[name] = SYSTEM
    return headers, types


def attributes_of(headers: Mapping[str, str], types: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The message attributes of native headers."""
    found: dict[str, dict[str, Any]] = {}
    for name, text in headers.items():
        kind = types.get(name, "String")
        if kind == SYSTEM:
            continue
        if kind.startswith("Binary"):
            try:
                found[name] = {"DataType": kind, "BinaryValue": base64.b64decode(text, validate=True)}
                continue
            except (binascii.Error, ValueError):  # a native publisher chose the type
                kind = "String"
        found[name] = {"DataType": kind if _TYPE.fullmatch(kind) else "String", "StringValue": text}
    return found


def selected(attributes: dict[str, dict[str, Any]], names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """The attributes that a receive asks for: by name, `prefix.*`, `.*` or `All`."""
    wanted = set(names)
    if not wanted or not attributes:
        return {}
    if wanted & {"All", ".*"}:
        return attributes
    prefixes = tuple(one[:-2] for one in wanted if one.endswith(".*"))
    return {name: value for name, value in attributes.items() if name in wanted or name.startswith(prefixes or ("\0",))}


def md5_of_text(text: str) -> str:
    return hashlib.md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).hexdigest()


def md5_of_attributes(attributes: Attributes) -> str:
    """The digest that SDKs compare: name, type, kind of value and value of each attribute, by name."""
    digest = hashlib.md5(usedforsecurity=False)
    for name in sorted(attributes):
        value = attributes[name]
        kind = str(value["DataType"])
        for part in (name.encode(), kind.encode()):
            digest.update(len(part).to_bytes(4, "big") + part)
        data = _bytes(value)
        digest.update((b"\2" if kind.startswith("Binary") else b"\1") + len(data).to_bytes(4, "big") + data)
    return digest.hexdigest()


def _invalid(message: str) -> AwsError:
    return AwsError("InvalidParameterValue", message)
