"""Every report of commands beside two oracles: plain Python over the events, and DuckDB over the same files."""

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.api.insights import Grain
from postroad.commands.events import CommandArchived, CommandDelivered, CommandDuplicate
from postroad.kernel.event import Event
from postroad.pipeline import frame_parser
from postroad.pipeline.measures import measures
from postroad.telemetry.frames import pack
from tests.pipeline.command_samples import (
    abuse,
    command_traffic,
    delivered,
    dropped,
    failed,
    flagged,
    head,
    imposed,
    invalid,
    limited,
    near_limit,
    skewed,
    telemetry_sampled,
)
from tests.pipeline.event_samples import NOON_MS
from tests.pipeline.frames import events_table
from tests.pipeline.recount import assert_equal, recount
from tests.pipeline.test_command_reports import computed

REPORTS = ("commands", "fairness", "skew", "limits", "telemetry")


def traffic(seed: int) -> list[Event]:
    """Seeded commands, and one of every other event that the reports count."""
    events = [event for event in command_traffic(seed, 300, minutes=90) if event.table == "command_events"]
    common: dict[str, Any] = {"command_id": "c", "target": "globex/bot", "command_name": "send"}
    events += [limited(second) for second in (3, 303, 3700)]
    events += [limited(8, "acme/mailer", "cancel", 500, 1), near_limit(20, 50.0), near_limit(4000, 49.0, "acme/crm")]
    events += [abuse(70, "acme/shop", ["globex/bot", "acme/mailer"], until=670), flagged(70, "acme/shop", ["globex/bot"])]
    events += [dropped(90, 40), dropped(4100, 2), dropped(5, 1, "globex")]
    events += [imposed(80, "acme/crm", until=1200), imposed(81, "acme/crm", until=1800, target=None, command=None)]
    events += [CommandDuplicate(message_id="m", path="fast", **common, **head(second, "acme/shop")) for second in (9, 70)]
    events.append(
        CommandDelivered(
            message_id="m", path="slow", dispatch_latency_ms=1.0, shadow="rate-limit-exceeded", **common, **head(95, "acme/shop")
        )
    )
    return events


def samples() -> list[Event]:
    """Of telemetry queues; they are in the table `events`."""
    return [telemetry_sampled(10, 7, 100, 5000), telemetry_sampled(70, 3, 120, None), telemetry_sampled(75, 1, 5, 20, "globex")]


def rollups_of(events: list[Event]) -> pa.Table:
    parts = [measures(events_table(events, "command_events"), "command_events"), measures(events_table(samples()))]
    return pa.concat_tables(parts)


def rows_of(report: str, rollups: pa.Table, grain: str, tenant: str) -> list[dict[str, Any]]:
    """As the API shows them: times are texts."""
    rows: list[dict[str, Any]] = computed(report).rows(rollups, Grain(grain)).to_pylist()
    return [
        {name: _text(value) if hasattr(value, "isoformat") else value for name, value in row.items()}
        for row in rows
        if row["tenant"] == tenant
    ]


def _text(at: Any) -> str:
    text: str = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return text


@pytest.mark.parametrize("grain", ["minute", "hour", "day"])
@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_report_equals_a_count_in_plain_python(report: str, grain: str, seed: int) -> None:
    events = traffic(seed)
    raw: dict[str, list[dict[str, Any]]] = {"acme": [], "globex": []}
    for event in [*events, *samples()]:
        raw[event.tenant].append({**msgspec.json.decode(msgspec.json.encode(event)), "stream": event.stream})
    rollups = rollups_of(events)
    for tenant in raw:
        wanted = recount(report, tenant, raw, grain)
        assert wanted, "the traffic has something for each report"
        assert_equal(rows_of(report, rollups, grain, tenant), wanted, report, grain)


