"""Which sources the auditor flags, and what it publishes."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from postroad.api.command_limits import Fairness
from postroad.cli.pipeline import pipeline
from postroad.commands.records import RouteRecord
from postroad.pipeline.delta_table import LakeTable, write_file
from postroad.pipeline.fairness_auditor import closed_minute, dispatches_by_minute, route_policy, violations, warm_bans
from postroad.pipeline.fairness_evaluation import evaluate, rollups_of_day
from postroad.pipeline.fairness_rules import (
    DEFAULT_THRESHOLDS,
    Counts,
    RouteName,
    RoutePolicy,
    RouteShare,
    Thresholds,
    flagged_sources,
)
from postroad.pipeline.measures import measures
from postroad.pipeline.rollups import stored_rollups
from postroad.pipeline.storage import storage_at
from postroad.pipeline.tables import table_formats
from tests.pipeline.command_samples import abuse, delivered, failed, imposed
from tests.pipeline.event_samples import moment
from tests.pipeline.frames import events_table

A, B, C = (RouteName("globex/bot", command) for command in ("send", "cancel", "move"))


def flagged(counts: Counts, thresholds: Thresholds = DEFAULT_THRESHOLDS, **policies: RoutePolicy) -> dict[str, list[str]]:
    found = flagged_sources(counts, thresholds, lambda route: policies.get(route.command, RoutePolicy()))
    return {source: [one.route.command for one in shares] for source, shares in found.items()}


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({A: {"noisy": 81, "quiet": 19}}, {"noisy": ["send"]}),
        ({A: {"noisy": 80, "quiet": 20}}, {}),
        ({A: {"noisy": 1000}}, {}),
        ({A: {"noisy": 59, "quiet": 1}}, {}),
        ({A: {"noisy": 60, "quiet": 1}}, {"noisy": ["send"]}),
        ({A: {"noisy": 61, "quiet": 39}, B: {"noisy": 70, "quiet": 30}}, {"noisy": ["cancel", "send"]}),
        ({A: {"noisy": 61, "quiet": 39}, B: {"noisy": 70}}, {}),
        ({A: {"noisy": 90, "quiet": 10}, B: {"noisy": 10, "quiet": 90}}, {"noisy": ["send"], "quiet": ["cancel"]}),
        ({A: {"noisy": 30, "quiet": 1}, B: {"noisy": 29, "quiet": 1}, C: {"noisy": 1, "quiet": 9}}, {}),
        ({A: {"noisy": 30, "quiet": 1}, B: {"noisy": 30, "quiet": 1}}, {"noisy": ["cancel", "send"]}),
    ],
    ids=lambda value: "",
)
def test_a_source_is_flagged_by_its_share_on_routes_that_others_use(counts: Counts, expected: dict[str, list[str]]) -> None:
    assert flagged(counts) == expected


def test_the_owner_of_a_route_sets_its_threshold_or_turns_fairness_off() -> None:
    counts = {A: {"noisy": 75, "quiet": 25}}
    assert flagged(counts) == {}
    assert flagged(counts, send=RoutePolicy(dominant=0.7)) == {"noisy": ["send"]}
    assert flagged({A: {"noisy": 95, "quiet": 5}}, send=RoutePolicy(dominant=0.96)) == {}
    assert flagged({A: {"noisy": 95, "quiet": 5}}, send=RoutePolicy(is_enabled=False)) == {}


def test_the_policy_of_a_route_is_in_its_record() -> None:
    record = RouteRecord(tenant="acme", service="bot", command="post", queue="q", created_at_ms=0, updated_at_ms=0)
    assert route_policy(record) == RoutePolicy()
    own = msgspec.structs.replace(record, fairness=Fairness(enabled=False, dominant_share=0.7))
    assert route_policy(own) == RoutePolicy(is_enabled=False, dominant=0.7)


def test_policies_are_read_only_for_routes_that_can_matter() -> None:
    asked: list[RouteName] = []

    def policy_of(route: RouteName) -> RoutePolicy:
        asked.append(route)
        return RoutePolicy()

    flagged_sources({A: {"alone": 500}, B: {"few": 30, "other": 10}, C: {"noisy": 90, "few": 1}}, Thresholds(), policy_of)
    assert set(asked) == {C}


_COUNTS = st.dictionaries(
    st.sampled_from([A, B, C]), st.dictionaries(st.sampled_from("vwxyz"), st.integers(0, 200), max_size=4), max_size=3
)


@given(_COUNTS, st.floats(0.05, 0.99), st.floats(0.05, 0.99))
def test_a_source_without_competitors_is_never_flagged(counts: Counts, dominant: float, across: float) -> None:
    for source, shares in flagged_sources(counts, Thresholds(dominant, across, 1)).items():
        for one in shares:
            others = sum(number for name, number in counts[one.route].items() if name != source)
            assert others > 0
            assert one.dispatched == others + one.own
            assert one.share > min(dominant, across)


@given(_COUNTS)
def test_a_higher_threshold_flags_no_more(counts: Counts) -> None:
    low, high = (set(flagged(counts, Thresholds(dominant, dominant))) for dominant in (0.6, 0.9))
    assert high <= low


def test_dispatches_by_minute_come_from_rollups_of_both_paths() -> None:
    events = [
        *(delivered(second, "acme/shop") for second in range(59)),
        delivered(3, "acme/shop", path="slow"),
        delivered(61, "acme/shop"),
        delivered(5, "globex/billing"),
        failed(5, "rate-limit-exceeded", "globex/billing"),
        abuse(6, "acme/shop", ["globex/bot"], until=600),
        imposed(7, "acme/shop", until=60),
    ]
    rollups = measures(events_table(events, "command_events"), "command_events")
    route = RouteName("globex/bot", "send")
    assert dispatches_by_minute(rollups) == {
        moment(0): {route: {"acme/shop": 60, "globex/billing": 1}},
        moment(60): {route: {"acme/shop": 1}},
    }
    assert warm_bans(rollups) == [], "a ban by the auditor or the owner of the route is no violation"


def test_a_past_day_is_evaluated_with_other_thresholds(tmp_path: Path) -> None:
    """In the lake's rollups, without Spark; a source that is banned is not banned again meanwhile."""
    events = [
        delivered(minute * 60 + second / 2, source)
        for minute in (0, 1, 12)
        for second in range(100)
        for source in (["acme/shop"] * 3 + ["globex/billing"] if second % 2 else ["acme/shop"])
    ]
    storage = storage_at(str(tmp_path))
    table = LakeTable(storage, table_formats()["rollups"])
    rollups = stored_rollups(measures(events_table(events, "command_events"), "command_events"), table.format.schema)
    table.commit([write_file(storage, table.format, "2026-11-16", rollups, "b00000000")])
    found = rollups_of_day(storage, "2026-11-16")
    assert evaluate(found, Thresholds(0.8), 600) == []
    [flagged_source] = evaluate(found, Thresholds(0.75), 600)
    assert (flagged_source.source, flagged_source.minutes, flagged_source.bans) == ("acme/shop", 3, 2)
    assert (flagged_source.first, flagged_source.largest.share) == (moment(0), 0.8)
    assert evaluate(rollups_of_day(storage, "2026-11-15"), Thresholds(0.1), 600) == []
    answer = CliRunner().invoke(
        pipeline, ["fairness", "--day", "2026-11-16", "--dominant", "0.75", "--lake", str(tmp_path), "--data", str(tmp_path)]
    )
    assert answer.exit_code == 0, answer.output
    assert "acme/shop" in answer.output and "80% of 250" in answer.output
    assert CliRunner().invoke(pipeline, ["fairness", "--day", "soon"]).exit_code == 2


def test_violations_are_those_of_ten_minutes() -> None:
    minute = datetime(2026, 11, 16, 12, 30, tzinfo=UTC)
    share = [RouteShare(A, 90, 100)]
    dominated = {minute - timedelta(minutes=age): {"noisy": share} for age in (0, 3, 9, 10)}
    bans = [(minute - timedelta(minutes=9), "noisy", 2), (minute - timedelta(minutes=10), "noisy", 5), (minute, "other", 1)]
    assert violations("noisy", minute, dominated, bans) == 3 + 2


def test_a_minute_is_closed_some_seconds_after_its_end() -> None:
    noon = datetime(2026, 11, 16, 12, tzinfo=UTC)
    assert closed_minute(noon + timedelta(seconds=2)) == noon - timedelta(minutes=2)
    assert closed_minute(noon + timedelta(seconds=3)) == noon - timedelta(minutes=1)
