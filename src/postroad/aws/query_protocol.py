"""The AWS query protocol: forms to values of a shape, results and errors to XML. Pure."""

import base64
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from postroad.aws.errors import AwsError, ErrorView
from postroad.aws.json_protocol import decode_blob
from postroad.aws.model import Operation, ServiceModel, Shape, Values
from postroad.kernel.clock import rfc3339

MEDIA = b"text/xml"
_FIELDS_MAX = 4000
_PARTS_MAX = 12
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\r": "&#xD;"}
_ESCAPED = re.compile("[&<>\r]")

Node = dict[str, Any]


def parse_form(text: bytes) -> dict[str, str]:
    """The fields of a form. Raises AwsError."""
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, max_num_fields=_FIELDS_MAX, errors="strict")
    except (ValueError, UnicodeDecodeError) as exc:
        raise AwsError("MalformedQueryString", "The query string contains a syntax error.") from exc
    return dict(pairs)


def decode(operation: Operation, form: Mapping[str, str]) -> Values:
    """The input of an operation. Raises AwsError."""
    if operation.input is None:
        return {}
    tree: Node = {}
    for name, value in form.items():
        *parts, last = name.split(".")
        if len(parts) > _PARTS_MAX:
            raise _malformed(f"{name[:100]} is nested too deeply")
        node: Any = tree
        for part in parts:
            node = node.setdefault(part, {})
            if not isinstance(node, dict):
                raise _malformed(f"{name[:100]} is given together with a value of its parent")
        if isinstance(node.get(last), dict):
            raise _malformed(f"{name[:100]} is given together with its parts")
        node[last] = value
    values: Values = _value(operation.model, operation.model.shapes[operation.input], tree, "")
    return values


def _value(model: ServiceModel, shape: Shape, node: Any, path: str) -> Any:
    kind = shape.type
    if kind == "structure":
        return _structure(model, shape, _tree(node, path), path)
    if kind == "list":
        member = model.shapes[shape.member]
        items = node if shape.flattened else _tree(node, path).get(shape.name, {})
        return [_value(model, member, one, f"{path}.{index}") for index, one in _numbered(items, path)]
    if kind == "map":
        member = model.shapes[shape.value]
        entries = node if shape.flattened else _tree(node, path).get("entry", {})
        found: Values = {}
        for index, one in _numbered(entries, path):
            entry = _tree(one, f"{path}.{index}")
            key = entry.get(shape.name)
            if not isinstance(key, str):
                raise AwsError("MissingParameter", f"The request must contain the parameter {path}.{index}.{shape.name}.")
            if shape.value_name in entry:
                found[key] = _value(model, member, entry[shape.value_name], f"{path}.{index}.{shape.value_name}")
            elif member.type == "string":
                found[key] = ""
            else:
                found[key] = {}
        return found
    return _scalar(kind, node, path)


def _scalar(kind: str, node: Any, path: str) -> Any:
    if not isinstance(node, str):
        raise _malformed(f"{path} must be a {kind}")
    if kind in ("integer", "long"):
        if not _INTEGER.fullmatch(node):
            raise AwsError(
                "InvalidParameterValue", f"Value {node[:64]} for parameter {path} is invalid. Reason: Must be an integer."
            )
        return int(node)
    if kind == "boolean":
        if node.lower() not in ("true", "false"):
            raise AwsError(
                "InvalidParameterValue", f"Value {node[:64]} for parameter {path} is invalid. Reason: Must be true or false."
            )
        return node.lower() == "true"
    return decode_blob(node, path) if kind == "blob" else node


def _structure(model: ServiceModel, shape: Shape, node: Node, path: str) -> Values:
    found: Values = {}
    for member, (kind, name) in shape.members.items():
        if name in node:
            found[member] = _value(model, model.shapes[kind], node[name], f"{path}.{name}" if path else name)
    return found


def _tree(node: Any, path: str) -> Node:
    if not isinstance(node, dict):
        raise _malformed(f"{path} must have parts")
    return node


def _numbered(node: Any, path: str) -> list[tuple[int, Any]]:
    if node == "":  # an empty list
        return []
    found = _tree(node, path)
    if not all(name.isascii() and name.isdecimal() and len(name) < 10 for name in found):
        raise _malformed(f"{path} must be numbered")
    return sorted((int(name), one) for name, one in found.items()) if len(found) > 1 else [(int(n), o) for n, o in found.items()]


def _malformed(detail: str) -> AwsError:
    return AwsError("MalformedQueryString", f"The query string is malformed: {detail}.")


# Responses


def encode(operation: Operation, values: Values | None, request_id: str) -> bytes:
    """The XML of a result."""
    model, name = operation.model, operation.name
    parts = [f'<?xml version="1.0"?><{name}Response xmlns="{model.namespace}">']
    if operation.output is not None:
        parts.append(f"<{name}Result>")
        _write_structure(model, model.shapes[operation.output], values or {}, parts)
        parts.append(f"</{name}Result>")
    parts.append(f"<ResponseMetadata><RequestId>{_text(request_id)}</RequestId></ResponseMetadata></{name}Response>")
    return "".join(parts).encode()


def encode_error(view: ErrorView, model: ServiceModel | None, request_id: str) -> bytes:
    namespace = model.namespace if model is not None else "http://queue.amazonaws.com/doc/2012-11-05/"
    return (
        f'<?xml version="1.0"?><ErrorResponse xmlns="{namespace}"><Error><Type>{view.fault}</Type>'
        f"<Code>{_text(view.code)}</Code><Message>{_text(view.message)}</Message><Detail/></Error>"
        f"<RequestId>{_text(request_id)}</RequestId></ErrorResponse>"
    ).encode()


def _write_structure(model: ServiceModel, shape: Shape, values: Values, parts: list[str]) -> None:
    for member, (kind, name) in shape.members.items():
        value = values.get(member)
        if value is not None:
            _write(model, model.shapes[kind], name, value, parts)


def _write(model: ServiceModel, shape: Shape, name: str, value: Any, parts: list[str]) -> None:
    kind = shape.type
    if kind == "list":
        member = model.shapes[shape.member]
        if not shape.flattened:
            parts.append(f"<{name}>")
        for one in value:
            _write(model, member, name if shape.flattened else shape.name, one, parts)
        if not shape.flattened:
            parts.append(f"</{name}>")
    elif kind == "map":
        member, entry = model.shapes[shape.value], name if shape.flattened else "entry"
        if not shape.flattened:
            parts.append(f"<{name}>")
        for key, one in value.items():
            parts.append(f"<{entry}><{shape.name}>{_text(key)}</{shape.name}>")
            _write(model, member, shape.value_name, one, parts)
            parts.append(f"</{entry}>")
        if not shape.flattened:
            parts.append(f"</{name}>")
    elif kind == "structure":
        parts.append(f"<{name}>")
        _write_structure(model, shape, value, parts)
        parts.append(f"</{name}>")
    else:
        parts.append(f"<{name}>{_scalar_text(kind, value)}</{name}>")


def _scalar_text(kind: str, value: Any) -> str:
    if kind == "blob":
        return base64.b64encode(value).decode()
    if kind == "boolean":
        return "true" if value else "false"
    if kind == "timestamp":
        return rfc3339(int(value * 1000))
    return _text(str(value))


def _text(text: str) -> str:
    """Escaped text. Characters that XML 1.0 does not have are left out; messages of the native API may contain them."""
    if _ESCAPED.search(text):
        text = _ESCAPED.sub(lambda found: _ESCAPES[found[0]], text)
    return _NOT_XML.sub("", text)