_QUERIES = {
    "skew": (
        ("tenant", "service", "samples", "p1", "p50", "p99", "nearLimit", "refused"),
        """
        SELECT tenant, split_part(source, '/', 2), count(*) FILTER (event = 'snavio.telemetry.skew_sample'),
               quantile_disc(skew_seconds, 0.01) FILTER (event = 'snavio.telemetry.skew_sample'),
               quantile_disc(skew_seconds, 0.5) FILTER (event = 'snavio.telemetry.skew_sample'),
               quantile_disc(skew_seconds, 0.99) FILTER (event = 'snavio.telemetry.skew_sample'),
               round(count(*) FILTER (event = 'snavio.telemetry.skew_near_limit')
                     / greatest(1, count(*) FILTER (event LIKE 'snavio.command.%' AND event != 'snavio.command.invalid')), 3),
               count(*) FILTER (reason IN ('timestamp-expired', 'timestamp-future'))
        FROM events WHERE event LIKE 'snavio.command.%' OR event LIKE 'snavio.telemetry.skew%' GROUP BY ALL""",
    ),
    "limits": (
        ("tenant", "service", "command", "used", "refused", "shadow", "max", "intervalSeconds"),
        """
        SELECT split_part(target, '/', 1), split_part(target, '/', 2), command_name,
               count(*) FILTER (event = 'snavio.command.delivered'), count(*) FILTER (event = 'snavio.command.failed'),
               count(shadow), arg_max(max, time), arg_max(interval_seconds, time)
        FROM events
        WHERE event IN ('snavio.command.delivered', 'limit.sampled')
              OR (event = 'snavio.command.failed' AND reason = 'rate-limit-exceeded')
        GROUP BY ALL""",
    ),
    "telemetry": (
        ("tenant", "emitted", "dropped"),
        """
        SELECT tenant, count(*), coalesce(sum(dropped_events), 0)::BIGINT
        FROM events WHERE event NOT LIKE '%.sampled' GROUP BY ALL""",
    ),
    "fairness": (
        ("tenant", "service", "peer", "command", "warm", "cold", "refused"),
        """
        SELECT split_part(target, '/', 1), split_part(target, '/', 2), source, command_name,
               count(*) FILTER (path = 'fast'), count(*) FILTER (path = 'slow'), count(*) FILTER (event = 'snavio.command.failed')
        FROM events
        WHERE event = 'snavio.command.delivered'
              OR (event = 'snavio.command.failed' AND reason IN ('rate-limit-exceeded', 'fairness-violation'))
        GROUP BY ALL""",
    ),
}


@pytest.mark.parametrize("report", list(_QUERIES))
def test_a_report_of_the_day_equals_duckdb_over_the_same_files(report: str, tmp_path: Path) -> None:
    import duckdb  # here, as a process that has only imported it reports leaks when it ends

    events = traffic(3)
    table = events_table(events, "command_events")
    pq.write_table(table, tmp_path / "events.parquet")
    names, query = _QUERIES[report]
    with duckdb.connect() as connection:
        connection.execute(f"CREATE VIEW events AS FROM read_parquet('{tmp_path / 'events.parquet'}')")
        wanted = sorted(connection.execute(query).fetchall(), key=repr)
    read = pq.read_table(tmp_path / "events.parquet")
    rows = computed(report).rows(measures(read, "command_events"), Grain.DAY).to_pylist()
    if report == "fairness":
        rows = [row for row in rows if row["role"] == "target" and row["command"] and row["dispatched"] + row["refused"]]
    found = sorted((tuple(row[name] for name in names) for row in rows), key=repr)
    assert len(found) == len(wanted) > 1
    for row, right in zip(found, wanted, strict=True):
        assert row == pytest.approx(right, rel=0.008, abs=0.001) if report == "skew" else row == right


def _archived(number: int, source: str, outcome: str, payload: str | None) -> CommandArchived:
    return CommandArchived(
        command_id=f"c{number}",
        target="globex/bot",
        command_name="send",
        payload=payload,
        outcome=outcome,
        **head(number, source, f"line-{number}"),
    )


_OUTCOMES = st.sampled_from(("delivered", "failed", "invalid", "duplicate"))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(("acme/shop", "acme/crm")), _OUTCOMES, st.none() | st.text(max_size=20)), max_size=30),
    st.integers(1, 7),
)
def test_every_archived_line_is_exactly_one_row(lines: list[tuple[str, str, str | None]], size: int) -> None:
    """However lines share frames with events, and whatever their payload."""
    archived = [_archived(number, *line) for number, line in enumerate(lines)]
    events: list[Event] = [one for line in archived for one in (delivered(1), line, failed(1, "acl-deny"), invalid(1, "x"))]
    events += [skewed(1, 0.5)]
    encoded = [msgspec.json.encode(event) for event in events]
    frames = [encoded[begin : begin + size] for begin in range(0, len(encoded), size)]
    stored = pa.scalar(NOON_MS * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC")).as_py()
    batch = pa.Table.from_pylist(
        [
            {"stream": "COMMANDS", "sequence": number, "stored": stored, "owner": "acme", "frame": "1", "data": pack(frame)}
            for number, frame in enumerate(frames, 1)
        ],
        schema=frame_parser.MESSAGE,
    )
    found: Counter[str] = Counter()
    rows: dict[str, dict[str, Any]] = {}
    for name, part in frame_parser.read(batch.to_batches()):
        found[name] += len(part)
        if name == "commands":
            rows |= {row["event_id"]: row for row in part.to_pylist()}
    assert found["commands"] == len(rows) == len(archived)
    assert found["command_events"] == len(events) - len(archived) and found["quarantine"] == 0
    for line in archived:
        row = rows[line.event_id]
        assert (row["source"], row["outcome"], row["payload"]) == (line.source, line.outcome, line.payload)
