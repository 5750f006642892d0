"""A blocking NATS client, small and quick: it reads large pieces and leaves the messages in them to those who know their form."""

import contextlib
import json
import logging
import random
import secrets
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any, TypeVar

from spark_jetstream import protocol
from spark_jetstream.credentials import read_credentials
from spark_jetstream.errors import ConnectionLost, JetStreamError, Refused, Unreachable
from spark_jetstream.options import Connection, Server

log = logging.getLogger("spark_jetstream")

_PIECE_BYTES = 512 * 1024
_ATTEMPTS = 5
_T = TypeVar("_T")


class Client:
    """One connection at a time to one of the servers; `reopen` takes the next one."""

    def __init__(self, options: Connection) -> None:
        self._options = options
        self._socket: socket.socket | None = None
        self._next_server = random.randrange(len(options.servers))  # noqa: S311
        self._server: Server = options.servers[self._next_server]
        self._inbox = b""
        self._asked = 0
        self.buffer = b""
        self.position = 0
        self.max_payload = 1024 * 1024

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Connect to the first server that lets us in, each tried a few times. Raises Refused or Unreachable."""
        self.close()
        reasons: dict[str, str] = {}
        for attempt in range(_ATTEMPTS):
            for _ in self._options.servers:
                self._server = self._options.servers[self._next_server]
                self._next_server = (self._next_server + 1) % len(self._options.servers)
                try:
                    self._connect(self._server)
                    return
                except (OSError, ConnectionLost) as exc:
                    self.close()
                    reasons[str(self._server)] = str(exc)
            if attempt < _ATTEMPTS - 1:
                time.sleep(min(0.1 * 2**attempt, 1.0))
        told = "; ".join(f"{server}: {reason}" for server, reason in reasons.items())
        raise Unreachable(f"no NATS server can be reached ({told})")

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._socket = None
        self.buffer, self.position = b"", 0

    def with_retries(self, ask: Callable[["Client"], _T]) -> _T:
        """Ask something that may be asked again, on another connection when this one breaks. Raises Unreachable in the end."""
        for attempt in range(_ATTEMPTS):
            try:
                if self._socket is None:
                    self.open()
                return ask(self)
            except ConnectionLost as exc:
                log.warning("lost the connection to %s (%s); trying again", self._server, exc)
                self.close()
                lost = exc
            time.sleep(min(0.1 * 2**attempt, 1.0))
        raise Unreachable(f"{self._server}: {lost}") from lost

    def send(self, data: bytes) -> None:
        if self._socket is None:
            raise ConnectionLost("not connected")
        try:
            self._socket.sendall(data)
        except OSError as exc:
            raise self._lost(exc) from exc

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def inbox(self) -> bytes:
        """Answers come to `<inbox>.<number>`; another connection has another."""
        return self._inbox

    def new_inbox(self) -> bytes:
        """A subject on which answers to the next question come."""
        self._asked += 1
        return b"%b.%d" % (self._inbox, self._asked)

    def request(self, subject: str, body: dict[str, Any] | None = None) -> protocol.Frame:
        """Ask and wait for the one answer. Raises ConnectionLost when none comes in time."""
        inbox = self.new_inbox()
        self.send(protocol.publish(subject.encode(), inbox, b"", b"" if body is None else json.dumps(body).encode()))
        while True:
            frame = self.poll()
            if frame is not None and frame.subject == inbox:
                return frame

    def poll(self) -> protocol.Frame | None:
        """The next message if it is here already; otherwise wait for more bytes (which may be looked at first), and None."""
        if self.position >= len(self.buffer):
            self.fill(1)
            return None
        first = self.buffer[self.position]
        if first in b"MH":
            frame, end = protocol.take_frame(self.buffer, self.position)
            if frame is None:
                self.fill(end - len(self.buffer))
            else:
                self.position = end
            return frame
        end = self.buffer.find(b"\r\n", self.position)
        if end < 0:
            self.fill(1)
            return None
        line, self.position = self.buffer[self.position : end], end + 2
        self._heed(line)
        return None

    def fill(self, missing: int) -> None:
        """Wait until so many bytes more are in the buffer; what was taken already goes. Raises ConnectionLost."""
        if self._socket is None:
            raise ConnectionLost("not connected")
        pieces = [self.buffer[self.position :]]
        try:
            while missing > 0:
                piece = self._socket.recv(max(_PIECE_BYTES, min(missing, 8 * _PIECE_BYTES)))
                if not piece:
                    raise ConnectionLost("the server closed the connection")
                pieces.append(piece)
                missing -= len(piece)
        except OSError as exc:
            raise self._lost(exc) from exc
        finally:
            self.buffer, self.position = b"".join(pieces), 0

    def _lost(self, exc: OSError) -> ConnectionLost:
        if isinstance(exc, TimeoutError):
            return ConnectionLost(f"no answer within {self._options.timeout_seconds:g} s")
        return ConnectionLost(str(exc))

    def _heed(self, line: bytes) -> None:
        """Do what a line of the server that is no message asks for."""
        if line.startswith(b"PING"):
            self.send(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            raise _error(line[4:].strip(b" '").decode("utf-8", "replace"), self._server)
        elif line.startswith(b"INFO"):
            self.max_payload = json.loads(line[5:]).get("max_payload", self.max_payload)
        elif not line.startswith((b"PONG", b"+OK")):
            raise JetStreamError(f"{self._server} does not speak the NATS protocol")

    def _connect(self, server: Server) -> None:
        timeout = self._options.timeout_seconds
        plain = socket.create_connection((server.host, server.port), timeout=timeout)
        self._socket = plain
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while b"\r\n" not in self.buffer:
            self.fill(1)
        line, _, self.buffer = self.buffer.partition(b"\r\n")
        if not line.startswith(b"INFO "):
            if line.startswith(b"-ERR"):
                raise _error(line[4:].strip(b" '").decode("utf-8", "replace"), server)
            raise Refused(f"{server} is no NATS server")
        info = json.loads(line[5:])
        self.max_payload = info.get("max_payload", self.max_payload)
        is_tls = self._wants_tls(server, info)
        if is_tls:
            self._socket = self._encrypted(plain, server)
        self._inbox = f"{self._options.inbox_prefix}.{secrets.token_hex(11)}".encode()
        greeting = json.dumps({**self._introduction(server, info), "tls_required": is_tls}).encode()
        self.send(b"CONNECT %b\r\nSUB %b.* 1\r\nPING\r\n" % (greeting, self._inbox))
        self._await_pong()

    def _await_pong(self) -> None:
        while True:
            end = self.buffer.find(b"\r\n", self.position)
            if end < 0:
                self.fill(1)
                continue
            line, self.position = self.buffer[self.position : end], end + 2
            if line.startswith(b"PONG"):
                return
            self._heed(line)

    def _wants_tls(self, server: Server, info: dict[str, Any]) -> bool:
        offered = bool(info.get("tls_required") or info.get("tls_available"))
        asked = server.is_tls or bool(self._options.tls_ca or self._options.tls_cert)
        if asked and not offered:
            raise Refused(f"{server} offers no TLS, and without it nothing is sent there")
        return asked or bool(info.get("tls_required"))

    def _encrypted(self, plain: socket.socket, server: Server) -> socket.socket:
        try:
            context = ssl.create_default_context(cafile=self._options.tls_ca)
            if self._options.tls_cert is not None:
                context.load_cert_chain(self._options.tls_cert, self._options.tls_key)
        except (OSError, ssl.SSLError) as exc:
            raise Refused(f"the files of 'tlsCa', 'tlsCert' and 'tlsKey' cannot be used: {exc}") from exc
        try:
            return context.wrap_socket(plain, server_hostname=server.host)
        except ssl.SSLCertVerificationError as exc:
            raise Refused(f"the certificate of {server} is not trusted: {exc.verify_message}") from exc

    def _introduction(self, server: Server, info: dict[str, Any]) -> dict[str, Any]:
        said: dict[str, Any] = {
            "verbose": False, "pedantic": False, "echo": False, "headers": True, "no_responders": True,
            "lang": "python", "version": "1", "protocol": 1, "name": "spark-jetstream",
        }  # fmt: skip
        if self._options.credentials is not None:
            credentials = read_credentials(self._options.credentials)
            said |= {"jwt": credentials.jwt, "sig": credentials.sign(info.get("nonce", ""))}
        elif server.token is not None:
            said["auth_token"] = server.token
        elif server.user is not None:
            said |= {"user": server.user, "pass": server.password}
        return said


def _error(text: str, server: Server) -> JetStreamError:
    """What the server's `-ERR` means: a no is a no, anything else is a connection that will be closed."""
    lower = text.lower()
    if lower.startswith(("authorization", "authentication", "user authentication", "account authentication")):
        return Refused(f"{server} does not let us in: {text}")
    if lower.startswith(("permissions violation", "maximum payload", "invalid", "unknown protocol")):
        return Refused(f"{server} refuses: {text}")
    return ConnectionLost(text)
