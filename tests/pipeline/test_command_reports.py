"""Reports of commands from small frames, compared with plain Python and with DuckDB over the same rows."""

import random
from collections import Counter
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.api.insights import Grain, columns_of
from postroad.kernel.event import Event
from postroad.pipeline.measures import measures
from postroad.pipeline.reports import DEFAULT_SETTINGS, ComputedReport, ReportSettings, computed_reports
from postroad.pipeline.reports.skew import signed_buckets, signed_values
from postroad.pipeline.rollups import KEY, NO_MEASURES, TIME, merge
from tests.pipeline.command_samples import (
    SOURCES,
    abuse,
    command_traffic,
    delivered,
    dropped,
    failed,
    flagged,
    invalid,
    limited,
    near_limit,
    skewed,
    telemetry_sampled,
)
from tests.pipeline.event_samples import NOON, moment
from tests.pipeline.frames import events_table


def query(table: pa.Table, text: str) -> list[Any]:
    """Rows of a query of `events`."""
    import duckdb  # here, as a process that has only imported it reports leaks when it ends

    with duckdb.connect() as connection:
        connection.register("events", table)
        return connection.execute(text).fetchall()


_TYPES = {pa.string(): "text", pa.int64(): "int", pa.float64(): "float", TIME: "time"}


def rollups_of(*events: Event) -> pa.Table:
    rows = [event for event in events if event.table == "command_events"]
    return measures(events_table(rows, "command_events"), "command_events")


def computed(name: str, settings: ReportSettings = DEFAULT_SETTINGS) -> ComputedReport:
    [found] = [one for one in computed_reports(settings) if one.report.name == name]
    return found


def read(name: str, rollups: pa.Table, grain: Grain = Grain.HOUR) -> list[dict[str, Any]]:
    report = computed(name)
    rows = report.rows(rollups, grain)
    assert rows.column_names == ["tenant", *(one.name for one in columns_of(report.report.row))]
    found: list[dict[str, Any]] = rows.to_pylist()
    for row in found:  # the row type accepts it as the service will read it
        texts = {
            key: value.isoformat() if isinstance(value, datetime) else value for key, value in row.items() if value is not None
        }
        msgspec.convert(texts, report.report.row, strict=False)
    return sorted(found, key=repr)


@pytest.mark.parametrize(
    ("name", "types"),
    [
        ("commands", "text time text text text text text text text int float float float float"),
        ("fairness", "text time text text text text int int int int float int int time"),
        ("skew", "text time text int float float float float float int int time"),
        ("limits", "text time text text int int int float int int"),
        ("telemetry", "text time int int int int int int int"),
    ],
)
@pytest.mark.parametrize("is_empty", [True, False])
def test_the_columns_of_each_report_have_their_types(name: str, types: str, is_empty: bool) -> None:
    rollups = NO_MEASURES if is_empty else rollups_of(*command_traffic(1, 50))
    schema = computed(name).rows(rollups, Grain.MINUTE).schema
    assert [_TYPES[field.type] for field in schema] == types.split()


def test_the_owner_of_a_route_sees_only_what_shows_that_the_route_exists() -> None:
    events = [
        *(delivered(1, ms=ms) for ms in (1.0, 2.0, 4.0)),
        delivered(2, path="slow", ms=50.0),
        failed(3, "rate-limit-exceeded"),
        failed(4, "acl-deny", command="invented"),
        failed(5, "route-missing", target="acme/nothing"),
        invalid(6, "hmac-invalid"),
    ]
    found = read("commands", rollups_of(*events))
    wanted = ("tenant", "role", "service", "peer", "command", "outcome", "reason", "path", "count", "p50", "max")
    assert [tuple(row[name] for name in wanted) for row in found if row["role"] == "target"] == [
        ("globex", "target", "bot", "", "send", "delivered", "", "fast", 3, 2.008, 4.0),
        ("globex", "target", "bot", "", "send", "delivered", "", "slow", 1, 49.92, 50.0),
        ("globex", "target", "bot", "", "send", "failed", "rate-limit-exceeded", "", 1, None, None),
    ]
    sent = [row for row in found if row["role"] == "source"]
    assert {row["tenant"] for row in sent} == {"acme"}
    assert [(row["peer"], row["command"], row["outcome"], row["reason"]) for row in sent if row["outcome"] != "delivered"] == [
        ("", "", "invalid", "hmac-invalid"),
        ("acme/nothing", "send", "failed", "route-missing"),
        ("globex/bot", "invented", "failed", "acl-deny"),
        ("globex/bot", "send", "failed", "rate-limit-exceeded"),
    ]


