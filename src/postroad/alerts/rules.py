"""Alert rules: built-in ones, which events match, how alerts are grouped, and when notifications wait. Pure: no I/O, no clock."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from postroad.api.alerts import DASHBOARD, NAME_PATTERN, QuietHours, RuleDefinition
from postroad.kernel.errors import InvalidParameter
from postroad.kernel.event import PLATFORM
from postroad.kernel.matching import pattern_matches

CRITICAL_EVENTS = ("snavio.command.invalid", "snavio.telemetry.dropped", "snavio.secret.key_expiry_imminent")
OPPOSITES: Mapping[str, str] = {"route.recovered": "route.unhealthy"}  # an event of the first type resolves alerts of the second
OWN_EVENTS = "alert."  # events of alerts raise no alerts
CONTACT, OPERATORS = "_contact", "_operators"  # destinations of critical alerts without a channel

_NAME = re.compile(NAME_PATTERN)


def check_name(text: str) -> None:
    """Check the name of a new rule or channel. Raises InvalidParameter."""
    if not _NAME.fullmatch(text):
        raise InvalidParameter(
            f"the name has 1 to 64 characters of a-z, 0-9, '_' and '-', and starts with a letter or digit: {text[:100]!r}"
        )


class EventFields(msgspec.Struct, frozen=True):
    """The fields of an event that rules compare."""

    event: str
    event_id: str = ""
    tenant: str = ""
    source: str | None = None
    target: str | None = None
    command_name: str | None = msgspec.field(name="command.name", default=None)
    reason: str | None = None
    queue: str | None = None
    channel: str | None = None
    worker: str | None = None
    events_dropped: int = 0

    @property
    def compared(self) -> tuple[object, ...]:
        """What rules and groups depend on."""
        return (
            self.event,
            self.source,
            self.target,
            self.command_name,
            self.reason,
            self.queue,
            self.channel,
            self.worker,
            self.events_dropped,
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """`condition` is what a built-in rule checks besides its pattern."""

    name: str
    definition: RuleDefinition
    is_built_in: bool = False
    is_changed: bool = True
    condition: Callable[[EventFields], bool] | None = None

    @property
    def is_critical(self) -> bool:
        return any(pattern_matches(self.definition.events, one) for one in CRITICAL_EVENTS)

    def accepts_type(self, name: str) -> bool:
        is_own = name.startswith(OWN_EVENTS) and name != self.definition.events
        return self.definition.enabled and not is_own and pattern_matches(self.definition.events, name)

    def matches(self, event: EventFields) -> bool:
        """Whether the event, whose type is accepted, has the wanted fields."""
        wanted = self.definition
        return (
            _is_service(wanted.source, event.source, event.tenant)
            and _is_service(wanted.target, event.target, event.tenant)
            and wanted.reason in (None, event.reason)
            and (self.condition is None or self.condition(event))
        )


def can_raise_alerts(events: str, types: Iterable[str]) -> bool:
    """Whether a rule with this pattern accepts one of the types."""
    rule = Rule("", RuleDefinition(events=events))
    return any(rule.accepts_type(one) for one in types)


def _is_service(wanted: str | None, name: str | None, tenant: str) -> bool:
    return wanted is None or name == (wanted if "/" in wanted else f"{tenant}/{wanted}")


def _built_in(name: str, events: str, severity: str, condition: Callable[[EventFields], bool] | None = None) -> Rule:
    definition = RuleDefinition(events=events, severity=severity)  # type: ignore[arg-type]
    return Rule(name, definition, is_built_in=True, is_changed=False, condition=condition)


BUILT_IN: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        _built_in("telemetry-unconsumed", "telemetry.unconsumed", "warning"),
        _built_in("telemetry-dropped", "snavio.telemetry.dropped", "critical"),
        _built_in("dead-letters-growing", "queue.dead_letters_growing", "warning"),
        _built_in("command-invalid", "snavio.command.invalid", "critical"),
        _built_in("fairness", "snavio.fairness.*", "warning"),
        _built_in("bans", "ban.created", "warning"),
        _built_in("executed-after-acl-revoked", "snavio.command.executed_after_acl_revoked", "critical"),
        _built_in("key-expiry", "snavio.secret.key_expiry_imminent", "critical"),
        _built_in("route-health", "route.unhealthy", "warning"),
    )
}
PLATFORM_RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        _built_in("snapshot-failed", "snapshot.failed", "warning"),
        _built_in("snapshot-too-large", "snavio.snapshot.too_large", "warning"),
        _built_in("events-dropped", "process.sampled", "critical", lambda event: event.events_dropped > 0),
        _built_in("telemetry-evicted", "telemetry.evicted", "warning"),
        _built_in("telemetry-stalled", "telemetry.stalled", "warning"),
        _built_in("pipeline-lag", "pipeline.lagging", "warning"),
        _built_in("channel-failing", "alert.channel_failing", "warning"),
    )
}


def built_in_rules(tenant: str) -> Mapping[str, Rule]:
    return PLATFORM_RULES if tenant == PLATFORM else BUILT_IN


def uncovered_events(rules: Iterable[Rule]) -> list[str]:
    """The critical events for which no enabled rule has a channel. A rule with conditions does not count."""
    covering = [
        rule.definition
        for rule in rules
        if rule.definition.enabled
        and rule.definition.channels
        and rule.definition.min_count == 1
        and not (rule.definition.source or rule.definition.target or rule.definition.reason)
    ]
    return [event for event in CRITICAL_EVENTS if not any(pattern_matches(one.events, event) for one in covering)]


def group_of(event: EventFields) -> str:
    """What alerts are separate for: the route, the sender, the queue, the channel or the process of an event."""
    if event.event.startswith("route."):
        return f"{event.target or ''}/{event.command_name or ''}"
    return event.source or event.queue or event.channel or event.worker or ""


def destinations(rule: Rule, event: str, active: Sequence[str], *, has_contact: bool) -> tuple[str, ...]:
    """The channels that an alert is sent to besides the list, of those that are active. A critical event without one goes to the
    tenant's contact, else to the operators."""
    chosen = tuple(one for one in rule.definition.channels if one != DASHBOARD and one in active)
    if chosen or event not in CRITICAL_EVENTS:
        return chosen
    return (CONTACT,) if has_contact else (OPERATORS,)


def summary_of(severity: str, event: str, group: str, count: int) -> str:
    where = f" of {group}" if group else ""
    times = "" if count == 1 else f", {count:,} times"
    return f"[{severity}] {event}{where}{times}"


# Quiet hours


def is_time_zone(name: str) -> bool:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def quiet_until_ms(hours: QuietHours | None, now_ms: int) -> int:
    """The end of the quiet hours that it is now in; 0 if it is not in them."""
    if hours is None or hours.start == hours.end:
        return 0
    now = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(ZoneInfo(hours.time_zone))
    start, end = (_minutes(one) for one in (hours.start, hours.end))
    minute = now.hour * 60 + now.minute
    is_quiet = start <= minute < end if start < end else minute >= start or minute < end
    if not is_quiet:
        return 0
    day = now if minute < end else now + timedelta(days=1)
    ends = day.replace(hour=end // 60, minute=end % 60, second=0, microsecond=0)
    return int(ends.timestamp() * 1000)


def _minutes(text: str) -> int:
    hour, _, minute = text.partition(":")
    return int(hour) * 60 + int(minute)
