"""Endurance: a whole Postroad under a steady, mixed load, and whether its processes take more and more memory or descriptors.

    python -m tests.soak --seconds 600      # `make soak`

Every few seconds, once it is warm, the resident memory and the open descriptors of each process are noted. In the end those of
the first third are held against those of the last: memory grows if it is more than a tenth and more than 16 MiB up, descriptors
if they are more than 8 up. The engine may take 64 MiB: it was seen to take 40 in ten minutes, and why is not known yet. Exit code
1 if something grows, a process was started anew, or an answer was a server's error.

What is meant to grow is kept from doing so, or left out: events are trimmed every 20 seconds, as a pipeline would; idempotency
keys count for two seconds; and the pages of the jobs' file that its process keeps in memory, up to 64 MiB, do not count.
"""

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from postroad.jetstream.connection import Connection
from postroad.jetstream.management import purge_stream
from postroad.telemetry.frames import STREAMS
from tests.http.small import raw_connection
from tests.installation import Installation

MIB = 1024 * 1024
SAMPLE_SECONDS = 2.0
TRIM_SECONDS = 20.0
QUEUES = [f"/v1/queues/soak-{number}" for number in range(5)]
JOBS_CACHE_BYTES = 64 * MIB  # as `postroad.jobs.store` asks SQLite for
MEMORY_SHARE, MEMORY_BYTES, ENGINE_BYTES, DESCRIPTORS = 0.10, 16 * MIB, 64 * MIB, 8
_PAGE = os.sysconf("SC_PAGE_SIZE")
_ROOT = "/v1/default"
_TEXT = {"Content-Type": "text/plain"}
_BAD_BODIES = (b"{", b'{"payload": "\xff"}', b"[" * 5000, b'{"payload": 1, "other": 2}', b'{"payload": ' + b" " * 100_000)


@dataclass(frozen=True, slots=True)
class Sample:
    at: float
    memory: int
    descriptors: int


