"""Consumers over HTTP, the same for every server: each connection pulls a message, or some at once, acknowledges them if that
needs a request, and pulls the next. An operation is both; its latency is from the pull to the last response. The rate is that of
messages.

They handle raw bytes in callbacks, without a library, because they share two cores with the measured server.
"""

import asyncio
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import uvloop

from benchmarks.harness import Load
from benchmarks.peers.peer import Queue
from benchmarks.processor_time import processor_us, tree_seconds

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_NONE_LEFT_MAX = 10  # consecutive empty responses after which a consumer stops


@dataclass(slots=True)
class Tally:
    """Operations of all consumers: when each ended, its duration in seconds, and its messages. It warms up until `since`."""

    started: float
    since: float
    until: float
    operations: list[tuple[float, float, int]] = field(default_factory=list)
    empty: int = 0
    failed: int = 0
    is_dry: bool = False  # a consumer gave up, because the queue was empty


@dataclass(frozen=True, slots=True)
class Pulled:
    """`dry_after`: seconds until the last message, if the queue ran empty; the rate is that of this time."""

    load: Load
    empty: int
    dry_after: float | None


class Consumer(asyncio.Protocol):
    """A consumer with one connection at a time; it reconnects if the server closes the connection after a response."""

    def __init__(self, queue: Queue, tally: Tally, ended: Callable[["Consumer"], None]) -> None:
        self._queue, self._tally, self._ended = queue, tally, ended
        self._host = urlsplit(queue.url).netloc
        self._pull = queue.pull.encoded(self._host)
        self._waiting: bytes | None = None  # a request for the next connection
        self._is_closed = False
        self._received = b""
        self._is_acking = False
        self._none_left = 0
        self._taken = 0  # messages of the present operation
        self.is_done = False

    def connection_made(self, transport: asyncio.WriteTransport) -> None:  # type: ignore[override]
        self._transport = transport
        self._is_closed = False
        request, self._waiting = self._waiting, None
        if request is None:
            self._next()
        else:
            transport.write(request)

    async def connect(self) -> None:
        host, port = self._host.split(":")
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, host, int(port))
        except OSError:
            self._ended(self)

    def _send(self, request: bytes) -> None:
        if self._is_closed:
            self._waiting = request
            self._transport.close()
        else:
            self._transport.write(request)

    def _next(self) -> None:
        self._started = time.perf_counter()
        is_late, is_empty = self._started >= self._tally.until, self._none_left >= _NONE_LEFT_MAX
        if is_late or is_empty:
            self._tally.is_dry |= not is_late
            self.is_done = True
            self._transport.close()
        else:
            self._is_acking = False
            self._send(self._pull)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        length = _LENGTH.search(head)
        if len(body) < int(length[1]) if length else not body.endswith(b"0\r\n\r\n"):
            return
        self._received = b""
        self._is_closed = b"\r\nconnection: close" in head.lower()
        self._answered(head, body)

    def _answered(self, head: bytes, body: bytes) -> None:
        if head[9:10] != b"2":
            self._tally.failed += 1
        elif self._is_acking:
            self._count()
        elif not self._take(body):
            self._tally.empty += 1
            self._none_left += 1
        elif self._queue.ack is not None:
            self._is_acking = True
            self._send(self._queue.ack(body).encoded(self._host))
            return
        else:
            self._count()
        self._next()

    def _take(self, body: bytes) -> int:
        self._taken = self._queue.taken(body)
        return self._taken

    def _count(self) -> None:
        self._none_left = 0
        now = time.perf_counter()
        self._tally.operations.append((now, now - self._started, self._taken))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is None:
            self._ended(self)
        else:
            self._connecting = asyncio.ensure_future(self.connect())


async def _consume(queue: Queue, connections: int, seconds: float, warm: float) -> Tally:
    started = time.perf_counter()
    tally = Tally(started, started + warm, started + warm + seconds)
    open_ones = connections
    all_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ended(consumer: Consumer) -> None:
        nonlocal open_ones
        open_ones -= 1
        tally.failed += not consumer.is_done
        if not open_ones and not all_done.done():
            all_done.set_result(None)

    for _ in range(connections):
        await Consumer(queue, tally, ended).connect()
    await asyncio.wait({all_done}, timeout=warm + seconds + 20)
    tally.failed += open_ones  # these got no response
    return tally


def pulled(queue: Queue, connections: int, seconds: float, warm: float = 0.5) -> Pulled:
    """Messages per second, latencies of operations, and the number of empty pulls."""
    before = tree_seconds(os.getpid())
    tally = uvloop.run(_consume(queue, connections, seconds, warm))
    cost = processor_us(os.getpid(), before, sum(taken for _, _, taken in tally.operations))
    # A queue that ran empty is measured as long as it had messages, from the start: it may have had none after the warm-up.
    since, until = (tally.started, tally.until) if tally.is_dry else (tally.since, tally.until)
    counted = [one for one in tally.operations if since <= one[0] < until]
    dry_after = max((ended for ended, _, _ in counted), default=since) - since if tally.is_dry else None
    rate = sum(taken for _, _, taken in counted) / ((dry_after or seconds) if tally.is_dry else seconds)
    times = sorted(one[1] for one in counted) or [0.0]
    load = Load(rate, 1000 * times[len(times) // 2], 1000 * times[len(times) * 99 // 100], tally.failed, cost)
    return Pulled(load, tally.empty, dry_after)