def test_shares_are_for_the_owner_of_the_route_and_a_source_sees_its_own_numbers() -> None:
    events = [
        *(delivered(second, "acme/shop") for second in range(6)),
        *(delivered(second, "acme/shop", path="slow") for second in range(2)),
        *(delivered(second, "globex/billing") for second in range(2)),
        failed(3, "fairness-violation", "acme/shop"),
        failed(3, "acl-deny", "acme/shop"),
        abuse(30, "acme/shop", ["globex/bot"], until=630),
        flagged(30, "acme/shop", ["globex/bot"]),
    ]
    found = read("fairness", rollups_of(*events))
    wanted = ("tenant", "role", "service", "peer", "command", "dispatched", "warm", "cold", "refused", "share", "bans")
    assert [tuple(row[name] for name in wanted) for row in found] == [
        ("acme", "source", "shop", "globex/bot", "", 0, 0, 0, 0, None, 1),
        ("acme", "source", "shop", "globex/bot", "send", 8, 6, 2, 1, None, 0),
        ("globex", "source", "billing", "globex/bot", "send", 2, 2, 0, 0, None, 0),
        ("globex", "target", "bot", "acme/shop", "", 0, 0, 0, 0, None, 1),
        ("globex", "target", "bot", "acme/shop", "send", 8, 6, 2, 1, 0.8, 0),
        ("globex", "target", "bot", "globex/billing", "send", 2, 2, 0, 0, 0.2, 0),
    ]
    assert {row["bannedUntil"] for row in found if row["bans"]} == {moment(630)}
    assert [row["flagged"] for row in found] == [1, 0, 0, 1, 0, 0]


def test_skew_has_percentiles_the_share_near_the_limit_and_the_drift() -> None:
    events: list[Event] = [delivered(minute * 60) for minute in range(20)]
    events += [skewed(minute * 60, 10 + minute / 60) for minute in range(20)]  # a second per hour
    events += [near_limit(1, 49.0), invalid(2, "timestamp-expired"), invalid(3, "hmac-invalid")]
    [row] = read("skew", rollups_of(*events))
    assert (row["tenant"], row["service"], row["samples"], row["refused"], row["nearLimit"]) == ("acme", "shop", 20, 1, 0.05)
    assert row["p50"] == pytest.approx(10.15, rel=0.008)
    assert row["driftPerHour"] == pytest.approx(1.0, abs=0.01)
    assert row["leavesWindowAt"] is None, "fifty hours away"


@pytest.mark.parametrize(("drift", "hours"), [(10.0, 4.0), (-5.0, 16.0), (2.0, 20.0)])
def test_a_clock_that_leaves_the_window_within_a_day_is_named_with_the_time(drift: float, hours: float) -> None:
    events = [skewed(minute * 60, 20 + drift * (minute - 30) / 60) for minute in range(31)]
    [row] = read("skew", rollups_of(*events), Grain.DAY)
    ahead = (row["leavesWindowAt"] - moment(30 * 60)).total_seconds() / 3600
    assert ahead == pytest.approx(hours, rel=0.02)


def test_limits_have_the_use_of_the_route_and_its_last_known_limit() -> None:
    """Requirement 230"""
    events = [
        limited(1),
        *(delivered(second) for second in range(5)),
        *(delivered(90, command="cancel") for _ in range(2)),
        delivered(70),
        failed(80, "rate-limit-exceeded"),
        failed(81, "acl-deny"),
    ]
    names = ("tenant", "service", "command", "used", "max", "intervalSeconds", "usage", "refused", "shadow")
    first, second, other = (
        tuple(row[name] for name in names) for row in sorted(read("limits", rollups_of(*events), Grain.MINUTE), key=order_of)
    )
    assert first == ("globex", "bot", "send", 5, 10, 60, 0.5, 0, 0)
    assert second == ("globex", "bot", "send", 1, 10, 60, 0.1, 1, 0), "the limit of the sample before"
    assert other == ("globex", "bot", "cancel", 2, None, None, None, 0, 0), "the route has no limit"