@dataclass(slots=True)
class Watched:
    """A process, and what was seen of it."""

    name: str
    pid: int
    cached: Callable[[], int] = lambda: 0
    room: int = MEMORY_BYTES
    samples: list[Sample] = field(default_factory=list)

    def sample(self) -> None:
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        open_now = len(list(Path(f"/proc/{self.pid}/fd").iterdir()))
        self.samples.append(Sample(time.monotonic(), pages * _PAGE - self.cached(), open_now))

    def thirds(self, of: Callable[[Sample], int]) -> tuple[float, float]:
        """The median of the first third and that of the last: single peaks do not count."""
        third = max(1, len(self.samples) // 3)
        return statistics.median(map(of, self.samples[:third])), statistics.median(map(of, self.samples[-third:]))

    def slope(self) -> float:
        """Bytes of memory an hour, by the line through all samples."""
        if len(self.samples) < 2:
            return 0.0
        return statistics.linear_regression([one.at for one in self.samples], [one.memory for one in self.samples]).slope * 3600

    @property
    def grows(self) -> list[str]:
        before, after = self.thirds(lambda one: one.memory)
        found = ["memory"] if after - before > max(self.room, MEMORY_SHARE * before) else []
        before, after = self.thirds(lambda one: one.descriptors)
        return found + (["descriptors"] if after - before > DESCRIPTORS else [])

    def line(self) -> str:
        memory, descriptors = self.thirds(lambda one: one.memory), self.thirds(lambda one: one.descriptors)
        return (
            f"{self.name:<12} {memory[0] / MIB:8.1f} → {memory[1] / MIB:7.1f} MiB ({self.slope() / MIB:+7.1f} MiB/h by the line)"
            f" {descriptors[0]:6.0f} → {descriptors[1]:4.0f} descriptors   {' and '.join(self.grows) or 'nothing'} grows"
        )


class Load:
    """Everybody who calls. Each kind of work has its own pace; what is answered is counted by kind and status."""

    def __init__(self, running: Installation, session: aiohttp.ClientSession) -> None:
        self._running, self._session = running, session
        self._numbers = itertools.count()
        self.answers: Counter[tuple[str, int]] = Counter()
        self.late: Counter[str] = Counter()

    def kinds(self) -> list[tuple[str, float, Callable[[], Awaitable[None]]]]:
        """Name, times a second, work."""
        return [
            ("messages", 15, self._message),
            ("batches", 1, self._batch),
            ("streams", 10, self._append),
            ("lives of streams", 0.5, self._life),
            ("live readers", 4, self._follow),
            ("sessions", 2, self._run_session),
            ("keys", 2, self._keys),
            ("bad requests", 8, self._bad),
            ("not HTTP", 2, self._not_http),
            ("gone clients", 2, self._gone),
        ]

    async def run(self, seconds: float) -> None:
        await self._call("set-up", "PUT", "/v1/stream/soak/0", headers=_TEXT)
        for queue in QUEUES:
            await self._call("set-up", "PUT", queue, {"dedupeWindowMs": 2000})
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as kinds:
            for name, rate, work in self.kinds():
                kinds.create_task(self._paced(name, 1 / rate, work, until))

    async def _paced(self, name: str, pause: float, work: Callable[[], Awaitable[None]], until: float) -> None:
        """One after the other. Who is late does not catch up: the load is steady, whatever the machine can do."""
        due = time.monotonic()
        while due < until:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            await work()
            due += pause
            if due < time.monotonic():
                self.late[name] += 1
                due = time.monotonic()

    async def _call(self, kind: str, method: str, path: str, body: Any = None, **more: Any) -> Any:
        async with self._session.request(method, path, json=body, **more) as answer:
            self.answers[kind, answer.status] += 1
            if "json" in answer.content_type and answer.content_length != 0:
                return await answer.json(content_type=None)
            return await answer.read()

    async def _message(self) -> None:
        queue = QUEUES[next(self._numbers) % len(QUEUES)]
        body = {"payload": "x" * 500, "idempotencyKey": f"k{next(self._numbers)}", "headers": {"a": "b"}}
        await self._call("publish", "POST", f"{queue}/messages", body)
        pulled = await self._call("pull", "POST", f"{queue}/pull", {"maxMessages": 20, "waitMs": 100})
        receipts = [message["receiptId"] for message in pulled.get("messages", [])]
        if receipts:
            await self._call("ack", "POST", f"{queue}/ack", {"receiptIds": receipts})

    async def _batch(self) -> None:
        body = {"messages": [{"payload": number} for number in range(20)]}
        await self._call("batch", "POST", "/v1/queues/soak-0/messages/batch", body)

    async def _append(self) -> None:
        await self._call("append", "POST", "/v1/stream/soak/0", data=b"x" * 200, headers=_TEXT)
        await self._call("read", "GET", "/v1/stream/soak/0?offset=now")

    async def _life(self) -> None:
        """The one stream that all append to ends and begins anew, and so does one that nobody else knows."""
        await self._call("delete stream", "DELETE", "/v1/stream/soak/0")
        await self._call("create stream", "PUT", "/v1/stream/soak/0", headers=_TEXT)
        path = f"/v1/stream/soak/life-{next(self._numbers)}"
        await self._call("create stream", "PUT", path, data=b"x" * 10_000, headers=_TEXT)
        await self._call("delete stream", "DELETE", path)

    async def _follow(self) -> None:
        path = ("/v1/telemetry/stream", "/v1/stream/soak/0?offset=-1&live=sse")[next(self._numbers) % 2]
        async with self._session.get(path) as answer:
            self.answers["follow", answer.status] += 1
            await answer.content.readany()

    async def _run_session(self) -> None:
        named = {"sessionId": f"s-{next(self._numbers)}", "streamId": "soak/0"}
        path = f"{_ROOT}/session/{named['sessionId']}"
        await self._call("subscribe", "POST", f"{_ROOT}/subscribe", named)
        await self._call("publish to sessions", "POST", f"{_ROOT}/publish/soak/0", data=b"hello", headers=_TEXT)
        await self._call("touch", "POST", f"{path}/touch")
        await self._call("read session", "GET", f"{_ROOT}/stream/session:{named['sessionId']}?offset=-1")
        await self._call("delete session", "DELETE", path)

    async def _keys(self) -> None:
        made = await self._call("make key", "POST", "/api/control/keys", {"name": "soak", "scopes": ["read"]})
        await self._call("list keys", "GET", "/api/control/keys?limit=10")
        await self._call("who am I", "GET", "/v1/whoami", headers={"Authorization": f"Bearer {made['key']}"})
        await self._call("delete key", "DELETE", f"/api/control/keys/{made['record']['id']}")

    async def _bad(self) -> None:
        number = next(self._numbers)
        json = {"Content-Type": "application/json"}
        await self._call("bad", "POST", "/v1/queues/soak-0/messages", data=_BAD_BODIES[number % len(_BAD_BODIES)], headers=json)
        await self._call("bad", "GET", f"/v1/nowhere/{number}")
        await self._call("bad", "GET", f"/v1/stream/none-{number}?offset=x{number}")
        await self._call("bad", "POST", "/v1/queues/soak-0/ack", {"receiptId": f"r{number}"})
        if number % 8 == 0:  # the brake is tested elsewhere
            await self._call("bad", "GET", "/v1/whoami", headers={"Authorization": f"Bearer nobody-{number}"})

    async def _not_http(self) -> None:
        async with raw_connection(self._running.url) as connection:
            await connection.send((b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 40_000)[next(self._numbers) % 2])
            self.answers["not HTTP", (await connection.answer()).status] += 1

    async def _gone(self) -> None:
        """A long poll, or half of a body, and then nobody."""
        length = 17 if next(self._numbers) % 2 else 5000
        lines = [f"{name}: {value}" for name, value in self._running.headers.items()]
        begin = ["POST /v1/queues/empty/pull HTTP/1.1", "Host: x", f"Content-Length: {length}", *lines, "", '{"waitMs": 20000}']
        async with raw_connection(self._running.url) as connection:
            await connection.send("\r\n".join(begin).encode())
            await asyncio.sleep(0.05)


def watched(running: Installation) -> list[Watched]:
    workers = [Watched(f"gateway {number}", pid) for number, pid in enumerate(running.worker_pids, 1)]
    background = [
        *(Watched("control", pid, partial(jobs_cache, running)) for pid in running.children("postroad.runtime.worker control")),
        *(Watched("delivery", pid) for pid in running.children("postroad.runtime.worker delivery")),
    ]
    return [Watched("supervisor", running.pid), Watched("engine", running.engine_pid, room=ENGINE_BYTES), *workers, *background]


def jobs_cache(running: Installation) -> int:
    """How much of the jobs' file its process may have in memory: SQLite keeps what it has read or written."""
    return min(JOBS_CACHE_BYTES, sum(one.stat().st_size for one in (running.home / "var" / "jobs").glob("*.sqlite")))


async def trim(running: Installation) -> None:
    """Behind everybody, as the pipeline does."""
    connection = Connection(running.engine)
    await connection.open()
    try:
        while True:
            await asyncio.sleep(TRIM_SECONDS)
            for stream, word in STREAMS.items():
                await purge_stream(connection, stream, f"{word}.>")
    finally:
        await connection.close()


async def watch(processes: list[Watched], warm_up: float) -> None:
    await asyncio.sleep(warm_up)
    while True:
        for one in processes:
            one.sample()
        await asyncio.sleep(SAMPLE_SECONDS)


async def soak(seconds: float, home: Path) -> int:
    running = Installation(home, POSTROAD_AUTH_FAILURES_BURST="1000000")
    warm_up = min(60.0, seconds / 5)
    try:
        await running.start().ready()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(running.url, headers=running.headers, connector=connector) as session:
            await session.post("/v1/queues/empty/messages", json={"payload": 1})
            processes = watched(running)
            load = Load(running, session)
            beside = [asyncio.create_task(watch(processes, warm_up)), asyncio.create_task(trim(running))]
            await load.run(seconds)
            for one in beside:
                one.cancel()
            for ended in await asyncio.gather(*beside, return_exceptions=True):
                assert isinstance(ended, asyncio.CancelledError), ended
        return report(load, processes, [one.pid for one in watched(running)], warm_up)
    finally:
        running.end()


def report(load: Load, processes: list[Watched], pids: list[int], warm_up: float) -> int:
    by_kind: dict[str, list[str]] = {}
    for (kind, status), count in sorted(load.answers.items()):
        by_kind.setdefault(kind, []).append(f"{count} x {status}")
    print("\n".join(f"{kind:<22} {', '.join(counts)}" for kind, counts in by_kind.items()))
    if load.late:
        print("late                  ", ", ".join(f"{name}: {count}" for name, count in load.late.items()))
    print(f"\nafter a warm-up of {warm_up:.0f} s, {len(processes[0].samples)} samples, the first third against the last:\n")
    print("\n".join(one.line() for one in processes))
    faults = [f"{one.name}: {what} grows" for one in processes for what in one.grows]
    faults += [f"{count} answers {status} to {kind}" for (kind, status), count in load.answers.items() if status >= 500]
    if pids != [one.pid for one in processes]:
        faults.append("a process was started anew")
    print("\n" + ("\n".join(faults) or "nothing grows"))
    return 1 if faults else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="how long; an hour's worth of requests fits in ten minutes")
    seconds: float = parser.parse_args().seconds
    with tempfile.TemporaryDirectory(prefix="postroad-soak-") as home:
        return asyncio.run(soak(seconds, Path(home)))


if __name__ == "__main__":
    sys.exit(main())
