"""Alerts and alert rules: list, change, acknowledge, resolve."""

from collections.abc import Callable, Iterator, Sequence

import msgspec

from postroad.alerts.channels import Channels
from postroad.alerts.records import ActionRecord, AlertRecord, RuleRecord, StoredAlert, alert_of, named_key, rule_of, status_of
from postroad.alerts.rule_index import RuleIndex
from postroad.alerts.rules import BUILT_IN, Rule, can_raise_alerts, check_name, is_time_zone, uncovered_events
from postroad.alerts.settings import AlertsSettings
from postroad.api.alerts import Alert, AlertNotFound, AlertQuery, AlertRuleNotFound, CriticalEventUncovered, RuleDefinition
from postroad.api.pages import Page
from postroad.commands.rules import target_of
from postroad.governance.audit import Audit
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, Forbidden
from postroad.kernel.event import PLATFORM
from postroad.kernel.identity import Caller
from postroad.kernel.json import invalid_field
from postroad.telemetry.routes import EventVisibility

_HISTORY_SECONDS = 90 * 86_400


class AlertRules:
    """`types` are those of the events that rules are compared with. They are set once all capabilities are built."""

    def __init__(
        self,
        table: ReplicatedTable[RuleRecord],
        index: RuleIndex,
        channels: Channels,
        audit: Audit,
        clock: Clock,
        settings: AlertsSettings,
    ) -> None:
        self._table, self._index, self._channels = table, index, channels
        self._audit, self._clock, self._settings = audit, clock, settings
        self.types: Sequence[str] = ()

    def all(self, tenant: str) -> list[Rule]:
        return self._index.rules(tenant)

    async def get(self, tenant: str, name: str) -> Rule:
        """Raises AlertRuleNotFound."""
        await self._table.fetch(named_key(tenant, name))
        found = self._index.rule(tenant, name)
        if found is None:
            raise AlertRuleNotFound(f"there is no alert rule {name!r}")
        return found

    async def put(self, context: RequestContext, name: str, wanted: RuleDefinition) -> tuple[Rule, bool]:
        """Create or replace a rule; return it and whether it is new.

        Raises InvalidParameter, BodyInvalid, Forbidden, CriticalEventUncovered.
        """
        check_name(name)
        self._check(context.tenant, wanted)
        key = named_key(context.tenant, name)
        known = await self._table.fetch(key)
        before = self._index.rule(context.tenant, name)
        if known is not None and known.definition == wanted and before is not None:
            return before, False
        self._check_effect(context.tenant, wanted, before)
        count = self._table.count_under(f"{context.tenant}.")
        if known is None and count >= self._settings.alert_rules_max:
            raise Forbidden(f"the tenant has {count} alert rules; {self._settings.alert_rules_max} is the limit")
        after = Rule(name, wanted, is_built_in=name in BUILT_IN)
        self._check_coverage(context.tenant, [after, *(one for one in self.all(context.tenant) if one.name != name)])
        record = RuleRecord(tenant=context.tenant, name=name, definition=wanted, updated_at_ms=self._clock())
        action = "alert-rule.create" if before is None else "alert-rule.change"
        shown = None if before is None else rule_of(before)
        async with self._audit.change(context, action, name, before=shown, after=rule_of(after)):
            if known is None:
                await self._table.create(key, record)
            else:
                await self._table.update(key, record, self._table.revision(key))
        return after, before is None

    def _check(self, tenant: str, wanted: RuleDefinition) -> None:
        for index, name in enumerate(wanted.channels):
            if not self._channels.exists(tenant, name):
                raise invalid_field(f"$.channels[{index}]", f"there is no alert channel {name!r}")
        if wanted.quiet_hours is not None and not is_time_zone(wanted.quiet_hours.time_zone):
            raise invalid_field(
                "$.quietHours.timeZone", f"{wanted.quiet_hours.time_zone!r} is not a time zone of the IANA database"
            )

    def _check_effect(self, tenant: str, wanted: RuleDefinition, before: Rule | None) -> None:
        """Refuse what no event can match. Fields that do not change stay as they are, so that an old rule can be turned off."""
        known = None if before is None else before.definition
        if (known is None or known.events != wanted.events) and not can_raise_alerts(wanted.events, self.types):
            raise invalid_field(
                "$.events",
                f"no event that raises alerts has a type like {wanted.events!r}: docs/events.md lists the types. Events of "
                "single jobs (`job.*`) raise none; `queue.dead_letters_growing` reports dead letters",
            )
        for name in ("source", "target"):
            text = getattr(wanted, name)
            is_new = text is not None and (known is None or getattr(known, name) != text)
            if is_new and target_of(tenant, text) is None:
                raise invalid_field(f"$.{name}", "must be <service> or <tenant>/<service>")

    def _check_coverage(self, tenant: str, rules: list[Rule]) -> None:
        missing = uncovered_events(_with_channels(one, lambda name: self._channels.exists(tenant, name)) for one in rules)
        if missing:
            raise CriticalEventUncovered(
                f"no enabled rule with a channel would be left for {', '.join(missing)}: add another rule first"
            )

    async def delete(self, context: RequestContext, name: str) -> None:
        """Delete a rule, or restore the defaults of a built-in one. Raises AlertRuleNotFound, CriticalEventUncovered."""
        rule = await self.get(context.tenant, name)
        others = [one for one in self.all(context.tenant) if one.name != name]
        restored = BUILT_IN.get(name)
        self._check_coverage(context.tenant, [*others, restored] if restored is not None else others)
        if not rule.is_changed:
            return
        async with self._audit.change(context, "alert-rule.delete", name, before=rule_of(rule)):
            await self._table.delete(named_key(context.tenant, name))

    def check_channel_unused(self, tenant: str, channel: str) -> None:
        """Raises CriticalEventUncovered if a critical event would be left without a channel."""
        self._check_coverage(tenant, [_with_channels(one, lambda name: name != channel) for one in self.all(tenant)])


