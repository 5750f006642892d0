"""What events add to the reports, and that it adds up."""

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from postroad.api.insights import Grain
from postroad.kernel.event import Event, event_name
from postroad.pipeline.histogram import bucket_of
from postroad.pipeline.measures import measures
from postroad.pipeline.reports import usage
from postroad.pipeline.rollups import KEY, MEASURES, ROLLUPS, loaded_rollups, merge, stored_rollups
from postroad.pipeline.schemas import arrow_schema
from postroad.telemetry.events import WorkerStarted
from tests.pipeline.event_samples import (
    NOON_MS,
    cancelled,
    dead,
    done,
    expired,
    leased,
    moment,
    queued,
    redriven,
    sample_events,
    sampled,
    stored,
    touched,
)
from tests.pipeline.frames import events_table


def read(rollups: pa.Table) -> list[tuple[Any, ...]]:
    assert rollups.schema == MEASURES
    found = []
    for *key, last_at, last_value in (tuple(row.values()) for row in rollups.to_pylist()):
        found.append((*key, None if last_at is None else (last_at, last_value)))
    found.sort(key=repr)
    assert len({row[:6] for row in found}) == len(found)
    return found


@pytest.fixture(scope="module")
def rollups() -> list[tuple[Any, ...]]:
    return read(measures(events_table(sample_events())))


def of(rollups: list[tuple[Any, ...]], report: str, minute: int = 0) -> set[tuple[Any, ...]]:
    """The measures of one report in a minute after noon, without what is the same in all."""
    return {
        row[3:] for row in rollups if (row[0], row[1], row[2].timestamp()) == (report, "acme", moment(minute * 60).timestamp())
    }


def test_latency_counts_first_waits_and_work_in_buckets(rollups: list[tuple[Any, ...]]) -> None:
    assert of(rollups, "latency") == {
        ("mail", "wait", 40, 1, 40.0, 40, None),
        ("mail", "wait", bucket_of(1000), 1, 1000.0, 1000, None),
        ("mail", "processing", bucket_of(130), 2, 261.0, 131, None),
    }
    assert of(rollups, "latency", minute=61) == {("mail", "wait", 40, 1, 40.0, 40, None)}


def test_usage_adds_up_what_was_sent_and_sampled(rollups: list[tuple[Any, ...]]) -> None:
    totals = {(label, total, last) for _, label, _, _, total, _, last in of(rollups, "usage")}
    assert totals == {
        ("published", 2.0, None),
        ("published_bytes", 150.0, None),
        ("deliveries", 3.0, None),
        ("done", 2.0, None),
        ("dead", 3.0, None),
        ("requests", 7.0, None),
        ("bytes_in", 500.0, None),
        ("bytes_out", 0.0, None),
        ("appends", 0.0, None),
        ("append_bytes", 0.0, None),
        ("fanout_messages", 0.0, None),
        ("storage_byte_seconds", 10_000.0 + 29_700.0, None),
        ("stored_bytes", 4000.0, (NOON_MS + 15_000, 3000)),
    }


def test_dead_letters_are_counted_by_reason_first_attempts_apart(rollups: list[tuple[Any, ...]]) -> None:
    assert of(rollups, "dead_letters") == {
        ("mail", "bad address", 1, 1, 1.0, None, (NOON_MS + 7000, 1)),
        ("mail", "bad address", 2, 1, 1.0, None, (NOON_MS + 8000, 5)),
        ("bill", "x" * 200, 1, 1, 1.0, None, (NOON_MS + 9000, 1)),
        ("mail", "redriven", 2, 1, 1.0, None, (NOON_MS + 10_000, 0)),
    }


def test_sessions_are_counted_by_what_happened_to_them(rollups: list[tuple[Any, ...]]) -> None:
    found = {(label, n) for _, label, _, n, *_ in of(rollups, "sessions")}
    assert found == {("subscribed", 2), ("unsubscribed", 1), ("touched", 1), ("deleted", 1), ("expired", 2)}


def test_backlog_has_the_sum_the_largest_and_the_last_of_the_samples(rollups: list[tuple[Any, ...]]) -> None:
    at = NOON_MS + 10_000
    assert of(rollups, "backlog") == {
        ("mail", "ready", 0, 2, 12.0, 8, (at, 8)),
        ("mail", "leased", 0, 2, 1.0, 1, (at, 0)),
        ("mail", "retrying", 0, 2, 6.0, 6, (at, 0)),
        ("mail", "delayed", 0, 2, 4.0, 2, (at, 2)),
        ("mail", "dead", 0, 2, 6.0, 3, (at, 3)),
        ("mail", "waiting", 0, 2, 1.0, 1, (at, 0)),
        ("mail", "oldest_age_ms", 0, 2, 900.0, 900, (at, 0)),
        ("mail", "expected_drain_seconds", 0, 2, 120.0, 60, (at, 60)),
        ("mail", "out", 0, 2, 11.0, 10, (at, 10)),
    }


