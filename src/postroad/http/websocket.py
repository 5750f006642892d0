"""WebSocket connections (RFC 6455), without a task for each: messages, pings, and the closing handshake.

Received bytes go through the parser of `websockets`. Outgoing messages are frames that were encoded before, once for all readers
of a message (`http/websocket_frames.py`). No extension is negotiated.
"""

import asyncio
import logging
from enum import IntEnum
from typing import Protocol

from websockets.frames import Frame, Opcode
from websockets.protocol import OPEN, Side
from websockets.protocol import Protocol as FrameParser

from postroad.http.websocket_frames import PING

MESSAGE_BYTES_MAX = 16 * 1024  # of a client's message
MESSAGES_PER_SECOND = 20  # of a client, pings and pongs included
MESSAGES_BURST = 100  # so that a client can subscribe to everything at once after it connected
_FRAGMENTS_MAX = 256  # of a message
_CLOSE_SECONDS = 5.0  # for the client's part of closing
_REASON_BYTES_MAX = 123
PING_SECONDS = 15.0
_PINGS_UNANSWERED_MAX = 2

_parser_log = logging.getLogger("postroad.websocket")  # faults of clients are no log lines
_parser_log.setLevel(logging.CRITICAL)


class CloseCode(IntEnum):
    """Why a connection ends. Clients connect again after `GOING_AWAY`, `TOO_SLOW` and, with a new token, `CREDENTIAL_ENDED`."""

    GOING_AWAY = 1001
    INVALID_DATA = 1007
    POLICY = 1008
    TOO_BIG = 1009
    TOO_SLOW = 4000
    CREDENTIAL_ENDED = 4401


class SocketHandler(Protocol):
    """What the application does on a connection. Its methods must not block."""

    def opened(self, socket: "WebSocket") -> None: ...

    def received(self, message: bytes) -> None:
        """A text message, which is valid UTF-8."""

    def received_binary(self) -> None: ...

    def writable(self) -> None:
        """The client reads again, after `is_paused` was true."""

    def closed(self) -> None:
        """The connection has ended; called once."""


class SocketTransport(Protocol):
    """The connection to the client."""

    is_write_paused: bool

    def write_frame(self, data: bytes) -> None:
        """Send at once, without a copy."""

    def end_writing(self) -> None:
        """Close the sending side, if the transport can, else all of it."""

    def abort(self) -> None: ...


class SocketFlow:
    """The flow control of a WebSocket, which no task waits for."""

    __slots__ = ("_is_paused", "_transport")

    def __init__(self, transport: asyncio.Transport, *, is_paused: bool) -> None:
        self._transport, self._is_paused = transport, is_paused

    def resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...


