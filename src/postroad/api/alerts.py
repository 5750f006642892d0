"""Alerts, their rules and channels."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from postroad.api.pages import Limit, page_of
from postroad.kernel.clock import Timestamp
from postroad.kernel.errors import ConflictError, InvalidRequest, NotFound, Unavailable
from postroad.kernel.matching import PATTERN

DASHBOARD = "dashboard"
NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,63}$"
WINDOW_SECONDS = 300

Severity = Literal["info", "warning", "critical"]
AlertStatus = Literal["open", "acknowledged", "resolved"]
ChannelKind = Literal["dashboard", "email", "webhook"]
ChannelState = Literal["active", "unconfirmed", "disabled"]
ChannelName = Annotated[str, Meta(pattern=NAME_PATTERN)]
_Service = Annotated[str, Meta(min_length=1, max_length=128)]
_Time = Annotated[str, Meta(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")]


class AlertNotFound(NotFound, code="alert-not-found", status=404, title="Alert not found"):
    """The tenant has no alert with this id."""


class AlertRuleNotFound(NotFound, code="alert-rule-not-found", status=404, title="Alert rule not found"):
    """The tenant has no alert rule with this name."""


class AlertChannelNotFound(NotFound, code="alert-channel-not-found", status=404, title="Alert channel not found"):
    """The tenant has no alert channel with this name."""


class ConfirmationCodeInvalid(InvalidRequest, code="confirmation-code-invalid", status=422, title="Invalid confirmation code"):
    """The code is wrong or expired, or there were too many attempts. Request a new one by sending the channel again."""


class CriticalEventUncovered(
    ConflictError, code="critical-event-uncovered", status=409, title="Critical event without a channel"
):
    """The change would leave a critical event without an enabled rule that has a channel."""


class MailServerUnavailable(
    Unavailable, code="mail-server-unavailable", status=503, retryable=True, title="Mail server unavailable"
):
    """The mail server of the installation did not accept the message."""


# Channels


class ChannelDefinition(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """An email address or an HTTPS endpoint that alerts are sent to."""

    kind: Annotated[Literal["email", "webhook"], Meta(description="How alerts are sent.")]
    address: Annotated[str, Meta(max_length=254, description="Address of an `email` channel.")] | None = None
    url: Annotated[str, Meta(max_length=2048, description="Endpoint of a `webhook` channel.")] | None = None


class ChannelAttempt(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One attempt to send a notification."""

    at: Timestamp
    outcome: Annotated[str, Meta(description="`delivered`, `transient`, `refused` or `gone`.")]
    alerts: Annotated[int, Meta(description="Alerts in the notification.")] = 1
    duration_ms: int = 0
    status: int | None = None
    error: str | None = None


class AlertChannel(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A channel. `secrets` are the number of valid secrets: two for a day after a rotation."""

    name: str
    kind: ChannelKind
    state: ChannelState
    address: str | None = None
    url: str | None = None
    reason: Annotated[str | None, Meta(description="Why the channel is disabled.")] = None
    secrets: int = 0
    attempts: Annotated[list[ChannelAttempt], Meta(description="The last attempts, newest first.")] = []
    created_at: Timestamp | None = None
    updated_at: Timestamp | None = None


class SavedChannel(AlertChannel, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """A channel that was created or changed. `secret` is shown once."""

    secret: Annotated[str | None, Meta(description="Secret of the webhook's signatures, shown once.")] = None


class AlertChannels(msgspec.Struct, frozen=True, kw_only=True):
    channels: list[AlertChannel]


class Confirmation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    code: Annotated[str, Meta(pattern=r"^\d{8}$", description="The code in the email.")]


class ChannelTestResult(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Outcome of a test notification."""

    outcome: str
    duration_ms: int
    status: int | None = None
    error: str | None = None


# Rules


class QuietHours(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Hours in which emails and webhooks wait, except for critical alerts."""

    start: Annotated[_Time, Meta(description="`22:00`.")]
    end: Annotated[_Time, Meta(description="`07:00`, on the next day if it is earlier.")]
    time_zone: Annotated[str, Meta(min_length=1, max_length=64, description="IANA time zone.")] = "UTC"


class RuleDefinition(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Which events raise an alert, and where it is sent."""

    events: Annotated[str, Meta(min_length=1, max_length=256, pattern=PATTERN, description="Pattern of event types.")]
    source: Annotated[_Service, Meta(description="Only commands from this service.")] | None = None
    target: Annotated[_Service, Meta(description="Only commands to this service.")] | None = None
    reason: Annotated[str, Meta(max_length=64, description="Only events with this `reason`.")] | None = None
    min_count: Annotated[int, Meta(ge=1, le=1_000_000, description="Events in a window before an alert opens.")] = 1
    window_seconds: Annotated[int, Meta(ge=10, le=86_400, description="Notifications are grouped for so long.")] = WINDOW_SECONDS
    severity: Annotated[Severity, Meta(description="Severity of its alerts.")] = "warning"
    channels: Annotated[tuple[ChannelName, ...], Meta(max_length=10, description="Names of channels.")] = (DASHBOARD,)
    quiet_hours: Annotated[QuietHours | None, Meta(description="Hours in which notifications wait, as JSON.")] = None
    enabled: Annotated[bool, Meta(description="Whether it raises alerts.")] = True


class AlertRule(RuleDefinition, frozen=True, rename="camel", kw_only=True):
    """`builtIn`: it exists for every tenant; deleting it restores its defaults. `critical`: its events always have a channel."""

    name: str
    built_in: bool = False
    changed: Annotated[bool, Meta(description="False for a built-in rule with its defaults.")] = True
    critical: bool = False


class AlertRules(msgspec.Struct, frozen=True, kw_only=True):
    rules: list[AlertRule]


# Alerts


class Alert(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Matching events of one rule and group. Also the form of emails and webhooks."""

    id: str
    tenant: str
    rule: str
    event: str
    group: Annotated[str, Meta(description="Sender, route or queue of the events; empty if they have none.")]
    severity: Severity
    status: AlertStatus
    count: int
    summary: str
    first_at: Timestamp
    last_at: Timestamp
    opened_at: Timestamp
    acknowledged_at: Timestamp | None = None
    acknowledged_by: str | None = None
    resolved_at: Timestamp | None = None
    resolved_by: Annotated[str | None, Meta(description="`event`, `quiet`, or the id of a key.")] = None
    samples: Annotated[list[dict[str, Any]], Meta(description="The first events and the latest one.")] = []
    pending: Annotated[list[str], Meta(description="Channels whose notification is not delivered yet.")] = []
    undelivered: Annotated[list[str], Meta(description="Channels that could not be notified.")] = []


class AlertQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    status: Annotated[AlertStatus, Meta(description="Only alerts with this status.")] | None = None
    rule: Annotated[str, Meta(max_length=64, description="Only alerts of this rule.")] | None = None
    limit: Limit = 100
    cursor: Annotated[str, Meta(pattern=r"^[0-9a-f-]{36}$")] | None = None


AlertPage = page_of(Alert, "alerts")


class Notification(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Body of an email or webhook. `more` counts alerts that a long digest leaves out."""

    type: Literal["alert.opened", "alert.grew", "alert.digest", "alert.test"]
    summary: str
    alerts: list[Alert]
    more: int = 0
