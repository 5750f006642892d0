"""nats-server processes for tests: started as Postroad starts its own, ended by their handle and never by name."""

import asyncio
import socket
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from postroad.jetstream.connection import Connection
from postroad.runtime.embedded_server import EmbeddedServer, EmbeddedServerSettings, free_port
from postroad.runtime.process_supervisor import _die_with_parent
from tests.waiting import eventually

OpenConnection = Callable[[str], Awaitable[Connection]]


class Server:
    """A server that a test may kill, and start again on the same port and data."""

    def __init__(self, settings: EmbeddedServerSettings) -> None:
        self.settings = replace(settings, port=settings.port or free_port())
        self.child = EmbeddedServer(self.settings)
        self.command = self.child.prepare()
        self.url = self.child.url
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, seconds: float = 10) -> "Server":
        """Return once it can be reached."""
        pid_file = self.settings.data_dir / "nats" / "nats.pid"
        pid_file.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            self.command.argv,
            env=dict(self.command.env),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        give_up_at = time.monotonic() + seconds
        while not (pid_file.exists() and self._is_listening()):
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}: {self.log[-500:]}"
            assert time.monotonic() < give_up_at, f"the server did not start: {self.log[-500:]}"
            time.sleep(0.005)
        return self

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.settings.port)) == 0

    def kill(self) -> None:
        """As by kill -9: nothing is said to anyone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.kill()
        self.child.release()

    @property
    def log(self) -> str:
        path = self.settings.data_dir / "nats" / "nats.log"
        return path.read_text() if path.exists() else ""

    @property
    def store(self) -> Path:
        return self.settings.data_dir / "nats" / "jetstream"


def _is_down(connection: Connection) -> bool:
    return not connection.is_up


async def restart(server: Server, *links: Connection) -> None:
    """Kill it and start it again; return when the links have noticed both."""
    server.kill()
    for connection in links:
        await eventually(partial(_is_down, connection))
    server.start()
    for connection in links:
        async with asyncio.timeout(10):
            await connection.wait_up()


class Cable:
    """A TCP line to a server that can go deaf (answers are lost on the way) and be cut; then the client dials again."""

    def __init__(self, server_url: str) -> None:
        self._server = urlsplit(server_url)
        self._listener: asyncio.Server | None = None
        self._lines: set[asyncio.StreamWriter] = set()
        self.url = ""
        self.is_deaf = False
        self.swallowed = asyncio.Event()

    async def lay(self) -> "Cable":
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        port = self._listener.sockets[0].getsockname()[1]
        self.url = f"nats://{self._server.username}:{self._server.password}@127.0.0.1:{port}"
        return self

    async def _connected(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(self._server.hostname, self._server.port)
        self._lines |= {to_client, to_server}
        await asyncio.gather(self._carry(from_client, to_server), self._carry(from_server, to_client, are_answers=True))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, are_answers: bool = False) -> None:
        try:
            while chunk := await reader.read(65536):
                if are_answers and self.is_deaf:
                    self.swallowed.set()
                else:
                    writer.write(chunk)
        except OSError:
            pass
        finally:
            writer.close()

    def cut(self) -> None:
        """End every connection, and hear again from the next one on."""
        for writer in self._lines:
            writer.transport.abort()
        self._lines.clear()
        self.is_deaf = False

    def remove(self) -> None:
        self.cut()
        if self._listener is not None:
            self._listener.close()
