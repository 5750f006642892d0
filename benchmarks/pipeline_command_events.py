"""Silver events of commands for measurements: six tenants, twelve sources with two routes each; seeded."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from benchmarks.pipeline_events import EVENTS_PER_FILE, SECONDS_PER_FILE, START_MS, TENANTS, write_files
from postroad.pipeline.schemas import arrow_schema, events_schema

SOURCES = tuple(f"{tenant}/{service}" for tenant in TENANTS for service in ("shop", "crm"))
TARGETS = tuple(f"{tenant}/bot" for tenant in TENANTS)
COMMANDS = ("send", "cancel")
_KINDS = ("snavio.command.delivered", "snavio.command.failed", "snavio.command.invalid", "snavio.command.duplicate")
_KIND_SHARES = (0.88, 0.08, 0.03, 0.01)
_FAILURES = ("acl-deny", "rate-limit-exceeded", "fairness-violation", "delivery-failure")
_FAULTS = ("hmac-invalid", "timestamp-expired")
_SCHEMA = arrow_schema(events_schema("command_events"))


def write_command_events(folder: Path, count: int, seed: int = 7) -> None:
    """`count` events, in files of a million; the same ones for the same seed."""
    write_files(folder, count, lambda wanted: _events(np.random.default_rng(seed), wanted, 0))


def _events(random: np.random.Generator, count: int, number: int) -> pa.Table:
    begin, seconds = START_MS + number * SECONDS_PER_FILE * 1000, SECONDS_PER_FILE * count // EVENTS_PER_FILE
    samples, limits = count // 20, seconds // 300 * len(TARGETS) * len(COMMANDS)
    parts = [_outcomes(random, count - samples - limits, begin, seconds), _skews(random, samples, begin, seconds)]
    parts.append(_limits(limits, begin))
    table = pa.concat_tables(parts, promote_options="default").sort_by("time")
    ids = pc.binary_join_element_wise(f"01JCR{number:04}", pc.cast(pa.array(np.arange(len(table))), pa.string()), "X")
    have = {**dict(zip(table.column_names, table.columns, strict=True)), "event_id": ids}
    return pa.table([have.get(field.name, pa.nulls(len(table), field.type)) for field in _SCHEMA], schema=_SCHEMA)


def _head(event: Any, tenant: Any, at_ms: Any) -> dict[str, Any]:
    times = pa.array(np.asarray(at_ms) * 1000).cast(pa.timestamp("us", tz="UTC"))
    return {"event": event, "tenant": tenant, "time": times.cast(_SCHEMA.field("time").type)}


def _named(names: tuple[str, ...], index: Any) -> pa.Array:
    return pa.array(names).take(pa.array(index))


def _outcomes(random: np.random.Generator, count: int, begin: int, seconds: int) -> pa.Table:
    source = random.choice(len(SOURCES), count, p=_shares(len(SOURCES)))
    route = (source + random.integers(0, 2, count)) % len(TARGETS)
    kind = random.choice(len(_KINDS), count, p=_KIND_SHARES)
    failures, faults = _named(_FAILURES, random.integers(0, len(_FAILURES), count)), _named(_FAULTS, kind % 2)
    none = pa.nulls(count, pa.string())
    is_delivered, is_slow = pa.array(kind == 0), pa.array(random.random(count) < 0.3)
    latency = np.round(random.lognormal(0.7, 0.5, count), 3)
    return pa.table(
        {
            **_head(_named(_KINDS, kind), _named(TENANTS, source // 2), begin + random.integers(0, seconds * 1000, count)),
            "source": _named(SOURCES, source),
            "target": _named(TARGETS, route),
            "command_name": _named(COMMANDS, route % 2),
            "reason": pc.if_else(pa.array(kind == 1), failures, pc.if_else(pa.array(kind == 2), faults, none)),
            "path": pc.if_else(pa.array((kind == 0) | (kind == 3)), pc.if_else(is_slow, "slow", "fast"), none),
            "dispatch_latency_ms": pc.if_else(is_delivered, pa.array(latency), pa.scalar(None, pa.float64())),
            "shadow": pc.if_else(pa.array((kind == 0) & (random.random(count) < 0.01)), "rate-limit-exceeded", none),
        }
    )


def _shares(count: int) -> Any:
    weights = 1 / np.arange(1, count + 1)
    return weights / weights.sum()


def _skews(random: np.random.Generator, count: int, begin: int, seconds: int) -> pa.Table:
    source = random.integers(0, len(SOURCES), count)
    is_near = random.random(count) < 0.1
    kinds = ("snavio.telemetry.skew_sample", "snavio.telemetry.skew_near_limit")
    return pa.table(
        {
            **_head(
                _named(kinds, is_near.astype(int)),
                _named(TENANTS, source // 2),
                begin + random.integers(0, seconds * 1000, count),
            ),
            "source": _named(SOURCES, source),
            "skew_seconds": np.round(random.normal(0.5, 4.0, count), 3),
        }
    )


def _limits(count: int, begin: int) -> pa.Table:
    routes = len(TARGETS) * len(COMMANDS)
    which, look = np.arange(count) % routes, np.arange(count) // routes
    target = which // len(COMMANDS)
    return pa.table(
        {
            **_head(_named(("limit.sampled",), np.zeros(count, dtype=int)), _named(TENANTS, target), begin + look * 300_000),
            "target": _named(TARGETS, target),
            "command_name": _named(COMMANDS, which % len(COMMANDS)),
            "max": 100 + which,
            "interval_seconds": np.full(count, 1),
        }
    )
