"""Bodies of requests and responses: JSON arrays split and joined, and the encoding of data as server-sent events."""

from base64 import b64encode
from collections.abc import Sequence

import msgspec

from postroad.kernel import json
from postroad.kernel.errors import InvalidParameter

_decode_array = msgspec.json.Decoder(list[msgspec.Raw])
_decode_any = msgspec.json.Decoder(msgspec.Raw)
_WHITESPACE = b" \t\r\n"


def json_elements(body: bytes) -> list[bytes]:
    """Messages in a JSON body: the elements of an array, one level down, or the single value. Raises MalformedJson."""
    if body.lstrip(_WHITESPACE)[:1] == b"[":
        return [bytes(element).strip(_WHITESPACE) for element in json.decode(_decode_array, body)]
    return [bytes(json.decode(_decode_any, body)).strip(_WHITESPACE)]


def json_data(body: bytes) -> bytes:
    """Stored form of a JSON body: its messages, separated by commas. Raises MalformedJson, InvalidParameter if there are none."""
    elements = json_elements(body)
    if not elements:
        raise InvalidParameter("an empty array has no messages to append")
    return b",".join(elements)


def split_json(data: bytes) -> list[bytes]:
    """Messages in stored data."""
    return json_elements(b"[" + data + b"]")


def join_payloads(payloads: Sequence[bytes], *, is_json: bool) -> bytes:
    """Response body of stored payloads."""
    return b"[" + b",".join(payloads) + b"]" if is_json else b"".join(payloads)


def is_text(media: str) -> bool:
    """True if events contain data of this type unencoded; other data is base64."""
    return media.startswith("text/") or media == "application/json"


def data_event(body: bytes, media: str) -> bytes:
    """One server-sent event with the data.

    Every line break starts a new `data:` line, so that no payload can forge an event. Parsers remove one space after the colon,
    so a line that begins with a space gets another.
    """
    if not is_text(media):
        return b"event: data\ndata:" + b64encode(body) + b"\n\n"
    if b"\n" not in body and b"\r" not in body:
        return b"event: data\n" + _data_line(body) + b"\n"
    lines = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return b"event: data\n" + b"".join([_data_line(line) for line in lines]) + b"\n"


def _data_line(line: bytes) -> bytes:
    return (b"data: " if line[:1] == b" " else b"data:") + line + b"\n"
