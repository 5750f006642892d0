"""Durable streams, compared with the reference server of the protocol (`@durable-streams/server`), in one run, on loopback.

    .venv/bin/python -m benchmarks.streams [appends|live|crowd|tail …] [--seconds 6] [--messages 200000]

Needs `sh scripts/setup-node` once, and wrk. Postroad has one worker and its callers a key; the reference has no authentication.

- appends: wrk, 64 connections, 100 bytes of JSON; the reference before and after, the ratio is to the mean of the two. In files
  it is compared with Postroad with an fsync before each response, in memory with `POSTROAD_SYNC=2s`.
- live: 500 SSE readers of 200 messages, by one writer that waits for each answer and by eight of them; then 20 messages a second,
  with which all can keep up. The trivial server (sse_ceiling.py) shows what readers and writers could do at most.
- crowd: 5,000 readers, 20 messages; what a reader costs in memory.
- tail: the last 10 messages of `--messages` beside the last 10 of 100. Filling takes a while: 200,000 appends are half a minute
  or more, 1,000,000 some minutes.
"""

import argparse
import contextlib
import http.client
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from tests.conformance.reference import reference_server

from benchmarks.harness import Load, Server, mean, postroad, table, wrk
from benchmarks.processor_time import processor_us, tree_seconds
from benchmarks.sse_readers import MARKER

CONNECTIONS = 64
BODY = '{"order":"4711","customer":"c-0815","items":["a","b","c"],"total":"129.90","note":"' + MARKER.decode()
BODY += "x" * (100 - len(BODY) - 2) + '"}'
READERS, MESSAGES = 500, 200
CROWD, CROWD_MESSAGES = 5000, 20
PACED = 20  # messages a second
LAST = 10


