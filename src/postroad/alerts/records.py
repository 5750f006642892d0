"""Stored formats of alerts, rules and channels, and their API representations. Pure."""

from typing import Any

import msgspec

from postroad.alerts.rules import Rule, summary_of
from postroad.api.alerts import (
    Alert,
    AlertChannel,
    AlertRule,
    AlertStatus,
    ChannelAttempt,
    ChannelKind,
    ChannelState,
    RuleDefinition,
    Severity,
)
from postroad.kernel.clock import rfc3339
from postroad.kernel.names import escape

ALERTS_BUCKET = "postroad_alerts"
ACTIONS_BUCKET = "postroad_alert_actions"
RULES_BUCKET = "postroad_alert_rules"
CHANNELS_BUCKET = "postroad_alert_channels"
ATTEMPTS_BUCKET = "postroad_alert_attempts"
POSITIONS_KEY = "_positions"
ATTEMPTS_KEPT = 20


class Due(msgspec.Struct, kw_only=True, rename="camel"):
    """A notification that a channel has not got yet. It is retried from `next_ms` on."""

    kind: str
    since_ms: int
    attempts: int = 0
    next_ms: int = 0


class AlertRecord(msgspec.Struct, kw_only=True, rename="camel"):
    """Events of one rule and group. `pending`: fewer than the rule's minimum so far. Only the leader writes it."""

    id: str
    tenant: str
    rule: str
    event: str
    group: str
    severity: Severity
    is_open: bool = True
    is_pending: bool = False
    count: int = 0
    notified_count: int = 0
    first_ms: int = 0
    last_ms: int = 0
    opened_ms: int = 0
    window_ms: int = 300_000
    window_ends_ms: int = 0
    resolved_ms: int = 0
    resolved_by: str = ""
    first_samples: list[msgspec.Raw] = []
    last_samples: list[msgspec.Raw] = []  # at most one
    due: dict[str, Due] = {}
    undelivered: list[str] = []
    is_flagged: bool = False

    @property
    def key(self) -> str:
        return f"{self.tenant}.{self.id}"

    @property
    def is_kept(self) -> bool:
        """True for a resolved alert, which is part of the history."""
        return not self.is_open and not self.is_pending


class StoredAlert(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Format 1, under `<tenant>.<id>`; under `_positions` the sequences up to which the streams were read. Both are written in
    one atomic batch."""

    v: int = 1
    alert: AlertRecord | None = None
    positions: dict[str, int] | None = None


class ActionRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Format 1, under the key of the alert: what a user did with it. Written by gateways."""

    v: int = 1
    acknowledged_ms: int = 0
    acknowledged_by: str = ""
    resolved_ms: int = 0
    resolved_by: str = ""


class RuleRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Format 1, under `<tenant>.<name>`."""

    v: int = 1
    tenant: str
    name: str
    definition: RuleDefinition
    updated_at_ms: int


class ChannelSecret(msgspec.Struct, frozen=True, array_like=True):
    encrypted: str
    valid_until_ms: int | None = None


class ChannelRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Format 1, under `<tenant>.<name>`. `code_hash` is that of the confirmation code."""

    v: int = 1
    tenant: str
    name: str
    id: str
    kind: ChannelKind
    state: ChannelState
    address: str | None = None
    url: str | None = None
    reason: str | None = None
    secrets: tuple[ChannelSecret, ...] = ()
    code_hash: str = ""
    code_expires_ms: int = 0
    code_attempts: int = 0
    code_sent_ms: int = 0
    created_at_ms: int
    updated_at_ms: int

    @property
    def key(self) -> str:
        return named_key(self.tenant, self.name)

    @property
    def secret_owner(self) -> str:
        return f"alert channel {self.tenant} {self.id}"


class AttemptsRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Format 1, under `<tenant>.<channel>`: the last attempts, newest first. Under `<tenant>._codes`: when confirmation codes
    were sent in the last hour."""

    v: int = 1
    attempts: tuple[ChannelAttempt, ...] = ()
    failures: int = 0  # in a row
    codes_sent_ms: tuple[int, ...] = ()


def named_key(tenant: str, name: str) -> str:
    return f"{tenant}.{escape(name)}"


def status_of(record: AlertRecord, action: ActionRecord | None) -> AlertStatus:
    if not record.is_open or (action is not None and action.resolved_ms):
        return "resolved"
    return "acknowledged" if action is not None and action.acknowledged_ms else "open"


def alert_of(record: AlertRecord, action: ActionRecord | None = None) -> Alert:
    resolved_ms = record.resolved_ms or (action.resolved_ms if action is not None else 0)
    resolved_by = record.resolved_by or (action.resolved_by if action is not None else "")
    samples = [*record.first_samples, *record.last_samples]
    return Alert(
        id=record.id,
        tenant=record.tenant,
        rule=record.rule,
        event=record.event,
        group=record.group,
        severity=record.severity,
        status=status_of(record, action),
        count=record.count,
        summary=summary_of(record.severity, record.event, record.group, record.count),
        first_at=rfc3339(record.first_ms),
        last_at=rfc3339(record.last_ms),
        opened_at=rfc3339(record.opened_ms),
        acknowledged_at=rfc3339(action.acknowledged_ms) if action is not None and action.acknowledged_ms else None,
        acknowledged_by=(action.acknowledged_by or None) if action is not None else None,
        resolved_at=rfc3339(resolved_ms) if resolved_ms else None,
        resolved_by=resolved_by or None,
        samples=[_decoded(one) for one in samples],
        pending=sorted(record.due),
        undelivered=sorted(record.undelivered),
    )


def _decoded(raw: msgspec.Raw) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(raw)
    return found


def rule_of(rule: Rule) -> AlertRule:
    fields = {name: getattr(rule.definition, name) for name in RuleDefinition.__struct_fields__}
    return AlertRule(**fields, name=rule.name, built_in=rule.is_built_in, changed=rule.is_changed, critical=rule.is_critical)


def channel_of(record: ChannelRecord, attempts: AttemptsRecord | None, now_ms: int) -> AlertChannel:
    valid = [one for one in record.secrets if one.valid_until_ms is None or one.valid_until_ms > now_ms]
    return AlertChannel(
        name=record.name,
        kind=record.kind,
        state=record.state,
        address=record.address,
        url=record.url,
        reason=record.reason,
        secrets=len(valid),
        attempts=list(attempts.attempts) if attempts is not None else [],
        created_at=rfc3339(record.created_at_ms),
        updated_at=rfc3339(record.updated_at_ms),
    )
