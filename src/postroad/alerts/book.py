"""The open alerts of an installation: events are counted into them, windows end, alerts resolve. Pure: no I/O, no clock.

The id of an alert follows from its first event, so that events that are read again after a crash open the same alert.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

import msgspec

from postroad.alerts.records import AlertRecord, Due
from postroad.alerts.rules import OPERATORS, OPPOSITES, EventFields, Rule, group_of, quiet_until_ms
from postroad.kernel.ids import derived_id

_FIRST_SAMPLES = 2
_SAMPLE_BYTES_MAX = 2048
_OPEN_MAX = 500  # alerts of a tenant; further groups share one alert for each rule and type of event
_OTHER = "(others)"

Destinations = Callable[[Rule, EventFields], Sequence[str]]


class AlertBook:
    """`destinations` returns the channels that an alert of a rule is sent to. `changed` are the ids of the alerts that differ
    from what is stored; `opened` and `resolved` those that have no event about it yet."""

    def __init__(self, destinations: Destinations) -> None:
        self._destinations = destinations
        self.alerts: dict[str, AlertRecord] = {}  # open and pending ones
        self.unsent: dict[str, AlertRecord] = {}  # resolved ones with notifications to be sent
        self.changed: dict[str, AlertRecord] = {}
        self.opened: list[AlertRecord] = []
        self.resolved: list[AlertRecord] = []
        self._by_group: dict[tuple[str, str, str, str], str] = {}
        self._open_counts: dict[str, int] = {}

    def load(self, records: Iterable[AlertRecord]) -> None:
        for one in records:
            if one.is_open:
                self._add(one)
            elif one.due:
                self.unsent[one.id] = one

    def _add(self, record: AlertRecord) -> None:
        self.alerts[record.id] = record
        self._by_group[_key(record)] = record.id
        self._open_counts[record.tenant] = self._open_counts.get(record.tenant, 0) + 1

    def _remove(self, record: AlertRecord) -> None:
        self.alerts.pop(record.id, None)
        if record.due:
            self.unsent[record.id] = record
        self._by_group.pop(_key(record), None)
        self._open_counts[record.tenant] = self._open_counts.get(record.tenant, 1) - 1

    # Events

    def apply(self, event: EventFields, line: bytes, rules: Iterable[Rule], at_ms: int) -> None:
        """Count an event, stored at `at_ms`, into the alerts of the rules that it matches, and resolve those that it ends."""
        self.apply_equal([(event, line)], rules, at_ms)

    def apply_equal(self, events: Sequence[tuple[EventFields, bytes]], rules: Iterable[Rule], at_ms: int) -> None:
        """Like `apply` of each event and its line, for events with equal `compared`: the rules are compared once."""
        event = events[0][0]
        group = group_of(event)
        for rule in rules:
            if rule.matches(event):
                if len(events) == 1:
                    self._count(rule, event, group, events[0][1], at_ms)
                else:
                    self._count_equal(rule, events, group, at_ms)
        ended = OPPOSITES.get(event.event)
        if ended is not None:
            for key in [key for key in self._by_group if (key[0], key[2], key[3]) == (event.tenant, ended, group)]:
                self.resolve(self.alerts[self._by_group[key]], "event", at_ms)

    def _count_equal(self, rule: Rule, events: Sequence[tuple[EventFields, bytes]], group: str, at_ms: int) -> None:
        """One by one until the alert is open and has its first samples: the event that opens it is the one that is notified."""
        record = self._find(rule, events[0][0], group, at_ms)
        counted, number = 0, len(events)
        while counted < number and (record.is_pending or len(record.first_samples) < _FIRST_SAMPLES):
            event, line = events[counted]
            self._count(rule, event, group, line, at_ms)
            counted += 1
        if counted == number:
            return
        record.count += number - counted
        record.last_ms = at_ms
        self.changed[record.id] = record
        for index in range(number - 1, counted - 1, -1):
            if len(events[index][1]) <= _SAMPLE_BYTES_MAX:
                record.last_samples = [msgspec.Raw(events[index][1])]
                break

    def _count(self, rule: Rule, event: EventFields, group: str, line: bytes, at_ms: int) -> None:
        record = self._find(rule, event, group, at_ms)
        if record.is_pending and at_ms >= record.window_ends_ms:  # too few in that window: it begins again
            record.count, record.first_ms, record.first_samples, record.last_samples = 0, at_ms, [], []
            record.window_ends_ms = at_ms + record.window_ms
        record.count += 1
        record.last_ms = at_ms
        if len(line) <= _SAMPLE_BYTES_MAX:
            if len(record.first_samples) < _FIRST_SAMPLES:
                record.first_samples = [*record.first_samples, msgspec.Raw(line)]
            else:
                record.last_samples = [msgspec.Raw(line)]
        if record.is_pending and record.count >= rule.definition.min_count:
            self._open(record, rule, event, at_ms)
        self.changed[record.id] = record

    def _find(self, rule: Rule, event: EventFields, group: str, at_ms: int) -> AlertRecord:
        known = self._by_group.get((event.tenant, rule.name, event.event, group))
        if known is None and self._open_counts.get(event.tenant, 0) >= _OPEN_MAX:
            group = _OTHER
            known = self._by_group.get((event.tenant, rule.name, event.event, group))
        if known is not None:
            return self.alerts[known]
        window_ms = rule.definition.window_seconds * 1000
        record = AlertRecord(
            id=derived_id(at_ms, "alert", event.tenant, rule.name, group, event.event_id),
            tenant=event.tenant,
            rule=rule.name,
            event=event.event,
            group=group,
            severity=rule.definition.severity,
            is_pending=True,
            first_ms=at_ms,
            window_ms=window_ms,
            window_ends_ms=at_ms + window_ms,
            first_samples=[],
            due={},
            undelivered=[],
        )
        self._add(record)
        return record

    def _open(self, record: AlertRecord, rule: Rule, event: EventFields, at_ms: int) -> None:
        record.is_pending, record.opened_ms = False, at_ms
        record.window_ends_ms = at_ms + record.window_ms
        record.notified_count = record.count
        self._notify(record, "opened", rule, self._destinations(rule, event), at_ms, since_ms=at_ms)
        self.opened.append(record)

    def _notify(
        self, record: AlertRecord, kind: str, rule: Rule | None, channels: Iterable[str], now_ms: int, *, since_ms: int
    ) -> None:
        """A notification that is not sent yet stays what it is: it shows the alert as it is when it is sent.

        `since_ms` identifies it, so it follows from what is stored: after a crash the same notification has the same id.
        """
        is_critical = record.severity == "critical"
        wait_ms = 0 if rule is None or is_critical else quiet_until_ms(rule.definition.quiet_hours, now_ms)
        for channel in channels:
            if channel == OPERATORS:
                record.is_flagged = True
            elif channel not in record.due:
                record.due = {**record.due, channel: Due(kind=kind, since_ms=since_ms, next_ms=wait_ms)}

    # Notifications

    def due(self, now_ms: int) -> dict[tuple[str, str], list[AlertRecord]]:
        """The alerts with a notification that can be sent now, by tenant and channel."""
        found: dict[tuple[str, str], list[AlertRecord]] = {}
        for record in (*self.alerts.values(), *self.unsent.values()):
            for channel, due in record.due.items():
                if due.next_ms <= now_ms:
                    found.setdefault((record.tenant, channel), []).append(record)
        return found

    def find(self, alert_id: str) -> AlertRecord | None:
        return self.alerts.get(alert_id) or self.unsent.get(alert_id)

    def delivered(self, record: AlertRecord, channel: str) -> None:
        self._end(record, channel)

    def undelivered(self, record: AlertRecord, channel: str, *, is_flagged: bool) -> None:
        """Give a notification up. `is_flagged`: the operators get it instead."""
        record.undelivered = sorted({*record.undelivered, channel})
        record.is_flagged = record.is_flagged or is_flagged
        self._end(record, channel)

    def delayed(self, record: AlertRecord, channel: str, next_ms: int, *, is_attempt: bool = True) -> None:
        known = record.due[channel]
        after = Due(kind=known.kind, since_ms=known.since_ms, attempts=known.attempts + is_attempt, next_ms=next_ms)
        record.due = {**record.due, channel: after}
        self.changed[record.id] = record

    def _end(self, record: AlertRecord, channel: str) -> None:
        record.due = {name: due for name, due in record.due.items() if name != channel}
        if not record.due:
            self.unsent.pop(record.id, None)
        self.changed[record.id] = record

    # Time

    def tick(
        self,
        now_ms: int,
        rule_of: Callable[[str, str], Rule | None],
        is_acknowledged: Callable[[AlertRecord], bool],
        limit: int = 1_000_000,
    ) -> int:
        """End up to `limit` windows that are over: notify again about alerts that grew, resolve quiet ones, forget pending ones.

        Return how many ended.
        """
        ended = list(islice((one for one in self.alerts.values() if now_ms >= one.window_ends_ms), limit))
        for record in ended:
            self.changed[record.id] = record
            if record.is_pending:
                record.is_open, record.resolved_by, record.resolved_ms = False, "pending", now_ms
                self._remove(record)
                continue
            rule = rule_of(record.tenant, record.rule)
            if record.count > record.notified_count:
                record.notified_count = record.count
                if rule is not None and not is_acknowledged(record):
                    event = EventFields(event=record.event, tenant=record.tenant)
                    channels = self._destinations(rule, event)
                    self._notify(record, "grew", rule, channels, now_ms, since_ms=record.window_ends_ms)
            elif record.event not in OPPOSITES.values() or record.group == _OTHER:  # of which one recovery ends nothing
                self.resolve(record, "quiet", now_ms)
                continue
            record.window_ends_ms = now_ms + record.window_ms
        return len(ended)

    def resolve(self, record: AlertRecord, by: str, now_ms: int) -> None:
        """`by`: `event`, `quiet`, or the id of a key."""
        if not record.is_open:
            return
        record.is_open, record.resolved_by, record.resolved_ms = False, by, now_ms
        self._remove(record)
        self.changed[record.id] = record
        if not record.is_pending:
            self.resolved.append(record)

    def forget(self, record: AlertRecord) -> None:
        """Remove an alert as if it had not opened: without an event, a notification, or a place in the history."""
        record.due, record.is_open, record.is_pending = {}, False, True
        if record.id in self.alerts:
            self._remove(record)
        self.unsent.pop(record.id, None)
        self.changed[record.id] = record


def _key(record: AlertRecord) -> tuple[str, str, str, str]:
    return record.tenant, record.rule, record.event, record.group