@dataclass(frozen=True, slots=True)
class Peer:
    """A stream server, and the process that serves requests; `first_pid` is that above all of its processes, if it is another."""

    name: str
    url: str
    headers: dict[str, str]
    pid: int
    first_pid: int = 0

    @property
    def root(self) -> int:
        return self.first_pid or self.pid

    def path(self, name: str) -> str:
        return f"/v1/stream/{name}"

    def live_path(self, name: str) -> str:
        return f"{self.path(name)}?offset=-1&live=sse"

    def create(self, *names: str) -> None:
        """Return once the streams exist: the file-backed reference may answer 404 for a while after 201."""
        with httpx.Client(base_url=self.url, headers=self.headers, timeout=30) as client:
            for name in names:
                client.put(self.path(name)).raise_for_status()
            for name in names:
                while client.head(self.path(name)).status_code == 404:
                    time.sleep(0.05)

    def tail(self, name: str) -> str:
        answer = httpx.head(self.url + self.path(name), headers=self.headers).raise_for_status()
        return answer.headers["Stream-Next-Offset"]

    def order(self, name: str, messages: int) -> list[int]:
        """The messages in stream order, which only the stream defines if there are several writers."""
        found = httpx.get(self.url + self.path(name), headers=self.headers).raise_for_status().json()
        if len(found) != messages:
            raise SystemExit(f"{len(found)} of {messages} messages were stored")
        return [int(message["note"][-6:]) for message in found]

    @property
    def memory_kib(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


JSON = {"Content-Type": "application/json"}


@contextlib.contextmanager
def ours(**environment: str) -> Iterator[Peer]:
    with postroad(**environment) as server:
        headers = {**JSON, "Authorization": f"Bearer {server.key}"}
        yield Peer("Postroad", server.url, headers, worker_of(server), server.pid)


def worker_of(server: Server) -> int:
    """The gateway process that listens on the port of this installation."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (process / "cmdline").read_bytes().split(b"\0")
            if (
                b"postroad.runtime.worker" in line
                and b"gateway" in line
                and str(server.home).encode() in (process / "environ").read_bytes()
            ):
                return int(process.name)
    raise SystemExit("the worker was not found")


@contextlib.contextmanager
def reference(kind: str) -> Iterator[Peer]:
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="reference-"))
        url, pid = stack.enter_context(reference_server(Path(folder) if kind == "files" else None))
        yield Peer(f"the reference in {kind}", url, JSON, pid)


@contextlib.contextmanager
def trivial() -> Iterator[Peer]:
    command = [sys.executable, "-m", "benchmarks.sse_ceiling"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Peer("the trivial server", process.stdout.readline().strip(), JSON, process.pid)
        finally:
            process.terminate()


# Appends


def append_script(peer: Peer, names: list[str]) -> str:
    """A wrk script that builds all requests before it sends the first one, to keep the load generator cheap."""
    headers = ",".join(f'["{name}"]="{value}"' for name, value in peer.headers.items())
    paths = ",".join(f'"{peer.path(name)}"' for name in names)
    return f"""
local paths, requests, turn = {{{paths}}}, {{}}, 0
function init(args)
  for i, path in ipairs(paths) do requests[i] = wrk.format("POST", path, {{{headers}}}, '{BODY}') end
end
function request() turn = turn % #requests + 1; return requests[turn] end
"""


def loaded(peer: Peer, path: str, connections: int, seconds: float, lua: str) -> Load:
    """Run wrk. Every request to Postroad must succeed; failed requests of other servers do not count."""
    before = tree_seconds(peer.root)
    load = wrk(peer.url + path, connections, seconds, lua)
    if load.failed and peer.name == "Postroad":
        raise SystemExit(f"{load.failed} requests to {peer.name} failed")
    done = load.per_second * seconds - load.failed
    return replace(load, per_second=done / seconds, processor_us=processor_us(peer.root, before, done))


def appended(peer: Peer, label: str, streams: int, seconds: float) -> Load:
    names = [f"{label}-{number}" for number in range(streams)]
    peer.create(*names)
    lua = append_script(peer, names)
    loaded(peer, "", CONNECTIONS, 1, lua)
    return loaded(peer, "", CONNECTIONS, seconds, lua)


def side_by_side(kind: str, sync: str, streams: int, seconds: float) -> tuple[Load, Load]:
    """Rates of Postroad, and of the reference as the mean of the runs before and after."""
    half = max(1, seconds // 2)
    with ours(POSTROAD_SYNC=sync) as postroad_peer, reference(kind) as peer:
        before = appended(peer, "before", streams, half)
        load = appended(postroad_peer, "bench", streams, seconds)
        after = appended(peer, "after", streams, half)
    return load, mean([before, after])


def appends_row(kind: str, sync: str, streams: int, seconds: float) -> list[object]:
    load, other = side_by_side(kind, sync, streams, seconds)
    what = f"{streams} stream{'s' if streams > 1 else ''}, sync {sync} (beside: {kind})"
    rates = f"{load.per_second:,.0f}", f"{other.per_second:,.0f}", f"{load.per_second / other.per_second:.2f}"
    return [what, *rates, f"{load.p99_ms:.1f}", f"{other.p99_ms:.1f}", other.failed]


def appends(chosen: argparse.Namespace) -> str:
    rows = [
        appends_row(kind, sync, streams, chosen.seconds)
        for kind, sync in (("files", "always"), ("memory", "2s"))
        for streams in (1, 64)
    ]
    return table(
        ["appends", "Postroad/s", "reference/s", "ratio", "Postroad p99 ms", "reference p99 ms", "reference failed"], rows
    )


# Live readers


@dataclass(frozen=True, slots=True)
class DeliveryRef:
    delivered: int
    per_second: float
    p50_ms: float
    p99_ms: float
    connect_seconds: float
    reader_kib: float
    processor_us: float


class Writer:
    """A connection that appends; each append is sent after the previous response, or when it is due."""

    def __init__(self, peer: Peer, name: str) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(peer.url).netloc, timeout=30)
        self._path, self._headers = peer.path(name), peer.headers

    def write(self, numbers: Iterable[int]) -> dict[int, float]:
        """Send times of the messages."""
        sent: dict[int, float] = {}
        for number in numbers:
            sent[number] = time.monotonic()
            self._connection.request("POST", self._path, numbered(number), self._headers)
            answer = self._connection.getresponse()
            answer.read()
            if answer.status not in (200, 201, 202, 204):
                raise SystemExit(f"an append was answered {answer.status}")
        return sent


def numbered(number: int) -> str:
    return BODY[:-8] + f'{number:06}"}}'


def paced(numbers: Iterable[int], per_second: float) -> Iterator[int]:
    started = time.monotonic()
    for number in numbers:
        time.sleep(max(0.0, started + number / per_second - time.monotonic()))
        yield number


def write_together(peer: Peer, name: str, messages: int, writers: int) -> dict[int, float]:
    numbers = iter(range(messages))
    with ThreadPoolExecutor(writers) as pool:
        sent: dict[int, float] = {}
        for one in [pool.submit(Writer(peer, name).write, numbers) for _ in range(writers)]:
            sent |= one.result()
    return sent


def delivered(peer: Peer, name: str, readers: int, messages: int, *, writers: int = 1, per_second: float = 0) -> DeliveryRef:
    peer.create(name)
    before_kib = peer.memory_kib
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "arrivals"
        headers = [f"{header}: {value}" for header, value in peer.headers.items() if header == "Authorization"]
        url = peer.url + peer.live_path(name)
        command = [sys.executable, "-m", "benchmarks.sse_readers", url, str(readers), str(messages), str(file), *headers]
        started = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            if process.stdout.readline() != "connected\n":
                raise SystemExit("the readers could not connect")
            connect_seconds = time.monotonic() - started
            reader_kib = (peer.memory_kib - before_kib) / readers
            before = tree_seconds(peer.root)
            if per_second:
                sent = Writer(peer, name).write(paced(range(messages), per_second))
            else:
                sent = write_together(peer, name, messages, writers)
            process.wait()
            used = tree_seconds(peer.root) - before
        arrivals = array("d", file.read_bytes())
    order = [sent[number] for number in peer.order(name, messages)]
    latencies = sorted(1000 * (at - order[position % messages]) for position, at in enumerate(arrivals) if at)
    if len(latencies) < 2:
        raise SystemExit(f"{messages} messages were stored, {len(latencies)} delivered")
    elapsed = max(arrivals) - min(order)
    p50, p99 = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
    cost = used / len(latencies) * 1e6
    return DeliveryRef(len(latencies), len(latencies) / elapsed, p50, p99, connect_seconds, reader_kib, cost)


def live(_chosen: argparse.Namespace) -> str:
    """Measure each server twice, alternating, so that other load does not affect only one of them."""
    fast: dict[tuple[str, int], list[DeliveryRef]] = {}
    with ours() as fsynced, ours(POSTROAD_SYNC="2s") as postroad_peer, reference("memory") as peer, trivial() as least:
        everyone = {"Postroad, sync always": fsynced, "Postroad, sync 2s": postroad_peer, "reference, memory": peer}
        everyone |= {"trivial server (the most that can be measured)": least}
        for turn, writers, (name, one) in itertools.product((1, 2), (1, 8), everyone.items()):
            fast.setdefault((name, writers), []).append(
                delivered(one, f"fast-{writers}-{turn}", READERS, MESSAGES, writers=writers)
            )
        calm = {name: delivered(one, "calm", READERS, 5 * PACED, per_second=PACED) for name, one in everyone.items()}
    rows = []
    for (name, writers), both in sorted(fast.items(), key=lambda item: item[0][1]):
        rate = statistics.mean(one.per_second for one in both)
        base = statistics.mean(one.per_second for one in fast["reference, memory", writers])
        missing = READERS * MESSAGES - min(one.delivered for one in both)
        p99 = statistics.mean(one.p99_ms for one in both)
        rows.append([name, writers, f"{rate:,.0f}", f"{rate / base:.2f}", f"{p99:.1f}", missing])
    rows += [[name, f"{PACED}/s", f"{one.per_second:,.0f}", "", f"{one.p99_ms:.1f}", ""] for name, one in calm.items()]
    return table([f"{READERS} SSE readers x {MESSAGES}", "writers", "delivered/s", "ratio", "p99 ms", "missing"], rows)


def crowd(_chosen: argparse.Namespace) -> str:
    rows = []
    sides: list[tuple[str, Callable[[], contextlib.AbstractContextManager[Peer]]]] = [
        ("Postroad, one worker", ours),
        ("reference, memory", lambda: reference("memory")),
    ]
    for what, side in sides:
        with side() as peer:
            delivered(peer, "warm", 50, 20)  # so that memory of the process itself does not count as the readers'
            found = delivered(peer, "crowd", CROWD, CROWD_MESSAGES, per_second=2)
        missing = CROWD * CROWD_MESSAGES - found.delivered
        numbers = [f"{found.connect_seconds:.1f}", missing, f"{found.p50_ms:.0f}", f"{found.p99_ms:.0f}"]
        rows.append([what, *numbers, f"{found.reader_kib:.1f}"])
    head = [f"{CROWD:,} SSE readers x {CROWD_MESSAGES}, 2/s", "all connected after s", "missing", "p50 ms", "p99 ms"]
    return table([*head, "KiB per reader"], rows)


# The tail of a long stream


def fill(peer: Peer, name: str, count: int) -> int:
    """Make at least `count` single appends; return their number."""
    peer.create(name)
    lua, done = append_script(peer, [name]), 0
    while done < count:
        seconds = 1 if not done else max(1, min(10, (count - done) // 5000))
        done += int(loaded(peer, "", CONNECTIONS, seconds, lua).per_second * seconds)
    return done


def last_ten(peer: Peer, name: str) -> str:
    """Append ten messages; return the path that reads exactly these."""
    offset = peer.tail(name)
    Writer(peer, name).write(range(LAST))
    path = f"{peer.path(name)}?offset={offset}"
    found = httpx.get(peer.url + path, headers=peer.headers).raise_for_status().json()
    if len(found) != LAST:
        raise SystemExit(f"{len(found)} messages came, not {LAST}")
    return path


def tail(chosen: argparse.Namespace) -> str:
    """Measure the short and the long stream in turns. Neither has the newest message of all: ten seconds after the last write the
    nats-server evicts the block with that message from memory, and loads it again for each read to its end (the last row).
    """
    half = max(1, chosen.seconds // 2)
    with ours(POSTROAD_SYNC="2s") as peer:
        peer.create("short", "other")
        Writer(peer, "short").write(range(90))
        filled = fill(peer, "long", chosen.messages)
        paths = {"short": last_ten(peer, "short"), "long": last_ten(peer, "long")}
        Writer(peer, "other").write(range(1))
        lua = f'wrk.headers["Authorization"] = "{peer.headers["Authorization"]}"'
        loaded(peer, paths["short"], 1, 1, lua)
        loads: dict[str, list[Load]] = {"short": [], "long": [], "idle": []}
        for name in ("short", "long") * 3:
            loads[name].append(loaded(peer, paths[name], 1, half, lua))
        path = last_ten(peer, "long")
        time.sleep(13)
        loads["idle"].append(loaded(peer, path, 1, half, lua))
    rate = {name: statistics.median(load.per_second for load in found) for name, found in loads.items()}
    p50 = {name: statistics.median(load.p50_ms for load in found) for name, found in loads.items()}
    labels = {"short": "of 100", "long": f"of {filled:,}", "idle": f"of {filled:,}, the newest of all, 13 s after it was written"}
    rows = [
        [label, f"{rate[name]:,.0f}", f"{p50[name]:.2f}", f"{rate[name] / rate['short']:.2f}"] for name, label in labels.items()
    ]
    return table(["the last 10", "reads/s, one connection", "p50 ms", "ratio"], rows)


PARTS: dict[str, Callable[[argparse.Namespace], str]] = {"appends": appends, "live": live, "crowd": crowd, "tail": tail}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all, unless some are named")
    parser.add_argument("--seconds", type=int, default=6, help="per measurement with wrk, an even number")
    parser.add_argument("--messages", type=int, default=200_000, help="in the long stream of `tail`")
    chosen = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the servers inherit it
    for name in chosen.parts or PARTS:
        print(PARTS[name](chosen), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
