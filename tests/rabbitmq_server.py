"""RabbitMQ servers for tests, from Debian's package (`scripts/setup-rabbitmq`)."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from postroad.api.queues import ENGINE, RABBITMQ
from postroad.runtime.embedded_server import free_port
from postroad.runtime.process_supervisor import _die_with_parent

_PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_START_SECONDS = 300.0


def is_installed() -> bool:
    return _PROGRAM.exists()


def is_skipped() -> bool:
    """Where the package cannot be installed, the tests are left out only if that is said: `POSTROAD_TEST_RABBITMQ=skip`."""
    return os.environ.get("POSTROAD_TEST_RABBITMQ") == "skip" and not is_installed()


needs_rabbitmq = pytest.mark.skipif(is_skipped(), reason="rabbitmq-server is not installed (scripts/setup-rabbitmq)")


BACKENDS = [ENGINE, pytest.param(RABBITMQ, marks=needs_rabbitmq)]


class RabbitServer:
    """A server that a test can kill, and start again on the same port and data. It has an epmd of its own, too."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self._folder, self._settings = folder, settings
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "home").mkdir(parents=True)
        (folder / "plugins").write_text("[].\n")
        self._configure()

    def _configure(self) -> None:
        folder, self._port = self._folder, free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self._port}/"
        lines = [f"listeners.tcp.1 = 127.0.0.1:{self._port}", "loopback_users = none", "log.file.level = warning"]
        (folder / "rabbitmq.conf").write_text("\n".join([*lines, *self._settings]) + "\n")
        self._environment = {
            **os.environ,
            "HOME": str(folder / "home"),
            "ERL_CRASH_DUMP": str(folder / "erl_crash.dump"),
            "RABBITMQ_NODENAME": f"t{uuid.uuid4().hex[:8]}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "ERL_EPMD_PORT": str(free_port()),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2 +sbwt none",
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
        }

    def start(self) -> "RabbitServer":
        """Return once it accepts connections. At its first start it may get other ports: another process can take a free one in
        the seconds until it listens."""
        for left in (2, 1, 0) if self.process is None else (0,):
            if self._started():
                return self
            if left:
                self._end_epmd()
                self._configure()
        raise AssertionError(f"RabbitMQ ended: {self.log[-500:]}")

    def _started(self) -> bool:
        """Start it; false if it ended instead."""
        assert is_installed(), "rabbitmq-server is not installed: scripts/setup-rabbitmq, or POSTROAD_TEST_RABBITMQ=skip"
        deadline = time.monotonic() + _START_SECONDS
        self.process = subprocess.Popen(
            [str(_PROGRAM)],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        while not self._is_listening():
            if self.process.poll() is not None:
                return False
            assert time.monotonic() < deadline, f"RabbitMQ did not start: {self.log[-500:]}"
            time.sleep(0.05)
        return True

    def _is_listening(self) -> bool:
        """Ready once it answers the protocol header: it listens a little before."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=5) as probe:
                probe.sendall(b"AMQP\x00\x00\x09\x01")
                return probe.recv(1) == b"\x01"
        except OSError:
            return False

    def _end_epmd(self) -> bool:
        """Ask Erlang's port mapper, which the server leaves behind, to end; as `epmd -kill` does, without a process."""
        try:
            with socket.create_connection(("127.0.0.1", int(self._environment["ERL_EPMD_PORT"])), timeout=5) as epmd:
                epmd.sendall(b"\x00\x01k")
                return epmd.recv(2) == b"OK"
        except ConnectionRefusedError:
            return True
        except OSError:
            return False

    def kill(self) -> None:
        """Like kill -9, of the server and what it has started."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def restart(self) -> None:
        """End it in order, and start it again."""
        assert self.process is not None
        self.process.terminate()
        self.process.wait(_START_SECONDS)
        self.start()

    def suspend(self) -> None:
        """Let it answer nothing, with its connections open, until `resume`."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.kill()
        if self.process is None:
            return
        for _ in range(50):  # refused until it has noticed that the server is gone
            if self._end_epmd():
                break
            time.sleep(0.1)
        shutil.rmtree(self._folder / "data", ignore_errors=True)

    @property
    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in (self._folder / "log").glob("*.log"))


@pytest.fixture(scope="session")
async def rabbit_server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RabbitServer]:
    """The RabbitMQ that the tests of one folder and worker share."""
    server = RabbitServer(tmp_path_factory.mktemp("rabbitmq"))
    try:
        if not is_skipped():
            await asyncio.to_thread(server.start)  # seconds, during which the gateways run
        yield server
    finally:
        await asyncio.to_thread(server.stop)