def order_of(row: dict[str, Any]) -> Any:
    return row["command"] != "send", row["time"]


def test_telemetry_has_what_was_emitted_and_whether_it_is_read() -> None:
    """Requirement 192"""
    samples = [telemetry_sampled(10, 7, 100, 5000), telemetry_sampled(70, 3, 120, None)]
    events = [delivered(1), invalid(2, "hmac-invalid"), delivered(3, "globex/billing"), dropped(4, 40), dropped(5, 2)]
    events.append(limited(6, "acme/mailer"))
    rollups = pa.concat_tables([rollups_of(*events), measures(events_table(samples))])
    acme, globex = read("telemetry", rollups)
    names = ("emitted", "delivered", "acknowledged", "waiting", "waitingMax", "oldestAgeMsMax", "dropped")
    assert tuple(acme[name] for name in names) == (4, 120, 119, 3, 7, 5000, 42)
    assert tuple(globex[name] for name in names) == (1, None, None, None, None, None, 0)


def test_samples_of_a_few_minutes_show_no_drift() -> None:
    events = [skewed(0, 0.1), skewed(300, 5.0)]
    [row] = read("skew", rollups_of(*events))
    assert (row["driftPerHour"], row["leavesWindowAt"]) == (None, None)


def test_a_wider_window_is_left_later() -> None:
    events = [skewed(minute * 60, 20 + 10 * minute / 60) for minute in range(31)]
    near, far = (
        computed("skew", ReportSettings(window_seconds=window))
        .rows(rollups_of(*events), Grain.DAY)
        .to_pylist()[0]["leavesWindowAt"]
        for window in (60, 120)
    )
    assert far > near


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_report_equals_duckdb_over_the_same_rows(seed: int) -> None:
    events = [event for event in command_traffic(seed, 400, minutes=90) if event.table == "command_events"]
    table = events_table(events, "command_events")
    rollups = measures(table, "command_events")
    counted = query(
        table,
        """
        SELECT split_part(target, '/', 1), date_trunc('hour', time), split_part(target, '/', 2), command_name,
               split_part(event, '.', 3), coalesce(reason, ''), coalesce(path, ''), count(*), max(dispatch_latency_ms)
        FROM events
        WHERE event LIKE 'snavio.command.%' AND event != 'snavio.command.invalid' AND coalesce(reason, '') != 'acl-deny'
        GROUP BY ALL
    """,
    )
    found = [row for row in read("commands", rollups) if row["role"] == "target"]
    columns = ("tenant", "time", "service", "command", "outcome", "reason", "path", "count")
    assert sorted(tuple(row[name] for name in columns) for row in found) == sorted(row[:-1] for row in counted)
    largest = {row[:-2]: row[-1] for row in counted if row[-1] is not None}
    delivered_rows = [row for row in found if row["outcome"] == "delivered"]
    assert all(row["max"] == pytest.approx(largest[tuple(row[name] for name in columns[:-1])]) for row in delivered_rows)
    exact = query(
        table,
        """
        SELECT split_part(target, '/', 1), date_trunc('hour', time), split_part(target, '/', 2), command_name, path,
               quantile_disc(dispatch_latency_ms, 0.95)
        FROM events WHERE event = 'snavio.command.delivered' GROUP BY ALL
    """,
    )
    p95 = {row[:-1]: row[-1] for row in exact}
    for row in delivered_rows:
        key = tuple(row[name] for name in ("tenant", "time", "service", "command", "path"))
        assert row["p95"] == pytest.approx(p95[key], rel=0.008, abs=0.001)
    shares = query(
        table,
        """
        WITH each AS (
            SELECT split_part(target, '/', 1) AS tenant, date_trunc('hour', time) AS hour, source, target, command_name,
                   count(*) AS n
            FROM events WHERE event = 'snavio.command.delivered' GROUP BY ALL
        )
        SELECT *, n / sum(n) OVER (PARTITION BY hour, target, command_name) FROM each
    """,
    )
    fair = {
        (row["tenant"], row["time"], row["peer"], f"{row['tenant']}/{row['service']}", row["command"], row["dispatched"]): row[
            "share"
        ]
        for row in read("fairness", rollups)
        if row["role"] == "target" and row["dispatched"]
    }
    assert fair.keys() == {row[:-1] for row in shares}
    assert all(fair[row[:-1]] == pytest.approx(row[-1]) for row in shares)
    skews = query(
        table,
        """
        SELECT tenant, date_trunc('hour', time), split_part(source, '/', 2), count(*), quantile_disc(skew_seconds, 0.5)
        FROM events WHERE event = 'snavio.telemetry.skew_sample' GROUP BY ALL
    """,
    )
    clocks = {(row["tenant"], row["time"], row["service"]): row for row in read("skew", rollups)}
    for tenant, hour, service, count, median in skews:
        row = clocks[tenant, hour, service]
        assert (row["samples"], row["p50"]) == (count, pytest.approx(median, rel=0.008, abs=0.001))


