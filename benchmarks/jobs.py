"""Throughput of the job store's event ingest, and its query latency with a million jobs.

    .venv/bin/python -m benchmarks.jobs [jobs]

On one core, without JetStream: decodes frames as read from `JOBS` and writes the rows, then runs the API's queries.
"""

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.harness import table
from postroad.api.jobs import JobStatus
from postroad.jetstream.stream_reader import Entry
from postroad.jobs.event_decoder import read_frames
from postroad.jobs.queries import JobFilter, events, find, page
from postroad.jobs.store import Store, make_store
from postroad.kernel.clock import now_ms, rfc3339
from postroad.kernel.ids import new_id
from postroad.queues.events import JobDead, JobDone, JobEvent, JobLeased, JobQueued
from postroad.telemetry.frames import FRAME_VERSION, encode_event, pack

TENANTS = [f"tenant-{number}" for number in range(20)]
QUEUES = [f"queue-{number}" for number in range(10)]
FRAME_EVENTS = 70  # events of new jobs; with those of earlier jobs three times as many
BATCH_BYTES = 2 * 1024 * 1024


def lives(count: int, audit: str) -> Iterator[list[JobEvent]]:
    """Generate jobs: of 100, 97 are done, 1 is dead, 1 is leased and 1 is queued."""
    begun = now_ms() - count
    for number in range(count):
        at = begun + number
        who = {
            "tenant": TENANTS[number % len(TENANTS)],
            "job_id": new_id(),
            "message_id": new_id(),
            "queue": random.choice(QUEUES),
            "audit": audit,
            "key_id": "k0123456789abcdef",
            "request_id": "0123456789ab1",
        }
        correlated = f"cart-{number // 3}" if number % 10 == 0 else None
        queued = JobQueued(event_id=new_id(), timestamp=rfc3339(at), payload_bytes=200, correlation_id=correlated, **who)  # type: ignore[arg-type]
        until = rfc3339(at + 30_000)
        leased = JobLeased(event_id=new_id(), timestamp=rfc3339(at + 5), attempt=1, lease_until=until, wait_ms=5, **who)  # type: ignore[arg-type]
        done = JobDone(event_id=new_id(), timestamp=rfc3339(at + 25), attempt=1, processing_ms=20, **who)  # type: ignore[arg-type]
        dead = JobDead(event_id=new_id(), timestamp=rfc3339(at + 25), attempt=1, reason="it does not work", **who)  # type: ignore[arg-type]
        unusual: dict[int, list[JobEvent]] = {0: [queued], 1: [queued, leased], 2: [queued, leased, dead]}
        yield unusual.get(number % 100, [queued, leased, done])


def frames(count: int, audit: str, apart: int) -> Iterator[Entry]:
    """Frames in which the events of a job are `apart` jobs from each other: its row is written once per event, or once in all."""
    waiting: dict[int, dict[str, list[JobEvent]]] = {}
    sequence = 0

    def due(place: int) -> Iterator[Entry]:
        nonlocal sequence
        for tenant, some in waiting.pop(place, {}).items():
            sequence += 1
            payload = pack([encode_event(event) for event in some])
            yield Entry(f"job.{tenant}", sequence, 0, payload, {"Postroad-Frame": FRAME_VERSION})

    width = FRAME_EVENTS * len(TENANTS)
    last = 0
    for number, life in enumerate(lives(count, audit)):
        for index, event in enumerate(life):
            place = (number + index * apart) // width
            last = max(last, place)
            waiting.setdefault(place, {}).setdefault(event.tenant, []).append(event)
        if number % width == width - 1:
            yield from due(number // width)
    for place in range(last + 1):
        yield from due(place)


def filled(folder: Path, count: int, audit: str, apart: int) -> tuple[Store, float, float]:
    """The store, events per second, and the duration of the slowest batch."""
    store = make_store(folder / f"{audit}-{apart}.sqlite", "bench")
    seconds = longest = 0.0
    total = 0
    batch: list[Entry] = []
    size = 0

    def apply() -> None:
        nonlocal seconds, longest, total
        started = time.perf_counter()
        read = read_frames(batch)
        store.apply(read, now_ms())
        took = time.perf_counter() - started
        seconds, longest, total = seconds + took, max(longest, took), total + read.events
        batch.clear()

    for entry in frames(count, audit, apart):
        batch.append(entry)
        size += len(entry.payload)
        if size >= BATCH_BYTES:
            apply()
            size = 0
    if batch:
        apply()
    return store, total / seconds, longest


def measured(ask: Callable[[], object], times: int = 200) -> list[str]:
    taken: list[float] = []
    for _ in range(times):
        started = time.perf_counter()
        ask()
        taken.append((time.perf_counter() - started) * 1000)
    return [f"{statistics.median(taken):.2f}", f"{sorted(taken)[int(times * 0.99)]:.2f}"]


def questions(store: Store, count: int) -> list[list[str]]:
    now = now_ms()
    ids = [job for [job] in store.connection.execute("SELECT job FROM jobs WHERE tenant = ?", (store.tenant_number("tenant-3"),))]
    middle = page(store, JobFilter("tenant-3", since=0, until=now - count // 2), now, 1)[0]
    asked: list[tuple[str, Callable[[], object]]] = [
        ("one job", lambda: find(store, "tenant-3", random.choice(ids))),
        ("one job's events", lambda: events(store, "tenant-3", random.choice(ids), (0, 0, ""), 100, 1 << 20)),
        ("100 newest", lambda: page(store, JobFilter("tenant-3"), now, 100)),
        ("100 from the middle", lambda: page(store, JobFilter("tenant-3"), now, 100, (middle.created_at, middle.job_id))),
        ("100 of a queue", lambda: page(store, JobFilter("tenant-3", queue="queue-4"), now, 100)),
        ("100 done", lambda: page(store, JobFilter("tenant-3", status=JobStatus.DONE), now, 100)),
        ("100 dead of a queue", lambda: page(store, JobFilter("tenant-2", queue="queue-4", status=JobStatus.DEAD), now, 100)),
        ("none delayed", lambda: page(store, JobFilter("tenant-3", status=JobStatus.DELAYED), now, 100)),
        ("100 of 4 queues by glob", lambda: page(store, JobFilter("tenant-3", globs=("*-4", "*-5", "*-6", "*-7")), now, 100)),
        ("by correlation", lambda: page(store, JobFilter("tenant-10", correlation_id=f"cart-{count // 6 * 10 // 30}"), now, 100)),
        ("by message", lambda: page(store, JobFilter("tenant-3", message_id=middle.message_id), now, 100)),
    ]
    return [[name, *measured(ask)] for name, ask in asked]


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as home:
        rates: list[list[str]] = []
        for audit, apart, some in (("jobs_only", 0, count // 5), ("full", 0, count // 5), ("full", 20_000, count)):
            store, rate, longest = filled(Path(home), some, audit, apart)
            size = store.path.stat().st_size / some
            what = "all of a job in one batch" if not apart else "each event of a job in a batch of its own"
            rates.append([audit, what, f"{some:,}", f"{rate:,.0f}", f"{longest * 1000:.0f}", f"{size:,.0f}"])
            if apart:
                swept = time.perf_counter()
                while store.sweep(now_ms(), 2000) == 2000:
                    pass
                swept = time.perf_counter() - swept
                print(table(["audit", "how", "jobs", "events/s", "longest batch ms", "bytes a job"], rates))
                print(f"\nsweep of what was due: {swept:.2f} s\n")
                print(table([f"question, {some:,} jobs", "median ms", "p99 ms"], questions(store, some)))
            store.close()


if __name__ == "__main__":
    main()
