"""JSON encoding and decoding, with errors that name the field."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from postroad.kernel.errors import BodyInvalid, InvalidParameter, InvalidRequest, MalformedJson
from postroad.kernel.json_types import allowed_values, description, whole_numbers

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
encode, encode_into = _encoder.encode, _encoder.encode_into

_SAFE_DEPTH = 500
_SPARE_FRAMES = 50

_TEXT_CHARS_MAX = 500  # of an error: names of fields in it are the caller's


def decode(decoder: "msgspec.json.Decoder[T]", body: bytes | bytearray) -> T:
    """Decode a body. Raises MalformedJson, or BodyInvalid with the path of the field in `errors`."""
    try:
        if not body.isascii():
            body.decode()  # msgspec.Raw does not check strings
        if body.count(b"[") + body.count(b"{") > _SAFE_DEPTH:
            return _decode_below(_SPARE_FRAMES, decoder, body)
        return decoder.decode(body)
    except msgspec.ValidationError as exc:
        return _decode_whole_numbers(decoder, body, exc)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise MalformedJson(str(exc) if body.strip() else "the body is empty") from exc
    except RecursionError as exc:
        raise MalformedJson("the JSON is nested too deeply") from exc


def _decode_whole_numbers(decoder: "msgspec.json.Decoder[T]", body: bytes | bytearray, refused: msgspec.ValidationError) -> T:
    """Decode with numbers such as `5.0` as integers, if an integer was expected. Raises BodyInvalid."""
    text = str(refused)
    if "`int" in text and "got `float`" in text:
        try:
            return _decode_below(_SPARE_FRAMES, decoder, whole_numbers(body, decoder.type))
        except msgspec.ValidationError as exc:
            text = str(exc)
        except RecursionError as exc:
            raise MalformedJson("the JSON is nested too deeply") from exc
    raise _field_error(described(text, decoder.type)) from refused


def described(text: str, kind: Any) -> str:
    """The text of a ValidationError, with the allowed values of an enumeration, what a pattern stands for, or where a field that
    a type lacks is found instead (`INSTEAD`)."""
    if " - at " not in text and text.startswith("Object contains unknown field `"):
        instead = getattr(kind, "INSTEAD", {}).get(text.split("`")[1])
        return text if instead is None else f"{text}: {instead}"
    detail, separator, where = text.rpartition(" - at ")
    path, hint = where.strip("`"), ""
    if detail.startswith("Invalid enum value") and (values := allowed_values(kind, path)):
        hint = f": must be one of {', '.join(values)}"
    elif " matching regex " in detail and (meaning := description(kind, path)):
        hint = f" ({meaning.rstrip('.')})"
    return f"{detail}{hint}{separator}{where}" if hint else text


def _decode_below(frames: int, decoder: "msgspec.json.Decoder[T]", body: bytes | bytearray) -> T:
    """Decode deeper in the stack than later readers of the same text, so that they can decode every body accepted here.

    Until Python 3.12 the frames of the interpreter and the nesting of the text count against the same limit.
    """
    return decoder.decode(body) if frames == 0 else _decode_below(frames - 1, decoder, body)


def _field_error(text: str) -> InvalidRequest:
    detail, separator, where = text.rpartition(" - at ")
    if not separator or not where.endswith("`"):
        detail, where = text, "$"
    path = where.removeprefix("`key` in ").strip("`") or "$"
    return invalid_field(path[:_TEXT_CHARS_MAX], detail[:_TEXT_CHARS_MAX])


@contextmanager
def at_field(path: str) -> Iterator[None]:
    """Within the block a parameter that is refused is a field of the body. Raises BodyInvalid with the path."""
    try:
        yield
    except InvalidParameter as problem:
        raise invalid_field(path, problem.detail) from problem


def invalid_field(path: str, detail: str) -> BodyInvalid:
    return BodyInvalid(f"{detail} (at {path})", extra={"errors": [{"path": path, "detail": detail}]})
