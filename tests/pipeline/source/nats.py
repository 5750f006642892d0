"""A nats-server for these tests, with any configuration; what tests ask of it; and a line to it that breaks."""

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from postroad.pipeline.source import wire
from postroad.pipeline.source.client import Client
from postroad.pipeline.source.jetstream import Api
from postroad.pipeline.source.options import Connection, ReadOptions, read_options
from postroad.pipeline.source.publish import Message, Publisher
from postroad.runtime.embedded_server import find_server, free_port
from postroad.runtime.process_supervisor import _die_with_parent


class Nats:
    """A server on a free port. `options` is what the data source needs to be let in, `url` included."""

    def __init__(self, home: Path, configuration: str = "", options: dict[str, str] | None = None) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._log = home / "nats.log"
        self._file = home / "nats.conf"
        self._file.write_text(
            f'listen: "127.0.0.1:{self.port}"\nlog_file: "{self._log}"\n'
            f'jetstream {{ store_dir: "{home / "store"}"{_DOMAIN if "#domain" in configuration else ""} }}\n{configuration}\n'
        )
        self.options = {"url": f"nats://127.0.0.1:{self.port}", "timeoutSeconds": "5", **(options or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Client | None = None

    @property
    def url(self) -> str:
        return self.options["url"]

    def start(self) -> "Nats":
        command = [str(find_server()), "-c", str(self._file)]
        self._process = subprocess.Popen(command, preexec_fn=_die_with_parent)
        give_up_at = time.monotonic() + 15
        while socket.socket().connect_ex(("127.0.0.1", self.port)):
            assert self._process.poll() is None, self._log.read_text()[-800:]
            assert time.monotonic() < give_up_at, "the server did not start"
            time.sleep(0.02)
        return self

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def connection(self) -> Connection:
        return self.reading("any").connection

    def reading(self, stream: str, *, is_streaming: bool = False, **more: str | int) -> ReadOptions:
        given = {**self.options, "stream": stream, **{name: str(value) for name, value in more.items()}}
        return read_options(given, is_streaming=is_streaming)

    def ask(self, call: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if self._client is None:
            self._client = Client(self.connection)
        return self._client.with_retries(lambda client: Api(client, self.connection.api_prefix).ask(call, body, call))

    def create(self, stream: str, **more: object) -> str:
        config = {"name": stream, "subjects": [f"{stream}.>"], "allow_direct": True, **more}
        answer: str = self.ask(f"STREAM.CREATE.{stream}", config)["created"]
        return answer

    def fill(self, stream: str, count: int, subject: str = "a") -> None:
        """Messages whose data is their place, from 1 on."""
        self.publish(Message(f"{stream}.{subject}".encode(), b"", b"%d" % place) for place in range(1, count + 1))

    def put(self, subject: str, data: bytes = b"", **headers: str) -> None:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self.publish([Message(subject.encode(), wire.header_block(lines.encode()), data)])

    def publish(self, messages: Iterable[Message]) -> None:
        with Client(self.connection) as client:
            Publisher(client, 1000).publish(messages)

    def delete(self, stream: str, *sequences: int) -> None:
        for sequence in sequences:
            self.ask(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})

    def purge(self, stream: str, below: int) -> None:
        """As retention would: what is before a sequence goes."""
        self.ask(f"STREAM.PURGE.{stream}", {"seq": below})

    def remake(self, stream: str, **more: object) -> str:
        self.ask(f"STREAM.DELETE.{stream}")
        return self.create(stream, **more)

    def state(self, stream: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.ask(f"STREAM.INFO.{stream}")["state"]
        return answer


_DOMAIN = ", domain: hub"


class Proxy:
    """A line to a server that is cut when so many bytes have come over it, as many times as wanted."""

    def __init__(self, port: int, *, bytes_each: int, cuts: int) -> None:
        self._port, self._bytes_each = port, bytes_each
        self.cuts_left = cuts
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.connections += 1
                far = socket.create_connection(("127.0.0.1", self._port))
                threading.Thread(target=self._carry, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._carry, args=(far, near, True), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, are_answers: bool) -> None:
        left = self._bytes_each if are_answers and self.cuts_left > 0 else -1
        with contextlib.suppress(OSError):
            while piece := source.recv(65_536):
                if 0 <= left <= len(piece):
                    self.cuts_left -= 1
                    target.sendall(piece[:left])
                    break
                left -= len(piece) if left >= 0 else 0
                target.sendall(piece)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self._listener.close()
