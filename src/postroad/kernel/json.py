"""JSON in and out, with errors that name the field."""

import re
from typing import TypeVar

import msgspec

from postroad.kernel.errors import BodyInvalid, InvalidRequest, MalformedJson

T = TypeVar("T")

encode = msgspec.json.Encoder().encode

_NESTED_SAFELY = 500
_FRAMES_TO_SPARE = 50

_PATH = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`(?P<path>[^`]*)`)?$", re.DOTALL)


def decode(decoder: "msgspec.json.Decoder[T]", body: bytes | bytearray) -> T:
    """The body as the decoder's type. Raises MalformedJson, or BodyInvalid with the path of the field in `errors`."""
    try:
        if not body.isascii():
            body.decode()  # msgspec.Raw skips over strings without looking at them
        if body.count(b"[") + body.count(b"{") > _NESTED_SAFELY:
            return _decode_deep_down(_FRAMES_TO_SPARE, decoder, body)
        return decoder.decode(body)
    except msgspec.ValidationError as exc:
        raise _field_error(str(exc)) from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise MalformedJson(str(exc)) from exc
    except RecursionError as exc:
        raise MalformedJson("the JSON is nested too deeply") from exc


def _decode_deep_down(frames: int, decoder: "msgspec.json.Decoder[T]", body: bytes | bytearray) -> T:
    """Deeper in the stack than anyone who reads the same text later, so that what is accepted here can be read there.

    Until Python 3.12 the interpreter's frames and the text's nesting count against the same limit.
    """
    return decoder.decode(body) if frames == 0 else _decode_deep_down(frames - 1, decoder, body)


def _field_error(text: str) -> InvalidRequest:
    found = _PATH.match(text)
    what, path = (found["what"], found["path"] or "$") if found else (text, "$")
    return invalid_field(path, what)


def invalid_field(path: str, what: str) -> BodyInvalid:
    return BodyInvalid(f"{what} (at {path})", extra={"errors": [{"path": path, "detail": what}]})
