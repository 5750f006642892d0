"""Shared by the peers: requests, running queue servers, and processes that end with the benchmark."""

import contextlib
import functools
import http.client
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

ROOT = Path(__file__).parents[2]
HOME = ROOT / "build" / "peers"  # where scripts/setup-peers installs servers that are not Debian packages

_HEAD = '{"orderId":10003,"customer":"cust-3","lines":[{"sku":"a-1","n":2},{"sku":"b-7","n":1}],"total":"129.90","note":"'
PAYLOAD = _HEAD + "x" * (200 - len(_HEAD) - 2) + '"}'  # the same 200 bytes of JSON for all servers
JSON = {"Content-Type": "application/json"}

FSYNC, INTERVAL, MEMORY = "fsync", "interval", "memory"  # durability of a successful response


class Unavailable(Exception):
    """The peer cannot run on this machine; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    body: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def encoded(self, host: str) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1", f"Host: {host}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        body = self.body.encode()
        return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


@dataclass(frozen=True, slots=True)
class Queue:
    """A running queue server. `taken` counts the messages in the response to a pull; `ack` builds the request that acknowledges
    them, and is None if reading a message deletes it. `of_batches` makes the requests for several messages at once, None for
    more than the server allows.
    """

    url: str
    publish: Request
    pull: Request
    taken: Callable[[bytes], int]
    ack: Callable[[bytes], Request] | None = None
    of_batches: "Callable[[int], Queue | None]" = lambda _size: None


@dataclass(frozen=True, slots=True)
class Peer:
    """A queue server to be measured: `promise` is FSYNC, INTERVAL or MEMORY, `says` its description, `one_pull` that of one
    pull operation. `setup` is its name in scripts/setup-peers.
    """

    name: str
    promise: str
    says: str
    one_pull: str
    setup: str
    version: Callable[[], str]
    running: Callable[[], contextlib.AbstractContextManager[Queue]]


def install(setup: str) -> None:
    """Run the setup script, once. Raises Unavailable with the script's last line."""
    if problem := _problem(setup):
        raise Unavailable(problem)


@functools.cache
def _problem(setup: str) -> str:
    if not setup:
        return ""
    done = subprocess.run(["sh", str(ROOT / "scripts" / "setup-peers"), setup], stderr=subprocess.PIPE, text=True)
    said = done.stderr.strip().splitlines() or [f"scripts/setup-peers {setup} failed"]
    return said[-1] if done.returncode else ""


def debian_version(package: str) -> str:
    command = ["dpkg-query", "-W", "-f", "${Version}", package]
    with contextlib.suppress(FileNotFoundError):
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "?"
    return "?"


def python_version(package: str) -> str:
    found = next((HOME / "venv").glob(f"lib/python3*/site-packages/{package}-*.dist-info"), None)
    return found.name.removesuffix(".dist-info").removeprefix(f"{package}-") if found else "?"


@contextlib.contextmanager
def folder(name: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix=f"bench-{name}-", ignore_cleanup_errors=True) as path:
        yield Path(path)


@contextlib.contextmanager
def process(command: Sequence[str | Path], home: Path, environment: Mapping[str, str] | None = None) -> Iterator[int]:
    """Run the process in its own process group, with its output in a file of `home`; terminate it afterwards, or kill it."""
    log = home / f"{Path(command[0]).name}.log"
    with log.open("wb") as out:
        running = subprocess.Popen(
            command, cwd=home, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield running.pid
    except Unavailable as problem:
        if running.poll() is None:
            raise
        raise Unavailable(f"{problem}; it ended and said: {_last_line(log)}") from problem
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(15)
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def _last_line(log: Path) -> str:
    return (log.read_text(errors="replace").strip().splitlines() or ["nothing"])[-1][:300]


def answered(url: str, request: Request) -> tuple[int, bytes]:
    parts = urlsplit(url)
    with contextlib.closing(http.client.HTTPConnection(parts.netloc, timeout=10)) as connection:
        connection.request(request.method, request.path, request.body.encode(), dict(request.headers))
        answer = connection.getresponse()
        return answer.status, answer.read()


def settled(url: str, request: Request) -> bytes:
    """The body of the response, which must be successful."""
    status, body = answered(url, request)
    if status >= 300:
        raise Unavailable(f"{request.method} {request.path} was answered {status}: {body[:200].decode(errors='replace')}")
    return body


def wait_for(url: str, request: Request, seconds: float = 60) -> None:
    """Wait for a successful response of the server."""
    until = time.monotonic() + seconds
    last = "it did not listen"
    while time.monotonic() < until:
        with contextlib.suppress(OSError, http.client.HTTPException):
            status, _ = answered(url, request)
            if status < 300:
                return
            last = f"{request.path} was answered {status}"
        time.sleep(0.1)
    raise Unavailable(f"it was not ready after {seconds:g} s: {last}")


def text_of(pattern: bytes, body: bytes) -> str:
    """The first group of the pattern: a JSON string without its quotes, still escaped."""
    found = re.search(pattern, body)
    if found is None:
        raise Unavailable(f"an answer is not as expected: {body[:200].decode(errors='replace')}")
    return found[1].decode()


def texts_of(pattern: bytes, body: bytes) -> list[str]:
    """Like `text_of`, all that are found."""
    return [found.decode() for found in re.findall(pattern, body)]


def encoded(value: object) -> str:
    return msgspec.json.encode(value).decode()
