"""Alerts in the live state: those that are open, and those that were resolved in the last ten minutes."""

from collections.abc import Callable, Sequence

import msgspec

from postroad.alerts.records import AlertRecord, StoredAlert, status_of
from postroad.alerts.rule_index import RuleIndex
from postroad.alerts.rules import OPERATORS, EventFields, Rule, summary_of
from postroad.alerts.service import Alerts
from postroad.api.alerts import DASHBOARD
from postroad.api.live_state import LiveAlert
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.identity import Caller
from postroad.telemetry.live_sections import LiveSection, Rows

_RESOLVED_MS = 600_000
_ROWS_MAX = 600


class LiveAlerts(LiveSection):
    """The keys of the current alerts are kept as they change: the history of a tenant is long, and rows are read every second."""

    name = "alerts"

    def __init__(
        self,
        table: ReplicatedTable[StoredAlert],
        alerts: Alerts,
        index: RuleIndex,
        destinations: Callable[[Rule, EventFields], Sequence[str]],
        clock: Clock,
    ) -> None:
        self._alerts, self._index, self._destinations, self._clock = alerts, index, destinations, clock
        self._current: dict[str, dict[str, None]] = {}  # by tenant
        table.on_change(self._changed)

    def _changed(self, key: str, stored: StoredAlert | None) -> None:
        tenant = key.partition(".")[0]
        record = None if stored is None else stored.alert
        if record is not None and self._is_current(record):
            self._current.setdefault(tenant, {})[key] = None
        else:
            self._forget(tenant, key)

    def _forget(self, tenant: str, key: str) -> None:
        keys = self._current.get(tenant)
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del self._current[tenant]

    def _is_current(self, record: AlertRecord) -> bool:
        return record.is_open or record.resolved_ms >= self._clock() - _RESOLVED_MS

    async def rows(self, tenant: str, names: frozenset[str]) -> Rows:
        rows: dict[str, LiveAlert] = {}
        for key in list(self._current.get(tenant, ())):
            record = self._alerts.record(key)
            if record is not None and self._is_current(record):
                rows[record.id] = self._row(record)
            elif record is not None:
                self._forget(tenant, key)
        newest = sorted(rows)[-_ROWS_MAX:]
        return {alert: rows[alert] for alert in newest}

    def _row(self, record: AlertRecord) -> LiveAlert:
        action, rule = self._alerts.action(record), self._index.rule(record.tenant, record.rule)
        event = EventFields(event=record.event, tenant=record.tenant)
        others = [one for one in self._destinations(rule, event) if one != OPERATORS] if rule is not None else []
        is_only_here = record.severity == "critical" and not others
        return LiveAlert(
            id=record.id,
            rule=record.rule,
            event=record.event,
            group=record.group,
            severity=record.severity,
            status=status_of(record, action),
            count=record.count,
            summary=summary_of(record.severity, record.event, record.group, record.count),
            opened_at=rfc3339(record.opened_ms),
            last_at=rfc3339(record.last_ms),
            is_on_dashboard=is_only_here or rule is None or DASHBOARD in rule.definition.channels,
            is_only_here=is_only_here,
        )

    def may_see(self, caller: Caller, key: str, row: msgspec.Struct) -> bool:
        record = self._alerts.record(f"{caller.tenant}.{key}")
        return record is not None and self._alerts.is_visible(caller, record)
