"""Bodies: JSON taken apart and put together, and how data look in server-sent events."""

from base64 import b64encode
from collections.abc import Sequence

import msgspec

from postroad.kernel import json
from postroad.kernel.errors import InvalidParameter

_decode_array = msgspec.json.Decoder(list[msgspec.Raw])
_decode_any = msgspec.json.Decoder(msgspec.Raw)
_BLANK = b" \t\r\n"


def json_elements(body: bytes) -> list[bytes]:
    """The messages that a JSON body is: an array's elements, one level down, or the one value. Raises MalformedJson."""
    if body.lstrip(_BLANK)[:1] == b"[":
        return [bytes(element).strip(_BLANK) for element in json.decode(_decode_array, body)]
    return [bytes(json.decode(_decode_any, body)).strip(_BLANK)]


def json_data(body: bytes) -> bytes:
    """The body as it is stored: its messages, parted by commas. Raises MalformedJson, InvalidParameter if there are none."""
    elements = json_elements(body)
    if not elements:
        raise InvalidParameter("an empty array has no messages to append")
    return b",".join(elements)


def split_json(data: bytes) -> list[bytes]:
    """The messages of stored data."""
    return json_elements(b"[" + data + b"]")


def joined(payloads: Sequence[bytes], *, is_json: bool) -> bytes:
    """What a reader gets of some stored data."""
    return b"[" + b",".join(payloads) + b"]" if is_json else b"".join(payloads)


def is_text(media: str) -> bool:
    """Whether data of this type can stand in an event as they are."""
    return media.startswith("text/") or media == "application/json"


def data_event(body: bytes, media: str) -> bytes:
    """One event with these data. A line break of any kind begins a new `data:` line, so that no payload can forge an event; a
    reader takes one space off each line, so a line that begins with one gets another."""
    if not is_text(media):
        return b"event: data\ndata:" + b64encode(body) + b"\n\n"
    if b"\n" not in body and b"\r" not in body:
        return b"event: data\n" + _data_line(body) + b"\n"
    lines = body.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return b"event: data\n" + b"".join([_data_line(line) for line in lines]) + b"\n"


def _data_line(line: bytes) -> bytes:
    return (b"data: " if line[:1] == b" " else b"data:") + line + b"\n"