_EVENTS = st.lists(
    st.builds(
        delivered,
        st.integers(0, 7200),
        st.sampled_from(SOURCES),
        st.sampled_from(("globex/bot", "acme/mailer")),
        st.sampled_from(("send", "cancel")),
        st.sampled_from(("fast", "slow")),
        st.floats(0, 10_000, allow_nan=False),
    )
    | st.builds(failed, st.integers(0, 7200), st.sampled_from(("acl-deny", "rate-limit-exceeded")), st.sampled_from(SOURCES))
    | st.builds(skewed, st.integers(0, 7200), st.floats(-60, 60, allow_nan=False), st.sampled_from(SOURCES)),
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(_EVENTS, st.sampled_from(list(Grain)))
def test_shares_of_a_route_add_up_to_one(events: list[Event], grain: Grain) -> None:
    totals: Counter[tuple[Any, ...]] = Counter()
    for row in read("fairness", rollups_of(*events), grain):
        if row["share"] is not None:
            totals[row["tenant"], row["time"], row["service"], row["command"]] += row["share"]
    assert all(total == pytest.approx(1.0) for total in totals.values())


@settings(max_examples=40, deadline=None)
@given(_EVENTS, st.randoms(use_true_random=False), st.integers(0, 40))
def test_order_and_boundaries_of_batches_change_nothing(events: list[Event], chance: random.Random, cut: int) -> None:
    shuffled = [*events]
    chance.shuffle(shuffled)
    parts = pa.concat_tables([rollups_of(*shuffled[:cut]), rollups_of(*shuffled[cut:])])
    whole = rollups_of(*events)
    order = [(name, "ascending") for name in KEY]
    assert merge(parts).sort_by(order).to_pylist() == merge(whole).sort_by(order).to_pylist()
    for name in ("commands", "fairness", "skew"):
        assert read(name, parts) == read(name, whole)


@given(st.integers(-10_000_000, 10_000_000))
def test_a_signed_bucket_is_within_its_error_bound(millis: int) -> None:
    import numpy as np

    [value] = signed_values(signed_buckets(np.array([millis])))
    assert abs(value - millis) <= abs(millis) * 0.008
    assert value * millis >= 0, "the sign is kept"


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-60, 60, allow_nan=False).map(lambda value: round(value, 3)), min_size=1, max_size=200))
def test_quantiles_of_skew_are_within_the_error_bound_of_their_buckets(values: list[float]) -> None:
    [row] = read("skew", rollups_of(*(skewed(1, value) for value in values)))
    ordered = sorted(values)
    for percent in (1, 50, 99):
        exact = ordered[max(1, -(-len(ordered) * percent // 100)) - 1]
        assert row[f"p{percent}"] == pytest.approx(exact, rel=0.008, abs=0.001)


def test_the_hour_of_the_traffic_is_that_of_the_events() -> None:
    assert {row["time"] for row in read("commands", rollups_of(delivered(1)))} == {NOON}