def test_each_tenant_counts_for_itself(rollups: list[tuple[Any, ...]]) -> None:
    assert {row[4:] for row in rollups if row[1] == "globex"} == {
        ("published", 0, 1, 1.0, None, None),
        ("published_bytes", 0, 1, 7.0, None, None),
    }


def test_what_no_report_counts_adds_nothing() -> None:
    started = WorkerStarted(
        event_id="1", timestamp="2026-11-16T12:00:00.000Z", tenant="_platform", worker="w", role="gateway", postroad_version="1"
    )
    assert read(measures(events_table([started]))) == []


def _random_events(chance: random.Random, count: int) -> list[Event]:
    """Few keys and few moments, so that much falls together."""

    def one() -> Event:
        at, queue, tenant = (
            chance.choice([0, 1, 59.999, 60, 61]),
            chance.choice(["mail", "bill"]),
            chance.choice(["acme", "globex"]),
        )
        number = chance.choice([0, 1, 127, 128, 129, 5000, 10**12])
        kinds: list[Callable[[], Event]] = [
            lambda: queued(at, number, tenant, queue),
            lambda: leased(at, number, chance.choice([1, 2]), tenant, queue),
            lambda: done(at, number, tenant, queue),
            lambda: dead(at, chance.choice([1, 2]), chance.choice(["a", "redriven"]), tenant, queue),
            lambda: redriven(at, queue, tenant),
            lambda: cancelled(at, tenant, queue),
            lambda: expired(at, tenant, queue),
            lambda: sampled(at, number, number % 7, 0, chance.choice([None, number]), chance.random(), tenant, queue),
            lambda: stored(at, number % 10**9, chance.random() * 10, tenant),
            lambda: touched(at, tenant=tenant),
        ]
        return chance.choice(kinds)()

    return [one() for _ in range(count)]


@pytest.mark.parametrize("seed", [1, 2])
def test_measures_add_up_however_the_events_are_split(seed: int) -> None:
    chance = random.Random(seed)
    events = _random_events(chance, 400)
    first: list[Event] = []
    rest: list[Event] = []
    for event in events:
        (first if chance.random() < 0.3 else rest).append(event)
    whole = measures(events_table(events))
    parts = pa.concat_tables([measures(events_table(rest)), measures(events_table(first))])
    assert read(merge(parts)) == read(whole)


def test_parts_without_common_texts_are_merged() -> None:
    """The texts of each part are encoded by themselves."""
    one = measures(events_table(_random_events(random.Random(3), 50)))
    other = one.set_column(one.column_names.index("tenant"), "tenant", pa.array([f"other-{n % 3}" for n in range(len(one))]))
    missing = one.set_column(one.column_names.index("label"), "label", pa.nulls(len(one), pa.string()))
    parts = [one, one.slice(0, 0), other, missing, other]
    sums: Counter[tuple[object, ...]] = Counter()
    for row in pa.concat_tables(parts).to_pylist():
        sums[(*(row[name] for name in KEY), row["last_at"] is None)] += row["n"]
    merged = merge(pa.concat_tables(parts)).to_pylist()
    assert {(*(row[name] for name in KEY), row["last_at"] is None): row["n"] for row in merged} == sums
    assert len(merged) == len(sums)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_usage_equals_a_count_of_the_events(seed: int) -> None:
    events = _random_events(random.Random(seed), 300)
    counts = Counter((event.tenant, event_name(type(event))) for event in events)
    found = {row["tenant"]: row for row in usage.rows(measures(events_table(events)), Grain.DAY).to_pylist()}
    for tenant, row in found.items():
        columns = {"published": "queued", "deliveries": "leased"} | {
            name: name for name in ("done", "dead", "cancelled", "expired")
        }
        assert {name: row[name] for name in columns} == {name: counts[tenant, f"job.{of}"] for name, of in columns.items()}
    assert all(counts[tenant, "job.cancelled"] and counts[tenant, "job.expired"] for tenant in found), (
        "there is something to count"
    )


def test_merging_what_is_merged_changes_nothing() -> None:
    rollups = measures(events_table(sample_events()))
    assert read(merge(rollups)) == read(rollups)


def test_rollups_are_read_as_they_were_stored() -> None:
    rollups = measures(events_table(sample_events()))
    stored = stored_rollups(rollups, arrow_schema(ROLLUPS))
    assert stored.schema == arrow_schema(ROLLUPS)
    assert read(loaded_rollups([stored])) == read(rollups)
