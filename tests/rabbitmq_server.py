"""RabbitMQ servers for tests, from Debian's package (`scripts/setup-rabbitmq`)."""

import os
import shutil
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from postroad.runtime.embedded_server import free_port
from postroad.runtime.process_supervisor import _die_with_parent

_PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
_START_SECONDS = 300.0


def is_installed() -> bool:
    return _PROGRAM.exists()


needs_rabbitmq = pytest.mark.skipif(not is_installed(), reason="rabbitmq-server is not installed (scripts/setup-rabbitmq)")


class RabbitServer:
    """A server that a test can kill, and start again on the same port and data. It has an epmd of its own, too."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self._port}/"
        self.process: subprocess.Popen[bytes] | None = None
        (folder / "home").mkdir(parents=True)
        lines = [f"listeners.tcp.1 = 127.0.0.1:{self._port}", "loopback_users = none", "log.file.level = warning"]
        (folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (folder / "plugins").write_text("[].\n")
        self._environment = {
            **os.environ,
            "HOME": str(folder / "home"),
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
        """Return once it accepts connections."""
        self.process = subprocess.Popen(
            [str(_PROGRAM)],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_die_with_parent,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_listening():
            assert self.process.poll() is None, f"RabbitMQ ended with {self.process.returncode}: {self.log[-500:]}"
            assert time.monotonic() < deadline, f"RabbitMQ did not start: {self.log[-500:]}"
            time.sleep(0.05)
        return self

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
