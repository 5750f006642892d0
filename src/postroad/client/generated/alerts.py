"""Calls of `client.alerts`. Generated from the route table by `make generate`; do not edit."""

from collections.abc import Sequence
from typing import Literal

from postroad.api.alerts import (
    Alert,
    AlertChannel,
    AlertChannels,
    AlertPage,
    AlertRule,
    AlertRules,
    ChannelTestResult,
    QuietHours,
    SavedChannel,
)
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import body_of, segment


class AlertsCalls:
    @pages
    def list(
        self, *, status: Literal["open", "acknowledged", "resolved"] | None = None, rule: str | None = None, page_size: int = 100
    ) -> Pages[Alert]:
        """List alerts. Newest first. Resolved alerts are kept for 90 days."""
        return Pages(
            call=Call(
                method="GET", path="/v1/alerts", query={"status": status, "rule": rule, "limit": page_size}, response=AlertPage
            )
        )

    @operation
    def get(self, alert: Alert | str) -> Call[Alert]:
        """Show an alert. Raises AlertNotFound."""
        return Call(method="GET", path=f"/v1/alerts/{segment(alert)}", response=Alert)

    @operation
    def ack(self, alert: Alert | str) -> Call[Alert]:
        """Acknowledge an alert. It stays open and counts events, but sends no further notifications. Raises AlertNotFound."""
        return Call(method="POST", path=f"/v1/alerts/{segment(alert)}/ack", response=Alert)

    @operation
    def resolve(self, alert: Alert | str) -> Call[Alert]:
        """Resolve an alert. Later events open another alert. Raises AlertNotFound."""
        return Call(method="POST", path=f"/v1/alerts/{segment(alert)}/resolve", response=Alert)

    @pages
    def list_for_operators(
        self, *, status: Literal["open", "acknowledged", "resolved"] | None = None, rule: str | None = None, page_size: int = 100
    ) -> Pages[Alert]:
        """List alerts for operators.

        Alerts of the installation, and critical ones of tenants that no channel got. Newest first.
        """
        return Pages(
            call=Call(
                method="GET",
                path="/api/control/alerts",
                query={"status": status, "rule": rule, "limit": page_size},
                response=AlertPage,
            )
        )

    @operation
    def rules(self) -> Call[AlertRules]:
        """List alert rules."""
        return Call(method="GET", path="/v1/alert-rules", response=AlertRules)

    @operation
    def put_rule(
        self,
        rule: str,
        events: str,
        *,
        source: str | None = None,
        target: str | None = None,
        reason: str | None = None,
        min_count: int | None = None,
        window_seconds: int | None = None,
        severity: Literal["info", "warning", "critical"] | None = None,
        channels: Sequence[str] | None = None,
        quiet_hours: QuietHours | None = None,
        enabled: bool | None = None,
    ) -> Call[AlertRule]:
        """Create or replace an alert rule.

        A rule with the name of a built-in one replaces it. Fields that are left out get their defaults. The critical
        events cannot be left without a channel. Raises CriticalEventUncovered.
        """
        body = body_of(
            {
                "events": events,
                "source": source,
                "target": target,
                "reason": reason,
                "minCount": min_count,
                "windowSeconds": window_seconds,
                "severity": severity,
                "channels": channels,
                "quietHours": quiet_hours,
                "enabled": enabled,
            }
        )
        return Call(method="PUT", path=f"/v1/alert-rules/{segment(rule)}", body=body, response=AlertRule)

    @operation
    def get_rule(self, rule: str) -> Call[AlertRule]:
        """Show an alert rule. Raises AlertRuleNotFound."""
        return Call(method="GET", path=f"/v1/alert-rules/{segment(rule)}", response=AlertRule)

    @operation
    def delete_rule(self, rule: str) -> Call[None]:
        """Delete an alert rule. A built-in rule gets its defaults again. Raises AlertRuleNotFound, CriticalEventUncovered."""
        return Call(method="DELETE", path=f"/v1/alert-rules/{segment(rule)}")

    @operation
    def channels(self) -> Call[AlertChannels]:
        """List alert channels."""
        return Call(method="GET", path="/v1/alert-channels", response=AlertChannels)

    @operation
    def put_channel(
        self, channel: str, kind: Literal["email", "webhook"], *, address: str | None = None, url: str | None = None
    ) -> Call[SavedChannel]:
        """Create or replace an alert channel.

        An email address gets a code, with which it is confirmed. A webhook gets a secret, shown once: notifications are
        signed by the rules of Standard Webhooks. Raises PreconditionFailed.
        """
        body = body_of({"kind": kind, "address": address, "url": url})
        return Call(method="PUT", path=f"/v1/alert-channels/{segment(channel)}", body=body, response=SavedChannel)

    @operation
    def get_channel(self, channel: str) -> Call[AlertChannel]:
        """Show an alert channel with its last attempts. Raises AlertChannelNotFound."""
        return Call(method="GET", path=f"/v1/alert-channels/{segment(channel)}", response=AlertChannel)

    @operation
    def delete_channel(self, channel: str) -> Call[None]:
        """Delete an alert channel. Raises AlertChannelNotFound, CriticalEventUncovered, PreconditionFailed."""
        return Call(method="DELETE", path=f"/v1/alert-channels/{segment(channel)}")

    @operation
    def confirm_channel(self, channel: str, code: str) -> Call[AlertChannel]:
        """Confirm the address of an email channel. Raises AlertChannelNotFound, ConfirmationCodeInvalid, PreconditionFailed."""
        body = body_of({"code": code})
        return Call(
            method="POST",
            path=f"/v1/alert-channels/{segment(channel)}/confirm",
            body=body,
            response=AlertChannel,
            is_repeatable=False,
        )

    @operation
    def rotate_channel(self, channel: str) -> Call[SavedChannel]:
        """Give a webhook a new secret.

        Both secrets are valid for a day: notifications have a signature of each. Raises AlertChannelNotFound,
        PreconditionFailed.
        """
        return Call(
            method="POST", path=f"/v1/alert-channels/{segment(channel)}/rotate", response=SavedChannel, is_repeatable=False
        )

    @operation
    def test_channel(self, channel: str) -> Call[ChannelTestResult]:
        """Send a test notification. Raises AlertChannelNotFound, PreconditionFailed."""
        return Call(
            method="POST", path=f"/v1/alert-channels/{segment(channel)}/test", response=ChannelTestResult, is_repeatable=False
        )


class Alerts(AlertsCalls, SyncNamespace):
    pass


class AsyncAlerts(AlertsCalls, AsyncNamespace):
    pass
