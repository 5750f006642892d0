"""Alert rules without I/O."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad import registry
from postroad.alerts.book import AlertBook
from postroad.alerts.rules import (
    BUILT_IN,
    CONTACT,
    CRITICAL_EVENTS,
    OPERATORS,
    PLATFORM_RULES,
    EventFields,
    Rule,
    destinations,
    group_of,
    quiet_until_ms,
    uncovered_events,
)
from postroad.api.alerts import QuietHours, RuleDefinition
from postroad.kernel.event import event_name
from postroad.kernel.matching import pattern_matches


def rule(**fields: object) -> Rule:
    return Rule("r", RuleDefinition(**{"events": "snavio.>", **fields}))  # type: ignore[arg-type]


def event(name: str = "snavio.command.failed", **fields: object) -> EventFields:
    return EventFields(event=name, tenant="acme", **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("built_in", [*BUILT_IN.values(), *PLATFORM_RULES.values()], ids=lambda one: one.name)
def test_built_in_rules_are_about_events_that_exist(built_in: Rule) -> None:
    """Requirement 179"""
    names = [event_name(kind) for kind in registry.event_types()]
    assert any(pattern_matches(built_in.definition.events, name) for name in names)


def test_rules_match_by_type_source_target_and_reason() -> None:
    given = event(source="acme/billing", target="other/bot", reason="acl-deny")
    assert rule().matches(given)
    assert rule(source="billing").matches(given) and rule(source="acme/billing").matches(given)
    assert not rule(source="other").matches(given)
    assert rule(target="other/bot").matches(given) and not rule(target="bot").matches(given)
    assert rule(reason="acl-deny").matches(given) and not rule(reason="route-missing").matches(given)
    assert rule().accepts_type("snavio.command.failed") and not rule().accepts_type("job.done")
    assert not rule(enabled=False).accepts_type("snavio.command.failed")
    assert not rule(events=">").accepts_type("alert.opened"), "alerts raise no alerts"
    assert PLATFORM_RULES["channel-failing"].accepts_type("alert.channel_failing")


def test_events_are_grouped_by_sender_route_or_queue() -> None:
    assert group_of(event(source="acme/a", target="acme/b")) == "acme/a"
    assert group_of(EventFields(event="route.unhealthy", target="acme/b", command_name="post")) == "acme/b/post"
    assert group_of(EventFields(event="queue.dead_letters_growing", queue="q")) == "q"
    assert group_of(event()) == ""


def test_critical_events_always_have_a_destination() -> None:
    """Requirements 185, 186, 201"""
    for name in CRITICAL_EVENTS:
        assert destinations(rule(channels=("mail",)), name, ["mail"], has_contact=True) == ("mail",)
        assert destinations(rule(channels=("mail",)), name, [], has_contact=True) == (CONTACT,)
        assert destinations(rule(), name, [], has_contact=False) == (OPERATORS,)
    assert destinations(rule(), "route.unhealthy", [], has_contact=True) == ()
    assert uncovered_events(BUILT_IN.values()) == []
    disabled = Rule("command-invalid", RuleDefinition(events="snavio.command.invalid", enabled=False))
    others = [one for one in BUILT_IN.values() if one.name != "command-invalid"]
    assert uncovered_events([*others, disabled]) == ["snavio.command.invalid"]
    assert uncovered_events([*others, rule(events="snavio.command.*")]) == []
    for vague in ({"source": "a"}, {"min_count": 2}, {"channels": ()}, {"reason": "x"}):
        assert uncovered_events([*others, rule(events="snavio.command.*", **vague)]) == ["snavio.command.invalid"]


_DEFINITIONS = st.builds(
    RuleDefinition,
    events=st.sampled_from([*CRITICAL_EVENTS, "snavio.>", "snavio.command.*", "snavio.command.failed", "route.*", ">"]),
    channels=st.sampled_from([(), ("dashboard",), ("mail",), ("dashboard", "mail"), ("hook", "mail")]),
    enabled=st.booleans(),
    min_count=st.sampled_from([1, 1, 2]),
    source=st.sampled_from([None, None, "billing"]),
    reason=st.sampled_from([None, None, "hmac-invalid"]),
)


@given(
    st.dictionaries(st.sampled_from([*BUILT_IN, "mine", "ours"]), _DEFINITIONS, max_size=6),
    st.sets(st.sampled_from(["mail", "hook"])),
    st.booleans(),
    st.builds(
        event, st.sampled_from(CRITICAL_EVENTS), source=st.sampled_from([None, "acme/billing", "acme/x"]), reason=st.none()
    ),
)
def test_whatever_rules_are_accepted_a_critical_event_has_a_destination(
    changes: dict[str, RuleDefinition], active: set[str], has_contact: bool, given_event: EventFields
) -> None:
    """Requirement 185: changes that leave one uncovered are refused; channels may fail and contacts may be missing later."""
    rules = {**BUILT_IN, **{name: Rule(name, definition) for name, definition in changes.items()}}
    if uncovered_events(rules.values()):
        return
    book = AlertBook(lambda one, event: destinations(one, event.event, sorted(active), has_contact=has_contact))
    accepting = [one for one in rules.values() if one.accepts_type(given_event.event)]
    book.apply(given_event, b"{}", accepting, 1)
    opened = [one for one in book.alerts.values() if not one.is_pending]
    assert any(one.due or one.is_flagged for one in opened)
    assert {one.tenant for one in book.alerts.values()} == {"acme"}


@pytest.mark.parametrize(
    ("at", "ends"),
    [("21:59", None), ("22:00", "07:00+1"), ("23:30", "07:00+1"), ("06:59", "07:00"), ("07:00", None), ("12:00", None)],
)
def test_quiet_hours_may_pass_midnight(at: str, ends: str | None) -> None:
    hours = QuietHours(start="22:00", end="07:00")
    now = datetime.fromisoformat(f"2026-11-17T{at}:00+00:00")
    until = quiet_until_ms(hours, int(now.timestamp() * 1000))
    if ends is None:
        assert until == 0
    else:
        clock, _, days = ends.partition("+")
        assert datetime.fromtimestamp(until / 1000, UTC).isoformat() == f"2026-11-{17 + int(days or 0)}T{clock}:00+00:00"


def test_quiet_hours_follow_their_time_zone() -> None:
    hours = QuietHours(start="09:00", end="17:00", time_zone="America/New_York")
    noon = int(datetime(2026, 11, 17, 12, tzinfo=UTC).timestamp() * 1000)  # 7 in New York
    assert quiet_until_ms(hours, noon) == 0
    assert quiet_until_ms(hours, noon + 3 * 3_600_000) == noon + 10 * 3_600_000
