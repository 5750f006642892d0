"""The fairness auditor: which verdicts it publishes, and when. Its lake and engine are in memory."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]

from postroad.api.command_limits import Fairness
from postroad.commands.records import RouteRecord
from postroad.contracts.verdicts import FairnessVerdict
from postroad.kernel.event import Event
from postroad.pipeline.fairness_auditor import GRACE, AuditorConfig, FairnessAuditor
from postroad.pipeline.fairness_rules import Thresholds
from postroad.pipeline.measures import measures
from postroad.pipeline.messages import OutgoingMessage
from postroad.pipeline.rollups import NO_MEASURES
from tests.pipeline.command_samples import delivered
from tests.pipeline.event_samples import moment
from tests.pipeline.frames import events_table


class _Lake:
    """Has the rollups of these events."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._rollups = NO_MEASURES
        self.add(events)

    def add(self, events: Iterable[Event]) -> None:
        self._rollups = pa.concat_tables([self._rollups, measures(events_table(events, "command_events"), "command_events")])

    def files(self, _table: str) -> list[Any]:
        return [SimpleNamespace(last=int(moment(86_400).timestamp() * 1000))]

    def read_rollups(self, _files: Iterable[Any]) -> Any:
        return self._rollups


class _Engine:
    """Records verdicts. Every route exists, with these settings of fairness."""

    def __init__(self, fairness: Fairness | None = None) -> None:
        self._record = RouteRecord(
            v=1,
            tenant="globex",
            service="bot",
            command="send",
            queue="q",
            created_at_ms=0,
            updated_at_ms=0,
            fairness=fairness,
        )
        self.published: list[OutgoingMessage] = []

    def read_keys(self, _bucket: str, keys: Iterable[str]) -> dict[str, bytes]:
        return dict.fromkeys(keys, msgspec.json.encode(self._record))

    def publish(self, messages: Sequence[OutgoingMessage]) -> None:
        self.published += messages


def dominated(*minutes: int, noisy: int = 90) -> list[Event]:
    """In each of these minutes `acme/shop` has 90 % of the commands of a route."""
    return [
        delivered(minute * 60 + second / 2, "acme/shop" if second < noisy else "globex/billing")
        for minute in minutes
        for second in range(100)
    ]


def auditor(lake: _Lake, engine: _Engine, **config: Any) -> FairnessAuditor:
    return FairnessAuditor(lake, engine, AuditorConfig(**config))  # type: ignore[arg-type]


def verdicts(engine: _Engine) -> list[FairnessVerdict]:
    return [msgspec.json.decode(one.data, type=FairnessVerdict) for one in engine.published]


def end_of(minute: int) -> datetime:
    return moment(minute * 60 + 60) + GRACE


def test_a_dominated_minute_is_one_verdict_after_its_end() -> None:
    """Requirement 120"""
    lake, engine = _Lake(dominated(0)), _Engine()
    audited = auditor(lake, engine, ban_seconds=300)
    assert audited.audit(end_of(0) - timedelta(seconds=1)) == 0
    assert audited.audit(end_of(0)) == 1
    assert audited.audit(end_of(0) + timedelta(seconds=30)) == 0, "it was audited"
    assert audited.audit(end_of(1)) == 0, "the next minute has no commands"
    [found] = verdicts(engine)
    assert (found.source, found.minute, found.violations) == ("acme/shop", moment(0), 1)
    assert [(one.target, one.command, one.share, one.dispatched) for one in found.routes] == [("globex/bot", "send", 0.9, 100)]
    assert found.ban_until == moment(60) + timedelta(seconds=300)
    assert engine.published[0].subject == "verdict.acme"


def test_after_a_restart_the_last_minutes_are_repeated_with_the_same_ids() -> None:
    """The service drops verdicts that it has, and those that are older than five minutes."""
    lake, engine = _Lake(dominated(0, 1, 2, 3, 4, 5)), _Engine()
    first = auditor(lake, engine)
    for minute in range(6):
        first.audit(end_of(minute))
    once = {one.message_id for one in engine.published}
    assert len(once) == len(engine.published) == 6
    again = _Engine()
    assert auditor(lake, again).audit(end_of(5)) == 5
    assert {one.message_id for one in again.published} < once
    assert {one.data for one in again.published} < {one.data for one in engine.published}
    assert [one.violations for one in verdicts(engine)] == [1, 2, 3, 4, 5, 6]


def test_events_that_arrive_after_their_minute_was_audited_still_lead_to_one_verdict() -> None:
    """As after an outage of the engine: gateways keep their events until it is back."""
    engine = _Engine()
    lake = _Lake(dominated(0)[:40])
    audited = auditor(lake, engine)
    assert audited.audit(end_of(0)) == 0
    lake.add(dominated(0)[40:])
    assert audited.audit(end_of(1)) == 1
    assert audited.audit(end_of(2)) == 0
    [found] = verdicts(engine)
    assert (found.source, found.minute, found.routes[0].dispatched) == ("acme/shop", moment(0), 100)


def test_the_policy_of_the_route_and_the_thresholds_apply() -> None:
    """Requirement 121"""
    lake = _Lake(dominated(0, noisy=70))
    for fairness, thresholds, expected in (
        (None, Thresholds(), 0),
        (None, Thresholds(dominant=0.65), 1),
        (None, Thresholds(dominant=0.65, dispatches_min=71), 0),
        (Fairness(dominant_share=0.65), Thresholds(), 1),
        (Fairness(enabled=False, dominant_share=0.65), Thresholds(), 0),
    ):
        engine = _Engine(fairness)
        assert auditor(lake, engine, thresholds=thresholds).audit(end_of(0)) == expected, (fairness, thresholds)


def test_an_auditor_that_is_off_publishes_nothing() -> None:
    engine = _Engine()
    assert auditor(_Lake(dominated(0)), engine, is_enabled=False).audit(end_of(0)) == 0
    assert engine.published == []
