"""Parser of what a NATS server sends. Bytes in, calls out: no I/O, no clock."""

from functools import lru_cache
from typing import Protocol

import msgspec

_CONTROL_LINE_MAX = 1024 * 1024  # a server announces all servers of its cluster in one line
_MESSAGE_MAX = 1024 * 1024 * 1024
_WHITESPACE = " \t\n\r\x0b\x0c"
_VERSION_LINE = "NATS/1.0"


class ProtocolViolation(Exception):
    """The peer sent something that is not the NATS protocol."""


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself when a connection begins, and again when its cluster changes."""

    version: str = ""
    max_payload: int = 1024 * 1024
    cluster: str = ""
    connect_urls: list[str] = []
    tls_required: bool = False
    tls_available: bool = False
    nonce: str = ""


class Receiver(Protocol):
    """Takes what the server sent, in order."""

    def on_message(self, sid: int, subject: str, reply: str, header_block: bytes, data: bytes) -> None:
        """`header_block` for `parse_headers`, empty without headers."""

    def on_info(self, info: ServerInfo) -> None: ...

    def on_ping(self) -> None: ...

    def on_pong(self) -> None: ...

    def on_error(self, text: str) -> None: ...


class NatsParser:
    """Calls its receiver for each complete command, however the bytes are split."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._chunks: list[bytes] = []  # of an incomplete command
        self._size = 0  # of the chunks
        self._needed = 0  # bytes until it can be complete

    def feed(self, data: bytes) -> None:
        """Raises ProtocolViolation."""
        if self._chunks:
            self._chunks.append(data)
            self._size += len(data)
            if self._size < self._needed:
                return
            data = b"".join(self._chunks)
            self._chunks.clear()
        position = self._parse(data)
        if position < len(data):
            self._chunks.append(data[position:])
            self._size = len(data) - position

    def _parse(self, data: bytes) -> int:
        """Handle all complete commands. Returns where the incomplete one begins."""
        position, size, on_message = 0, len(data), self._receiver.on_message
        while True:
            line_end = data.find(b"\r\n", position)
            if line_end < 0:
                if size - position > _CONTROL_LINE_MAX:
                    raise ProtocolViolation("a line without an end")
                self._needed = 0
                return position
            if data.startswith(b"MSG ", position):
                words = data[position + 4 : line_end].split(b" ")  # only: a subject may have a form feed
                header_size, total_size = 0, _size_of(words, 3)
            elif data.startswith(b"HMSG ", position):
                words = data[position + 5 : line_end].split(b" ")
                total_size = _size_of(words, 4)
                header_size = _number(words.pop(-2))
            else:
                self._control(data[position:line_end])
                position = line_end + 2
                continue
            body = line_end + 2
            end = body + total_size
            if end + 2 > size:
                self._needed = end + 2 - position
                return position
            on_message(
                _number(words[1]),
                words[0].decode("utf-8", "replace"),  # other clients may publish to a subject of any bytes
                words[2].decode("utf-8", "replace") if len(words) == 4 else "",
                data[body : body + header_size],
                data[body + header_size : end],
            )
            position = end + 2

    def _control(self, line: bytes) -> None:
        name, _, rest = line.partition(b" ")
        match name.upper():
            case b"PING":
                self._receiver.on_ping()
            case b"PONG":
                self._receiver.on_pong()
            case b"+OK" | b"":
                pass
            case b"INFO":
                try:
                    self._receiver.on_info(_decode_info(rest))
                except msgspec.DecodeError as error:
                    raise ProtocolViolation("INFO that is not valid JSON") from error
            case b"-ERR":
                self._receiver.on_error(rest.decode("utf-8", "replace").strip("' "))
            case _:
                raise ProtocolViolation(f"unknown command {name[:20]!r}")


_decode_info = msgspec.json.Decoder(ServerInfo).decode


def _size_of(words: list[bytes], least: int) -> int:
    """The last number of a message's line, which has `least` words, or one more with a reply subject."""
    if not least <= len(words) <= least + 1 or (size := _number(words[-1])) > _MESSAGE_MAX:
        raise ProtocolViolation("a message with an invalid first line")
    return size


def _number(word: bytes) -> int:
    if not word.isdigit():
        raise ProtocolViolation(f"expected a number, not {word[:20]!r}")
    return int(word)


def parse_headers(block: bytes) -> dict[str, str]:
    """The headers of a message; of those with the same name the last. A status is under `Status` and `Description`."""
    first, _, rest = block.decode("utf-8", "replace").partition("\r\n")
    headers: dict[str, str] = {}
    if len(first) > len(_VERSION_LINE):
        status, _, description = first[len(_VERSION_LINE) :].strip(_WHITESPACE).partition(" ")
        if status.isdigit():
            headers["Status"] = status
        if description:
            headers["Description"] = description
    for line in rest.split("\r\n"):
        before, separator, value = line.partition(":")
        if separator and (name := _header_name(before)) is not None:
            headers[name] = value.strip(_WHITESPACE)
    return headers


@lru_cache(maxsize=1024)
def _header_name(text: str) -> str | None:
    """The name without surrounding whitespace; None if it is not a valid one."""
    name = text.strip(_WHITESPACE)
    return None if not name.isascii() or any(letter.isspace() for letter in name) else name