def _with_channels(rule: Rule, is_kept: Callable[[str], bool]) -> Rule:
    channels = tuple(one for one in rule.definition.channels if is_kept(one))
    return Rule(rule.name, msgspec.structs.replace(rule.definition, channels=channels), rule.is_built_in)


class Alerts:
    """A caller that is restricted to some resources sees the alerts about events that it may see. `visibility` is set once all
    capabilities are built."""

    def __init__(
        self, table: ReplicatedTable[StoredAlert], actions: ReplicatedTable[ActionRecord], audit: Audit, clock: Clock
    ) -> None:
        self.visibility = EventVisibility()
        self._table, self._actions, self._audit, self._clock = table, actions, audit, clock

    def page(self, caller: Caller, query: AlertQuery) -> Page[Alert]:
        """Newest first."""
        found: list[Alert] = []
        for record in self._newest_first(f"{caller.tenant}.", query.cursor):
            if not self._is_wanted(record, query) or not self.is_visible(caller, record):
                continue
            if len(found) == query.limit:
                return Page(items=found, next_cursor=found[-1].id)
            found.append(self._shown(record))
        return Page(items=found)

    def for_operators(self, query: AlertQuery) -> Page[Alert]:
        """The alerts of the platform, and those of tenants that no channel got. Newest first."""
        records = [one for key in self._table.keys_under() if (one := self.record(key)) is not None]
        chosen = [one for one in records if one.tenant == PLATFORM or one.is_flagged]
        chosen.sort(key=lambda one: one.id, reverse=True)
        wanted = [one for one in chosen if self._is_wanted(one, query) and (query.cursor is None or one.id < query.cursor)]
        items = [self._shown(one) for one in wanted[: query.limit]]
        return Page(items=items, next_cursor=items[-1].id if len(wanted) > query.limit else None)

    def _newest_first(self, prefix: str, before: str | None) -> Iterator[AlertRecord]:
        for key in reversed(list(self._table.keys_under(prefix))):
            record = self.record(key)
            if record is not None and (before is None or record.id < before):
                yield record

    def record(self, key: str) -> AlertRecord | None:
        """The alert under a key of the table; None if it has not opened yet."""
        stored = self._table.get(key)
        record = None if stored is None else stored.alert
        return record if record is not None and not record.is_pending else None

    def action(self, record: AlertRecord) -> ActionRecord | None:
        """What users did with the alert."""
        return self._actions.get(record.key)

    def _is_wanted(self, record: AlertRecord, query: AlertQuery) -> bool:
        status = status_of(record, self.action(record))
        return query.status in (None, status) and query.rule in (None, record.rule)

    def _shown(self, record: AlertRecord) -> Alert:
        return alert_of(record, self.action(record))

    def is_visible(self, caller: Caller, record: AlertRecord) -> bool:
        samples = (*record.first_samples, *record.last_samples)
        seen = (self.visibility.type_of(caller, bytes(one)) is not None for one in samples)
        return not caller.is_partial or (bool(samples) and all(seen))

    async def get(self, caller: Caller, alert_id: str) -> Alert:
        """Raises AlertNotFound."""
        return self._shown(await self._find(caller, alert_id))

    async def _find(self, caller: Caller, alert_id: str) -> AlertRecord:
        await self._table.fetch(f"{caller.tenant}.{alert_id}")
        record = self.record(f"{caller.tenant}.{alert_id}")
        if record is None or not self.is_visible(caller, record):
            raise AlertNotFound(f"there is no alert {alert_id[:64]!r}")
        return record

    async def acknowledge(self, context: RequestContext, alert_id: str) -> Alert:
        """No further notifications are sent about it. Raises AlertNotFound."""
        now, by = self._clock(), context.caller.key_id
        return await self._act(context, alert_id, "ack", ActionRecord(acknowledged_ms=now, acknowledged_by=by))

    async def resolve(self, context: RequestContext, alert_id: str) -> Alert:
        """Later events open another alert. Raises AlertNotFound."""
        now, by = self._clock(), context.caller.key_id
        return await self._act(context, alert_id, "resolve", ActionRecord(resolved_ms=now, resolved_by=by))

    async def _act(self, context: RequestContext, alert_id: str, verb: str, action: ActionRecord) -> Alert:
        record = await self._find(context.caller, alert_id)
        if status_of(record, self.action(record)) == "resolved":
            return self._shown(record)

        def merged(known: ActionRecord) -> ActionRecord:
            if verb == "ack":
                return known if known.acknowledged_ms else _merge(known, action)
            return known if known.resolved_ms else _merge(known, action)

        async with self._audit.change(context, f"alert.{verb}", alert_id):
            while await self._actions.change(record.key, merged, ttl_seconds=_HISTORY_SECONDS) is None:
                try:
                    await self._actions.create(record.key, action, ttl_seconds=_HISTORY_SECONDS)
                    break
                except Conflict:
                    self._actions.forget(record.key)
        return self._shown(record)


def _merge(known: ActionRecord, added: ActionRecord) -> ActionRecord:
    return ActionRecord(
        acknowledged_ms=known.acknowledged_ms or added.acknowledged_ms,
        acknowledged_by=known.acknowledged_by or added.acknowledged_by,
        resolved_ms=known.resolved_ms or added.resolved_ms,
        resolved_by=known.resolved_by or added.resolved_by,
    )