class WebSocket:
    """One open connection."""

    __slots__ = (
        "_allowance",
        "_allowance_at",
        "_close_timer",
        "_fragments",
        "_handler",
        "_is_text",
        "_loop",
        "_parser",
        "_transport",
        "_unanswered",
        "is_closing",
    )

    def __init__(self, transport: SocketTransport, handler: SocketHandler, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._handler, self._loop = transport, handler, loop
        self._parser = FrameParser(Side.SERVER, max_size=MESSAGE_BYTES_MAX, logger=_parser_log)
        self._fragments: list[bytes] = []
        self._is_text = True
        self._unanswered = 0
        self._allowance, self._allowance_at = float(MESSAGES_BURST), loop.time()
        self._close_timer: asyncio.TimerHandle | None = None
        self.is_closing = False  # a close frame was sent or received

    # Sending

    @property
    def is_paused(self) -> bool:
        """True while the client does not read, and once the connection closes."""
        return self.is_closing or self._transport.is_write_paused

    def send(self, frames: bytes) -> None:
        """Send whole frames. Nothing may follow the close frame."""
        if not self.is_closing:
            self._transport.write_frame(frames)

    def ping(self) -> None:
        """Send a ping; end the connection if two have not been answered."""
        if self._unanswered >= _PINGS_UNANSWERED_MAX:
            self._transport.abort()
        elif not self.is_paused:  # otherwise the write timeout of the connection applies
            self._unanswered += 1
            self._transport.write_frame(PING)

    def close(self, code: CloseCode, reason: str = "") -> None:
        """Start the closing handshake. The connection ends when the client answers, or a few seconds later."""
        if not self.is_closing and self._parser.state is OPEN:  # else later bytes of the same chunk have closed it
            self._parser.send_close(code, reason.encode()[:_REASON_BYTES_MAX].decode(errors="ignore"))
            self._send_pending()

    # Receiving

    def receive(self, data: bytes) -> None:
        self._unanswered = 0
        self._parser.receive_data(data)
        for event in self._parser.events_received():
            if self.is_closing:
                break
            if isinstance(event, Frame):
                self._process(event)
        self._send_pending()

    def _process(self, frame: Frame) -> None:
        opcode = frame.opcode
        if opcode is Opcode.CLOSE:
            return
        if opcode is Opcode.PING or opcode is Opcode.PONG:
            self._spend()
            return
        if opcode is not Opcode.CONT:
            self._is_text = opcode is Opcode.TEXT
        self._fragments.append(bytes(frame.data))
        if not frame.fin:
            if len(self._fragments) >= _FRAGMENTS_MAX:
                self.close(CloseCode.TOO_BIG, f"a message has more than {_FRAGMENTS_MAX} fragments")
            return
        message = self._fragments[0] if len(self._fragments) == 1 else b"".join(self._fragments)
        self._fragments = []
        if self._spend():
            self._pass_on(message)

    def _pass_on(self, message: bytes) -> None:
        if not self._is_text:
            self._handler.received_binary()
            return
        try:
            message.decode()
        except UnicodeDecodeError:
            self.close(CloseCode.INVALID_DATA, "a text message is not UTF-8")
            return
        self._handler.received(message)

    def _spend(self) -> bool:
        """Count a message; close the connection and return false if there are too many."""
        now = self._loop.time()
        refilled = self._allowance + (now - self._allowance_at) * MESSAGES_PER_SECOND
        self._allowance, self._allowance_at = min(float(MESSAGES_BURST), refilled) - 1, now
        if self._allowance >= 0:
            return True
        self.close(CloseCode.POLICY, f"more than {MESSAGES_PER_SECOND} messages a second")
        return False

    def _send_pending(self) -> None:
        """Send what the parser answers: pongs, and its part of the closing handshake."""
        for data in self._parser.data_to_send():
            if not data:
                self._transport.end_writing()
            elif not self.is_closing:
                self._transport.write_frame(data)
        if self._parser.state is not OPEN and not self.is_closing:
            self.is_closing = True
            self._close_timer = self._loop.call_later(_CLOSE_SECONDS, self._transport.abort)

    # The connection

    def writable(self) -> None:
        if not self.is_closing:
            self._handler.writable()

    def lost(self) -> None:
        """The connection has ended."""
        self.is_closing = True
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._handler.closed()


class PingSchedule:
    """Pings every open connection once in an interval. One timer serves all, and takes a part of them each time."""

    def __init__(self, seconds: float = PING_SECONDS, parts: int = 15) -> None:
        self._step_seconds = seconds / parts
        self._parts: list[set[WebSocket]] = [set() for _ in range(parts)]
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, socket: WebSocket) -> None:
        """Its first ping is one interval from now."""
        self._parts[self._next - 1].add(socket)
        if self._timer is None:
            self._start()

    def remove(self, socket: WebSocket) -> None:
        for part in self._parts:
            part.discard(socket)

    def close_all(self, code: CloseCode, reason: str) -> None:
        for part in self._parts:
            for socket in tuple(part):
                socket.close(code, reason)

    def _start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._step_seconds, self._ping_part)

    def _ping_part(self) -> None:
        self._timer = None
        part = self._parts[self._next]
        self._next = (self._next + 1) % len(self._parts)
        for socket in tuple(part):
            socket.ping()
        if any(self._parts):
            self._start()
