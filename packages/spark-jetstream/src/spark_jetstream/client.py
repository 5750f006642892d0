"""A small blocking NATS client. It reads large chunks and leaves the parsing of bulk messages to its callers."""

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
from spark_jetstream.credentials import read_credentials, read_nkey
from spark_jetstream.errors import ConnectionLost, JetStreamError, Rejected, Unreachable
from spark_jetstream.options import ConnectionOptions, Server
from spark_jetstream.retry import ATTEMPTS_MAX, backoff_seconds

log = logging.getLogger("spark_jetstream")

_CHUNK_BYTES = 512 * 1024
_T = TypeVar("_T")


class Client:
    """One connection at a time; each `open` tries the next server first.

    Bytes received and not yet parsed are `buffer[position:]`. Callers that parse them advance `position`.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self._options = options
        self._socket: socket.socket | None = None
        self._next_server = random.randrange(len(options.servers))  # noqa: S311
        self._server: Server = options.servers[self._next_server]
        self._inbox = b""
        self._requests = 0
        self.buffer = b""
        self.position = 0
        self.max_payload = 1024 * 1024

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Connect to the first server that accepts, trying each several times. Raises Rejected or Unreachable."""
        self.close()
        reasons: dict[str, str] = {}
        for attempt in range(1, ATTEMPTS_MAX + 1):
            for _ in self._options.servers:
                self._server = self._options.servers[self._next_server]
                self._next_server = (self._next_server + 1) % len(self._options.servers)
                try:
                    self._connect(self._server)
                    return
                except (OSError, ConnectionLost) as exc:
                    self.close()
                    reasons[str(self._server)] = str(exc)
            if attempt < ATTEMPTS_MAX:
                time.sleep(backoff_seconds(attempt))
        details = "; ".join(f"{server}: {reason}" for server, reason in reasons.items())
        raise Unreachable(f"no NATS server can be reached ({details})")

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._socket = None
        self.buffer, self.position = b"", 0

    def with_retries(self, operation: Callable[["Client"], _T]) -> _T:
        """Run an idempotent operation, again on a new connection when this one breaks. Raises Unreachable after five attempts."""
        for attempt in range(1, ATTEMPTS_MAX + 1):
            try:
                if self._socket is None:
                    self.open()
                return operation(self)
            except ConnectionLost as exc:
                log.warning("connection to %s lost (%s); retrying", self._server, exc)
                self.close()
                lost = exc
            time.sleep(backoff_seconds(attempt))
        raise Unreachable(f"{self._server}: {lost}") from lost

    def send(self, data: bytes) -> None:
        """Raises ConnectionLost."""
        if self._socket is None:
            raise ConnectionLost("not connected")
        try:
            self._socket.sendall(data)
        except OSError as exc:
            raise self._connection_lost(exc) from exc

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    @property
    def inbox(self) -> bytes:
        """Prefix of reply subjects, `<inbox>.<number>`; different on each connection."""
        return self._inbox

    def new_reply_subject(self) -> bytes:
        """Return an unused reply subject in the inbox."""
        self._requests += 1
        return b"%b.%d" % (self._inbox, self._requests)

    def request(self, subject: str, body: dict[str, Any] | None = None) -> protocol.Frame:
        """Send a request and return its reply. Raises ConnectionLost if none arrives in time."""
        reply = self.new_reply_subject()
        self.send(protocol.encode_publish(subject.encode(), reply, b"", b"" if body is None else json.dumps(body).encode()))
        while True:
            frame = self.poll()
            if frame is not None and frame.subject == reply:
                return frame

    def poll(self) -> protocol.Frame | None:
        """Return the next frame if it is complete in the buffer. Otherwise receive more bytes and return None."""
        if self.position >= len(self.buffer):
            self.receive(1)
            return None
        first = self.buffer[self.position]
        if first in b"MH":
            frame, end = protocol.parse_frame(self.buffer, self.position)
            if frame is None:
                self.receive(end - len(self.buffer))
            else:
                self.position = end
            return frame
        line = self._next_line()
        if line is None:
            self.receive(1)
        else:
            self._handle_control_line(line)
        return None

    def receive(self, count: int) -> None:
        """Add at least `count` bytes to the buffer and drop its parsed part. Raises ConnectionLost."""
        if self._socket is None:
            raise ConnectionLost("not connected")
        chunks = [self.buffer[self.position :]]
        try:
            while count > 0:
                chunk = self._socket.recv(max(_CHUNK_BYTES, min(count, 8 * _CHUNK_BYTES)))
                if not chunk:
                    raise ConnectionLost("the server closed the connection")
                chunks.append(chunk)
                count -= len(chunk)
        except OSError as exc:
            raise self._connection_lost(exc) from exc
        finally:
            self.buffer, self.position = b"".join(chunks), 0

    def _next_line(self) -> bytes | None:
        end = self.buffer.find(b"\r\n", self.position)
        if end < 0:
            return None
        line, self.position = self.buffer[self.position : end], end + 2
        return line

    def _connection_lost(self, exc: OSError) -> ConnectionLost:
        if isinstance(exc, TimeoutError):
            return ConnectionLost(f"no reply within {self._options.timeout_seconds:g} s")
        return ConnectionLost(str(exc))

    def _handle_control_line(self, line: bytes) -> None:
        """Handle a line that is not a message: PING, -ERR, INFO, PONG or +OK."""
        if line.startswith(b"PING"):
            self.send(b"PONG\r\n")
        elif line.startswith(b"-ERR"):
            raise _server_error(line, self._server)
        elif line.startswith(b"INFO"):
            self.max_payload = json.loads(line[5:]).get("max_payload", self.max_payload)
        elif not line.startswith((b"PONG", b"+OK")):
            raise JetStreamError(f"{self._server} sent a line that is not part of the NATS protocol")

    def _connect(self, server: Server) -> None:
        plain = socket.create_connection((server.host, server.port), timeout=self._options.timeout_seconds)
        self._socket = plain
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        line = self._await_line()
        if line.startswith(b"-ERR"):
            raise _server_error(line, server)
        if not line.startswith(b"INFO "):
            raise Rejected(f"{server} is not a NATS server")
        info = json.loads(line[5:])
        self.max_payload = info.get("max_payload", self.max_payload)
        is_tls = self._uses_tls(server, info)
        if is_tls:
            self._socket = self._wrap_tls(plain, server)
        self._inbox = f"{self._options.inbox_prefix}.{secrets.token_hex(11)}".encode()
        connect = json.dumps({**self._connect_fields(server, info), "tls_required": is_tls}).encode()
        self.send(b"CONNECT %b\r\nSUB %b.* 1\r\nPING\r\n" % (connect, self._inbox))
        while not (line := self._await_line()).startswith(b"PONG"):
            self._handle_control_line(line)

    def _await_line(self) -> bytes:
        while (line := self._next_line()) is None:
            self.receive(1)
        return line

    def _uses_tls(self, server: Server, info: dict[str, Any]) -> bool:
        is_offered = bool(info.get("tls_required") or info.get("tls_available"))
        is_wanted = server.is_tls or bool(self._options.tls_ca or self._options.tls_cert)
        if is_wanted and not is_offered:
            raise Rejected(f"{server} does not offer TLS, which the options require")
        return is_wanted or bool(info.get("tls_required"))

    def _wrap_tls(self, plain: socket.socket, server: Server) -> socket.socket:
        try:
            context = ssl.create_default_context(cafile=self._options.tls_ca)
            if self._options.tls_cert is not None:
                context.load_cert_chain(self._options.tls_cert, self._options.tls_key)
        except (OSError, ssl.SSLError) as exc:
            raise Rejected(f"the files of 'tlsCa', 'tlsCert' and 'tlsKey' cannot be used: {exc}") from exc
        try:
            return context.wrap_socket(plain, server_hostname=server.host)
        except ssl.SSLCertVerificationError as exc:
            raise Rejected(f"the certificate of {server} is not trusted: {exc.verify_message}") from exc

    def _connect_fields(self, server: Server, info: dict[str, Any]) -> dict[str, Any]:
        """Fields of the CONNECT line, authentication included."""
        fields: dict[str, Any] = {
            "verbose": False, "pedantic": False, "echo": False, "headers": True, "no_responders": True,
            "lang": "python", "version": "1", "protocol": 1, "name": "spark-jetstream",
        }  # fmt: skip
        if self._options.credentials is not None:
            fields |= read_credentials(self._options.credentials).connect_fields(info.get("nonce", ""))
        elif self._options.nkey is not None:
            fields |= read_nkey(self._options.nkey).connect_fields(info.get("nonce", ""))
        elif server.token is not None:
            fields["auth_token"] = server.token
        elif server.user is not None:
            fields |= {"user": server.user, "pass": server.password}
        return fields


def _server_error(line: bytes, server: Server) -> JetStreamError:
    """Error for an `-ERR` line: Rejected if a retry cannot help, else ConnectionLost, since the server closes the connection."""
    text = line[4:].strip(b" '").decode("utf-8", "replace")
    lower = text.lower()
    if lower.startswith(("authorization", "authentication", "user authentication", "account authentication")):
        return Rejected(f"{server} rejected the credentials: {text}")
    if lower.startswith(("permissions violation", "maximum payload", "invalid", "unknown protocol")):
        return Rejected(f"{server} rejected the request: {text}")
    return ConnectionLost(text)
