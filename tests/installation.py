"""A whole Postroad as an operator starts it: `postroad up` in a directory of its own, with processes that a test may kill."""

import asyncio
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import aiohttp

from postroad.jetstream.connection import ConnectionSettings
from postroad.runtime.embedded_server import free_port
from tests.network import LOOPBACK
from tests.waiting import eventually


class Installation:
    def __init__(self, home: Path, *arguments: str, **environment: str) -> None:
        self.home = home
        self.host = LOOPBACK  # may be set before the start
        self.port = free_port()
        self._arguments = arguments or ("up",)
        self._environment = environment
        self.process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        scheme = "https" if "POSTROAD_TLS_CERT" in self._environment else "http"
        return f"{scheme}://{self.host.address}:{self.port}"

    def start(self) -> "Installation":
        env = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
        env |= {"POSTROAD_PORT": str(self.port), "POSTROAD_DATA_DIR": str(self.home / "var"), "POSTROAD_PIPELINE": "false"}
        env |= {"POSTROAD_HOST": self.host.address} | self._environment
        self.process = subprocess.Popen(
            [*self.host.prefix, sys.executable, "-m", "postroad", *self._arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            cwd=self.home,
            stdout=(self.home / "output").open("w"),
            stderr=(self.home / "log").open("a"),
            text=True,
        )
        return self

    async def ready(self, seconds: float = 60) -> "Installation":
        async def answers() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.log()[-1000:]}"
            if "is ready" not in self.output():
                return False
            try:
                async with aiohttp.ClientSession() as session, session.get(f"{self.url}/readyz", ssl=False) as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        await eventually(answers, seconds)
        return self

    def output(self) -> str:
        """What the latest start has printed so far."""
        return (self.home / "output").read_text()

    def log(self) -> str:
        return (self.home / "log").read_text()

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def credentials(self) -> dict[str, str]:
        return tomllib.loads((self.home / "var" / "credentials.toml").read_text())

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.credentials['tenant_key']}"}

    @property
    def nats_url(self) -> str:
        return (self.home / "var" / "engine.url").read_text()

    @property
    def nkey_file(self) -> Path:
        return self.home / "var" / "nats" / "user.nk"

    @property
    def engine(self) -> ConnectionSettings:
        """For a connection to its embedded server."""
        return ConnectionSettings((self.nats_url,), name="tests", nkey_file=self.nkey_file)

    def children(self, word: str) -> list[int]:
        """The processes that it started whose command line has this word."""
        pids = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [int(pid) for pid in pids if word in _command_line(int(pid))]

    @property
    def engine_pid(self) -> int:
        return self.children("nats-server")[0]

    @property
    def worker_pids(self) -> list[int]:
        """The workers that answer on its port."""
        return self.children("postroad.runtime.worker gateway")

    @property
    def background_pids(self) -> list[int]:
        """The processes for control and delivery."""
        return self.children("postroad.runtime.worker control") + self.children("postroad.runtime.worker delivery")

    async def stop(self, number: int = signal.SIGINT, seconds: float = 30) -> tuple[int, str]:
        """Its exit code and what it printed."""
        assert self.process is not None
        self.process.send_signal(number)
        code = await asyncio.to_thread(self.process.wait, seconds)
        return code, self.output()

    def end(self) -> None:
        """For clean-up: gone, whatever state it is in. Its children go with it."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
