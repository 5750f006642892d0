"""Responses, as handlers return them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import msgspec

from postroad.http.security_headers import SecurityHeaders
from postroad.http.websocket import SocketHandler
from postroad.kernel.json import encode, encode_into

WriteChunk = Callable[[bytes], bool]
SLICE_BYTES_MAX = 256 * 1024  # of a response that are encoded or sent without a pause


@dataclass(slots=True)
class Response:
    """One response. `body` is bytes, a msgspec value to be encoded, or an iterator of chunks.

    `security`: set by handlers that return pages, or content of a tenant (`http/security_headers.py`).
    `list_field`: the field of the body whose items may be large together. They are encoded one by one, and other requests go on
    in between.
    `attach`: of an iterator that can also send chunks by itself: it gets a function that sends one at once, while the iterator
    waits, or returns false if the chunk must come from the iterator.
    `socket`: the handler of a WebSocket, with status 101. `subprotocol` is the one that was chosen.
    """

    body: bytes | msgspec.Struct | AsyncIterator[bytes] | None = None
    status: int = 200
    media: bytes = b"application/json"
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    security: SecurityHeaders | None = None
    list_field: str = ""
    attach: Callable[[WriteChunk], None] | None = None
    socket: SocketHandler | None = None
    subprotocol: str = ""

    def encoded(self) -> bytes:
        if isinstance(self.body, bytes):
            return self.body
        return b"" if self.body is None else encode(self.body)

    async def slices(self) -> list[bytes]:
        """The encoded body, in parts of about `SLICE_BYTES_MAX`."""
        if self.list_field and isinstance(self.body, msgspec.Struct) and len(getattr(self.body, self.list_field)) > 1:
            return await encode_list(self.body, self.list_field)
        body = self.encoded()
        if len(body) <= SLICE_BYTES_MAX:
            return [body]
        return [body[start : start + SLICE_BYTES_MAX] for start in range(0, len(body), SLICE_BYTES_MAX)]


async def encode_list(body: msgspec.Struct, list_field: str) -> list[bytes]:
    """Encode a value with a list, in parts of about `SLICE_BYTES_MAX`; let the event loop run after each part."""
    names = dict(zip(body.__struct_fields__, body.__struct_encode_fields__, strict=True))
    key = b'"%b":[' % names[list_field].encode()
    head, _, tail = encode(msgspec.structs.replace(body, **{list_field: []})).partition(key + b"]")
    slices: list[bytes] = []
    part = bytearray(head + key)
    for index, item in enumerate(getattr(body, list_field)):
        if len(part) > SLICE_BYTES_MAX:
            slices.append(bytes(part))
            part.clear()
            await asyncio.sleep(0)
        if index:
            part += b","
        encode_into(item, part, -1)
    part += b"]" + tail
    slices.append(bytes(part))
    return slices
