"""Shared by the benchmarks: a Postroad installation in a temporary directory, wrk, and tables."""

import contextlib
import os
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import time
import tomllib
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.interpreter import measured_python
from postroad.container import connection_settings
from postroad.jetstream.connection import ConnectionSettings
from postroad.runtime.embedded_server import free_port, with_running_engine
from postroad.settings import Settings


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    key: str
    home: Path
    pid: int  # of the supervisor

    @property
    def engine(self) -> ConnectionSettings:
        """For a connection to the child server."""
        return connection_settings(with_running_engine(Settings.of(data_dir=self.home)), "benchmark")


@contextlib.contextmanager
def postroad(**environment: str) -> Iterator[Server]:
    """Run `postroad up` on free ports in a temporary directory, without the pipeline."""
    home = Path(tempfile.mkdtemp(prefix="postroad-bench-"))
    port = free_port()
    ours = {
        "POSTROAD_PORT": str(port),
        "POSTROAD_DATA_DIR": str(home),
        "POSTROAD_LOG_LEVEL": "error",
        "POSTROAD_PIPELINE": "false",
    }
    env = {**os.environ, **ours, **environment}
    process = subprocess.Popen([measured_python(), "-m", "postroad", "up"], env=env, stdout=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_ready(url)
        yield Server(url, tomllib.loads((home / "credentials.toml").read_text())["tenant_key"], home, process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        shutil.rmtree(home, ignore_errors=True)


def _wait_ready(url: str) -> None:
    until = time.monotonic() + 120  # a busy machine
    while time.monotonic() < until:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/readyz", timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise SystemExit("Postroad did not become ready")


@dataclass(frozen=True, slots=True)
class Load:
    """`processor_us`: of all processes of the server, per request or message, if it was measured."""

    per_second: float
    p50_ms: float
    p99_ms: float
    failed: int
    processor_us: float | None = None


def mean(loads: Sequence[Load]) -> Load:
    costs = [load.processor_us for load in loads if load.processor_us is not None]
    return Load(
        statistics.mean(load.per_second for load in loads),
        statistics.mean(load.p50_ms for load in loads),
        statistics.mean(load.p99_ms for load in loads),
        sum(load.failed for load in loads),
        statistics.mean(costs) if costs else None,
    )


def wrk(url: str, connections: int, seconds: float, script: str = "") -> Load:
    """One run of wrk with one thread. Raises SystemExit if wrk is not installed."""
    if shutil.which("wrk") is None:
        raise SystemExit("these measurements need wrk (Debian: apt-get install wrk)")
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as lua:
        lua.write(script)
        lua.flush()
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", lua.name]
        command += ["--timeout", "30s", url]  # slower responses are missing from the latencies; wrk's default is 2 s
        text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 60).stdout
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    return Load(
        float(_found(r"Requests/sec:\s+([\d.]+)", text)),
        _milliseconds(_found(r"\n +50% +(\S+)", text)),
        _milliseconds(_found(r"\n +99% +(\S+)", text)),
        int(failed[1]) if failed else 0,
    )


def _found(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise SystemExit(f"wrk said:\n{text}")
    return found[1]


def _milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000}[unit]


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)
