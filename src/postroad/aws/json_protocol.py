"""AWS JSON 1.0: requests to values of a shape, results and errors to bytes. Pure."""

import base64
import binascii
from collections.abc import Callable
from typing import Any, NotRequired, TypedDict

import msgspec

from postroad.aws.errors import AwsError, ErrorView
from postroad.aws.model import Operation, ServiceModel, Shape, Values

MEDIA = b"application/x-amz-json-1.0"
_DEPTH_MAX = 8
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_INTEGERS = ("integer", "long")
_SCALARS: dict[str, type] = {"string": str, "boolean": bool}


_SCALAR_TYPES: dict[str, Any] = {"string": str, "boolean": bool, "integer": int, "long": int, "blob": bytes}
_typed_dict: Any = TypedDict  # its fields are not known before the run
_decoders: dict[str, Callable[[bytes], Values]] = {}  # by operation


def decode(operation: Operation, body: bytes) -> Values:
    """The input of an operation. Raises AwsError."""
    if operation.input is not None:
        try:
            return (_decoders.get(operation.label) or _decoder(operation))(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # members that are null, or a fault to describe
    return decode_by_shape(operation, body)


def _decoder(operation: Operation) -> Callable[[bytes], Values]:
    """A typed decoder, made once per operation. What it accepts has the same values as from `decode_by_shape`."""
    name = operation.input or ""
    decoder = msgspec.json.Decoder(_type_of(operation.model, name)).decode
    _decoders[operation.label] = decoder
    return decoder


def _type_of(model: ServiceModel, name: str) -> Any:
    shape = model.shapes[name]
    if shape.type == "structure":
        return _typed_dict(name, {one: NotRequired[_type_of(model, kind)] for one, (kind, _) in shape.members.items()})
    if shape.type == "list":
        return list[_type_of(model, shape.member)]  # type: ignore[misc]
    if shape.type == "map":
        return dict[str, _type_of(model, shape.value)]  # type: ignore[misc]
    return _SCALAR_TYPES.get(shape.type, int | float)


def decode_by_shape(operation: Operation, body: bytes) -> Values:
    """The input of an operation, checked part by part, with the path of a fault. Raises AwsError."""
    try:
        found = _decode(body) if body.strip() else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise _malformed("the body is not JSON") from exc
    if not isinstance(found, dict):
        raise _malformed("the body is not a JSON object")
    if operation.input is None:
        return {}
    values: Values = _value(operation.model, operation.model.shapes[operation.input], found, "", 0)
    return values


def _value(model: ServiceModel, shape: Shape, given: Any, path: str, depth: int) -> Any:
    kind = shape.type
    expected = _SCALARS.get(kind)
    if expected is not None:
        if not isinstance(given, expected):
            raise _malformed(f"{path} must be a {kind}")
        return given
    if kind in _INTEGERS:
        if isinstance(given, bool) or not isinstance(given, int):
            raise _malformed(f"{path} must be an integer")
        return given
    if depth > _DEPTH_MAX:
        raise _malformed(f"{path} is nested too deeply")
    if kind == "structure":
        if not isinstance(given, dict):
            raise _malformed(f"{path or 'the body'} must be an object")
        shapes, members = model.shapes, shape.members
        return {
            name: _value(model, shapes[members[name][0]], value, f"{path}.{name}" if path else name, depth + 1)
            for name, value in given.items()
            if value is not None and name in members
        }
    if kind == "list":
        if not isinstance(given, list):
            raise _malformed(f"{path} must be a list")
        member = model.shapes[shape.member]
        return [_value(model, member, one, f"{path}.{index + 1}", depth + 1) for index, one in enumerate(given)]
    if kind == "map":
        if not isinstance(given, dict):
            raise _malformed(f"{path} must be an object")
        member = model.shapes[shape.value]
        return {name: _value(model, member, one, f"{path}.{name[:64]}", depth + 1) for name, one in given.items()}
    if kind == "blob":
        if not isinstance(given, str):
            raise _malformed(f"{path} must be base64 text")
        return decode_blob(given, path)
    if isinstance(given, int | float) and not isinstance(given, bool):
        return given
    raise _malformed(f"{path} must be a number")


def decode_blob(text: str, path: str) -> bytes:
    """Raises AwsError."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise _malformed(f"{path} is not base64") from exc


def encode(values: Values | None) -> bytes:
    return _encode(values or {})


def encode_error(view: ErrorView, model: ServiceModel | None) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The body and headers of an error."""
    is_own = view.is_modelled and model is not None
    kind = f"com.amazonaws.{model.service}#{view.shape}" if is_own and model else f"com.amazon.coral.service#{view.shape}"
    headers = [(b"x-amzn-query-error", f"{view.code};{view.fault}".encode()), (b"x-amzn-errortype", kind.encode())]
    return _encode({"__type": kind, "message": view.message}), headers


def _malformed(detail: str) -> AwsError:
    return AwsError("SerializationException", detail[0].upper() + detail[1:])
