"""nats-server processes for tests, started like the embedded server, and a TCP proxy that loses replies."""

import asyncio
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.runtime.embedded_server import EmbeddedServer, EmbeddedServerSettings, free_port
from postroad.runtime.process_supervisor import _die_with_parent
from tests.waiting import eventually

_USER, _PASSWORD = "tests", "only-on-loopback"
_ANSWER_SECONDS = 40.0  # far more than a healthy server needs on a busy machine
_ASK_SECONDS = 15.0
OpenConnection = Callable[[str | ConnectionSettings], Awaitable[Connection]]


def _is_stopped(pid: int) -> bool:
    """Whether every thread of the process is stopped by a signal."""
    return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in Path(f"/proc/{pid}/task").glob("*/stat"))


class Server:
    """A server that a test can kill, and start again on the same port and data. Its `url` contains the password of a second user,
    so that clients need nothing else."""

    def __init__(self, settings: EmbeddedServerSettings) -> None:
        self.settings = replace(settings, port=settings.port or free_port())
        self.child = EmbeddedServer(self.settings)
        self.command = self.child.prepare()
        configuration = self.settings.data_dir / "nats" / "nats.conf"
        user = f'users: [ {{ user: "{_USER}", password: "{_PASSWORD}" }}, '
        configuration.write_text(configuration.read_text().replace("users: [", user))
        self.url = self.child.url.replace("//", f"//{_USER}:{_PASSWORD}@")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, seconds: float = 10) -> "Server":
        """Return once it accepts connections."""
        pid_file = self.settings.data_dir / "nats" / "nats.pid"
        pid_file.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            self.command.argv,
            env=dict(self.command.env),
            pass_fds=self.command.pass_fds,
            stdin=subprocess.DEVNULL,
            stderr=(self.settings.data_dir / "nats" / "stderr").open("ab"),
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        deadline = time.monotonic() + seconds
        while not (pid_file.exists() and self._is_listening()):
            assert self.process.poll() is None, f"the server ended with {self.process.returncode}: {self.log[-500:]}"
            assert time.monotonic() < deadline, f"the server did not start: {self.log[-500:]}"
            time.sleep(0.005)
        return self

    def _is_listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.settings.port)) == 0

    def kill(self) -> None:
        """Like kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop every thread of the server inside the block: a signal takes effect after the call that sends it."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            deadline = time.monotonic() + 10
            while not _is_stopped(self.process.pid):
                assert time.monotonic() < deadline, "the server was not suspended"
                time.sleep(0.001)
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

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

    def _answers(self, seconds: float) -> bool:
        """True if JetStream describes all its streams, or the server has ended. A stream that is stuck blocks this."""
        login = f'CONNECT {{"user": "{_USER}", "pass": "{_PASSWORD}", "verbose": false}}\r\nSUB answer 1\r\n'
        try:
            with socket.create_connection(("127.0.0.1", self.settings.port), seconds) as connection:
                connection.sendall(login.encode())
                reader, offset, total = connection.makefile("rb"), 0, 1
                while offset < total:
                    body = b'{"offset": %d}' % offset
                    connection.sendall(b"PUB $JS.API.STREAM.LIST answer %d\r\n%b\r\n" % (len(body), body))
                    while not (line := reader.readline()).startswith(b"MSG "):
                        if not line:
                            return True
                    page = json.loads(reader.read(int(line.split()[-1])))
                    offset, total = offset + max(1, len(page["streams"] or ())), page["total"]
                return True
        except TimeoutError:
            return False
        except OSError:
            return True

    @contextmanager
    def kept_running(self, report: Path) -> Iterator[None]:
        """Start the server again if it ends, or answers nothing for long, inside the block. Write what it printed to `report`."""
        ended = threading.Event()

        def watch() -> None:
            asked_at = time.monotonic()
            while not ended.wait(1):
                assert self.process is not None
                is_due = time.monotonic() > asked_at + _ASK_SECONDS
                if is_due:
                    asked_at = time.monotonic()
                if is_due and self.process.poll() is None and not self._answers(_ANSWER_SECONDS):
                    self.process.send_signal(signal.SIGABRT)  # it prints what each goroutine does
                    self.process.wait()
                if self.process.poll() is not None:
                    printed = (self.settings.data_dir / "nats" / "stderr").read_text(errors="replace")
                    report.write_text(
                        f"The server ended with {self.process.returncode}.\n{printed[-20_000:]}\n{self.log[-20_000:]}"
                    )
                    self.start()

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            watching.join()

    @property
    def store(self) -> Path:
        return self.settings.data_dir / "nats" / "jetstream"


def _is_down(connection: Connection) -> bool:
    return not connection.is_up


async def restart(server: Server, *connections: Connection) -> None:
    """Kill and start a server; return when the connections have noticed both."""
    server.kill()
    for connection in connections:
        await eventually(partial(_is_down, connection))
    server.start()
    for connection in connections:
        async with asyncio.timeout(30):
            await connection.wait_up()


class TcpProxy:
    """A TCP proxy to a server that can drop replies and cut connections, after which the client reconnects."""

    def __init__(self, server_url: str) -> None:
        self._server = urlsplit(server_url)
        self._listener: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""
        self.drops_replies = False
        self.dropped = asyncio.Event()

    async def start(self) -> "TcpProxy":
        self._listener = await asyncio.start_server(self._on_connect, "127.0.0.1", 0)
        port = self._listener.sockets[0].getsockname()[1]
        self.url = f"nats://{self._server.username}:{self._server.password}@127.0.0.1:{port}"
        return self

    async def _on_connect(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        from_server, to_server = await asyncio.open_connection(self._server.hostname, self._server.port)
        self._writers |= {to_client, to_server}
        await asyncio.gather(self._forward(from_client, to_server), self._forward(from_server, to_client, are_replies=True))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, are_replies: bool = False) -> None:
        try:
            while chunk := await reader.read(65536):
                if are_replies and self.drops_replies:
                    self.dropped.set()
                else:
                    writer.write(chunk)
        except OSError:
            pass
        finally:
            writer.close()

    def cut(self) -> None:
        """Abort all connections; new ones do not drop replies."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()
        self.drops_replies = False

    def stop(self) -> None:
        self.cut()
        if self._listener is not None:
            self._listener.close()
