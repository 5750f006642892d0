"""Silver events for measurements: six tenants, 48 queues, jobs from their first step to their last, samples, sessions; seeded."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from postroad.pipeline.schemas import arrow_schema, events_schema

START = datetime(2026, 11, 16, tzinfo=UTC)
START_MS = int(START.timestamp() * 1000)
EVENTS_PER_FILE = 1_000_000
SECONDS_PER_FILE = 8_640  # ten million events are one day
TENANTS = ("acme", "globex", "initech", "umbrella", "hooli", "wayne")
QUEUES = tuple(f"{what}-{which}" for what in ("mail", "bill", "sync", "scan") for which in ("a", "b"))
REASONS = ("too many tries", "rejected", "bad address", "no such customer")
_TENANT_SHARES = (0.4, 0.25, 0.15, 0.1, 0.07, 0.03)
_WORKERS = 4
_LATER = "2026-11-17T00:00:00.000Z"  # for texts that no report reads
_EVERY_SECONDS = 5

Columns = dict[str, Any]
SCHEMA = arrow_schema(events_schema())


def write_events(folder: Path, count: int, seed: int = 7) -> None:
    """About `count` events, in files of a million; the same ones for the same seed."""
    write_files(folder, count, lambda wanted: _events(np.random.default_rng(seed), wanted, 0))


def write_files(folder: Path, count: int, made: Callable[[int], pa.Table]) -> None:
    """Files of a million of the made events. All have the same events, each in another part of the day: to make them takes longer
    than to write them."""
    folder.mkdir(parents=True)
    table = made(min(count, EVENTS_PER_FILE))
    place = table.column_names.index("time")
    for number in range(-(-count // EVENTS_PER_FILE)):
        later = pc.add(table.column("time"), pa.scalar(timedelta(seconds=number * SECONDS_PER_FILE)))
        moved = table.set_column(place, table.schema.field("time"), later.cast(table.schema.field("time").type))
        path = folder / f"events-{number:03}.parquet"
        pq.write_table(moved[: count - number * EVENTS_PER_FILE], path, compression="zstd", row_group_size=250_000)


def _events(random: np.random.Generator, wanted: int, number: int) -> pa.Table:
    begin = START_MS + number * SECONDS_PER_FILE * 1000
    seconds = SECONDS_PER_FILE * wanted // EVENTS_PER_FILE
    parts = [
        _queue_samples(random, begin, seconds),
        _traffic(random, begin, seconds),
        _storage(random, begin, seconds),
        *_sessions(random, begin, seconds, wanted // 30, number),
    ]
    left = wanted - sum(len(one["time"]) for one in parts)
    parts.extend(_jobs(random, begin, seconds, int(left / 3.21), number))
    table = pa.concat_tables([_table(one) for one in parts], promote_options="default").sort_by("time")[:wanted]
    ids = pc.binary_join_element_wise(f"01JCQ{number:04}", pc.cast(pa.array(np.arange(len(table))), pa.string()), "X")
    have = {**dict(zip(table.column_names, table.columns, strict=True)), "event_id": ids}
    return pa.table([have.get(field.name, pa.nulls(len(table), field.type)) for field in SCHEMA], schema=SCHEMA)


def _table(columns: Columns) -> pa.Table:
    """Columns of these events."""
    count = len(columns["time"])
    arrays = {}
    for name, values in columns.items():
        kind = SCHEMA.field(name).type
        if name == "time":
            arrays[name] = pa.array(np.asarray(values) * 1000).cast(kind)
        elif isinstance(values, str | int | float):
            arrays[name] = pa.repeat(pa.scalar(values, kind), count)
        else:
            arrays[name] = values if isinstance(values, pa.Array) else pa.array(values, kind)
    return pa.table(arrays)


def _named(names: Sequence[str], index: Any) -> pa.Array:
    return pa.array(names).take(pa.array(index))


def _ids(prefix: str, values: Any) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pc.cast(pa.array(values), pa.string()), "")


def _rfc3339(at_ms: Any) -> pa.Array:
    text = np.datetime_as_string(np.asarray(at_ms).astype("datetime64[ms]"), unit="ms")
    return pc.binary_join_element_wise(pa.array(text), "Z", "")


def _head(event: str, tenant: Any, time: Any, stream: str = "TELEMETRY") -> Columns:
    return {
        "event": event,
        "version": 1,
        "tenant": _named(TENANTS, tenant),
        "time": time,
        "stream": stream,
        "sequence": np.asarray(time) // 7,
        "line": 0,
    }


def _tenants(random: np.random.Generator, count: int) -> Any:
    return random.choice(len(TENANTS), count, p=_TENANT_SHARES)


def _jobs(random: np.random.Generator, begin: int, seconds: int, count: int, number: int) -> list[Columns]:
    """One life each: queued, leased, done; one in eight fails before, one in fifty is dead."""
    tenant, queue = _tenants(random, count), random.integers(0, len(QUEUES), count)
    ids, created = np.arange(count) + number * 10_000_000, begin + random.integers(0, seconds * 1000, count)
    wait = random.lognormal(3.5 + 0.2 * queue, 1.4).astype(np.int64)
    work = random.lognormal(4.0 + 0.3 * tenant, 0.9).astype(np.int64)
    leased = created + wait

    def some(event: str, which: Any, at: Any, **columns: Any) -> Columns:
        who = {"queue": _named(QUEUES, queue[which]), "audit": "full", "key_id": "01JCQKEY"}
        ids_of = {"job_id": _ids("01JCQJ", ids[which]), "message_id": _ids("01JCQM", ids[which])}
        return {**_head(event, tenant[which], at, "JOBS"), **who, **ids_of, **columns}

    everyone = np.arange(count)
    fails, dies = random.random(count) < 0.125, random.random(count) < 0.02
    done, failed, dead = np.flatnonzero(~dies), np.flatnonzero(fails), np.flatnonzero(dies)
    attempt = np.where(fails, 2, 1)
    last = leased + np.where(fails, work + 1000, 0)
    back = dead[::10]
    return [
        some("job.queued", everyone, created, payload_bytes=random.integers(50, 4000, count), delay_ms=0),
        some("job.leased", everyone, leased, attempt=1, wait_ms=wait, lease_until=_LATER),
        some("job.retried", failed, (leased + work)[failed], attempt=1, reason="failed", next_at=_LATER),
        some("job.leased", failed, last[failed], attempt=2, wait_ms=wait[failed], lease_until=_LATER),
        some("job.done", done, (last + work)[done], attempt=attempt[done], processing_ms=work[done]),
        some("job.dead", dead, (last + work)[dead], attempt=attempt[dead], reason=_named(REASONS, ids[dead] % len(REASONS))),
        some("job.redriven", back, (last + work)[back] + 60_000, from_queue=_named(QUEUES, queue[back]), task_id="01JCQT"),
    ]


def _queue_samples(random: np.random.Generator, begin: int, seconds: int) -> Columns:
    looks, queues = seconds // _EVERY_SECONDS, len(TENANTS) * len(QUEUES)
    which = np.tile(np.arange(queues), looks)
    time = begin + np.repeat(np.arange(looks), queues) * _EVERY_SECONDS * 1000 + which
    count = len(which)
    ready, rate = random.poisson(40, count), np.round(random.exponential(3, count), 1)
    return {
        **_head("queue.sampled", which // len(QUEUES), time),
        "queue": _named(QUEUES, which % len(QUEUES)),
        "ready": ready,
        "leased": random.poisson(10, count),
        "delayed": random.poisson(2, count),
        "dead": time // 600_000 % 100,
        "waiting": random.poisson(1, count),
        "oldest_age_ms": pa.array(random.integers(0, 90_000, count), mask=ready < 25),
        "expected_drain_seconds": 60,
        "in_per_second": rate,
        "out_per_second": rate,
        "seconds": float(_EVERY_SECONDS),
    }


def _traffic(random: np.random.Generator, begin: int, seconds: int) -> Columns:
    looks, many = seconds // 10, len(TENANTS) * _WORKERS
    which = np.tile(np.arange(many), looks)
    time = begin + np.repeat(np.arange(looks), many) * 10_000 + which
    requests = random.poisson(60, len(which))
    return {
        **_head("traffic.sampled", which // _WORKERS, time),
        "worker": _ids("worker-", which % _WORKERS),
        "seconds": 10.0,
        "requests": requests,
        "failures": requests // 50,
        "bytes_in": requests * 900,
        "bytes_out": requests * 700,
        "appends": requests // 3,
        "append_bytes": requests // 3 * 120,
        "fanout_messages": requests // 5,
    }


def _storage(random: np.random.Generator, begin: int, seconds: int) -> Columns:
    looks, many = seconds // 10, len(TENANTS)
    which = np.tile(np.arange(many), looks)
    time = begin + np.repeat(np.arange(looks), many) * 10_000 + 500 + which
    size = (which + 1) * 1_000_000 + random.integers(0, 1_000_000, len(which))
    numbers = {"bytes": size, "messages": size // 500, "queues": len(QUEUES), "streams": 20, "seconds": 10.0}
    return {**_head("storage.sampled", which, time), **numbers}


def _sessions(random: np.random.Generator, begin: int, seconds: int, count: int, number: int) -> list[Columns]:
    tenant, ids = _tenants(random, count), np.arange(count) // 4 + number * 10_000_000
    tenant = tenant[np.arange(count) // 4 * 4]
    time = begin + random.integers(0, seconds * 1000, count)
    kinds = np.arange(count) % 4

    def some(event: str, which: Any, **columns: Any) -> Columns:
        where = np.flatnonzero(which)
        return {**_head(event, tenant[where], time[where]), "session_id": _ids("s", ids[where]), **columns}

    until = _rfc3339(time + 3_600_000)
    return [
        some(
            "session.subscribed",
            kinds == 0,
            stream_id="news",
            is_new=pa.array(np.full((kinds == 0).sum(), True)),
            expires_at=until.filter(pa.array(kinds == 0)),
        ),
        some("session.touched", kinds == 1, expires_at=until.filter(pa.array(kinds == 1))),
        some("session.unsubscribed", kinds == 2, stream_id="news"),
        some("session.ended", kinds == 3, is_expired=pa.array(ids[kinds == 3] % 3 == 0), subscriptions=1),
    ]
