"""HTTP routes of alerts, their rules and channels."""

from collections.abc import Sequence

from postroad.alerts.channels import Channels
from postroad.alerts.notifier import Notifier
from postroad.alerts.records import rule_of
from postroad.alerts.service import AlertRules, Alerts
from postroad.api.alerts import (
    DASHBOARD,
    Alert,
    AlertChannel,
    AlertChannelNotFound,
    AlertChannels,
    AlertNotFound,
    AlertPage,
    AlertQuery,
    AlertRule,
    AlertRuleNotFound,
    ChannelDefinition,
    ChannelTestResult,
    Confirmation,
    ConfirmationCodeInvalid,
    CriticalEventUncovered,
    MailServerUnavailable,
    Notification,
    RuleDefinition,
    SavedChannel,
)
from postroad.api.alerts import AlertRules as AlertRuleList
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.errors import EngineUnavailable, PreconditionFailed
from postroad.kernel.identity import RouteRequirement, Scope
from postroad.kernel.ids import new_id

_TAG = "Alerts"
_CHANNEL, _RULE, _ALERT = "/v1/alert-channels/{channel}", "/v1/alert-rules/{rule}", "/v1/alerts/{alert}"
_COLUMNS = ("id", "severity", "status", "rule", "group", "count", "last_at")


class AlertRoutes:
    def __init__(self, alerts: Alerts, rules: AlertRules, channels: Channels, notifier: Notifier) -> None:
        self._alerts, self._rules, self._channels, self._notifier = alerts, rules, channels, notifier

    def table(self) -> Sequence[Route]:
        return [*self._alert_routes(), *self._rule_routes(), *self._channel_routes()]

    def _alert_routes(self) -> Sequence[Route]:
        errors = (AlertNotFound, EngineUnavailable)
        return [
            Route(
                "GET",
                "/v1/alerts",
                self.list_alerts,
                Scope.READ,
                "List alerts",
                _TAG,
                query=AlertQuery,
                response=AlertPage,
                description="Newest first. Resolved alerts are kept for 90 days.",
                sdk="alerts.list",
                cli=Command("alerts list", _COLUMNS),
                allows_admin=True,
            ),
            Route(
                "GET",
                _ALERT,
                self.get_alert,
                Scope.READ,
                "Show an alert",
                _TAG,
                response=Alert,
                errors=errors,
                sdk="alerts.get",
                cli=Command("alerts show"),
                allows_admin=True,
            ),
            Route(
                "POST",
                f"{_ALERT}/ack",
                self.ack_alert,
                Scope.WRITE,
                "Acknowledge an alert",
                _TAG,
                response=Alert,
                errors=errors,
                description="It stays open and counts events, but sends no further notifications.",
                sdk="alerts.ack",
                cli=Command("alerts ack", done="acknowledged {alert}"),
                allows_admin=True,
                repeatable=True,
            ),
            Route(
                "POST",
                f"{_ALERT}/resolve",
                self.resolve_alert,
                Scope.WRITE,
                "Resolve an alert",
                _TAG,
                response=Alert,
                errors=errors,
                description="Later events open another alert.",
                sdk="alerts.resolve",
                cli=Command("alerts resolve", done="resolved {alert}"),
                allows_admin=True,
                repeatable=True,
            ),
            Route(
                "GET",
                "/api/control/alerts",
                self.list_operator_alerts,
                RouteRequirement.PLATFORM,
                "List alerts for operators",
                _TAG,
                query=AlertQuery,
                response=AlertPage,
                description="Alerts of the installation, and critical ones of tenants that no channel got. Newest first.",
                sdk="alerts.list_for_operators",
                cli=Command("alerts operators", ("tenant", *_COLUMNS)),
            ),
        ]

    def _rule_routes(self) -> Sequence[Route]:
        errors = (AlertRuleNotFound, EngineUnavailable)
        return [
            Route(
                "GET",
                "/v1/alert-rules",
                self.list_alert_rules,
                Scope.READ,
                "List alert rules",
                _TAG,
                response=AlertRuleList,
                sdk="alerts.rules",
                cli=Command("alerts rules", ("name", "events", "severity", "channels", "enabled", "built_in")),
                allows_admin=True,
            ),
            Route(
                "PUT",
                _RULE,
                self.put_alert_rule,
                Scope.ADMIN,
                "Create or replace an alert rule",
                _TAG,
                body=RuleDefinition,
                response=AlertRule,
                other_statuses=(201,),
                errors=(CriticalEventUncovered, EngineUnavailable),
                description="A rule with the name of a built-in one replaces it. Fields that are left out get their defaults. "
                "The critical events cannot be left without a channel.",
                covers_tenant=True,
                sdk="alerts.put_rule",
                cli=Command("alerts put-rule"),
            ),
            Route(
                "GET",
                _RULE,
                self.get_alert_rule,
                Scope.READ,
                "Show an alert rule",
                _TAG,
                response=AlertRule,
                errors=errors,
                sdk="alerts.get_rule",
                cli=Command("alerts show-rule"),
                allows_admin=True,
            ),
            Route(
                "DELETE",
                _RULE,
                self.delete_alert_rule,
                Scope.ADMIN,
                "Delete an alert rule",
                _TAG,
                status=204,
                errors=(*errors, CriticalEventUncovered),
                description="A built-in rule gets its defaults again.",
                covers_tenant=True,
                sdk="alerts.delete_rule",
                cli=Command("alerts delete-rule", done="deleted the rule {rule}"),
            ),
        ]

    def _channel_routes(self) -> Sequence[Route]:
        errors = (AlertChannelNotFound, EngineUnavailable)
        return [
            Route(
                "GET",
                "/v1/alert-channels",
                self.list_alert_channels,
                Scope.READ,
                "List alert channels",
                _TAG,
                response=AlertChannels,
                covers_tenant=True,
                sdk="alerts.channels",
                cli=Command("alerts channels", ("name", "kind", "state", "address", "url", "reason")),
                allows_admin=True,
            ),
            Route(
                "PUT",
                _CHANNEL,
                self.put_alert_channel,
                Scope.ADMIN,
                "Create or replace an alert channel",
                _TAG,
                body=ChannelDefinition,
                response=SavedChannel,
                other_statuses=(201,),
                errors=(PreconditionFailed, MailServerUnavailable, EngineUnavailable),
                description="An email address gets a code, with which it is confirmed. A webhook gets a secret, shown once: "
                "notifications are signed by the rules of Standard Webhooks.",
                covers_tenant=True,
                sdk="alerts.put_channel",
                cli=Command("alerts put-channel"),
            ),
            Route(
                "GET",
                _CHANNEL,
                self.get_alert_channel,
                Scope.READ,
                "Show an alert channel with its last attempts",
                _TAG,
                response=AlertChannel,
                errors=errors,
                covers_tenant=True,
                sdk="alerts.get_channel",
                cli=Command("alerts show-channel"),
                allows_admin=True,
            ),
            Route(
                "DELETE",
                _CHANNEL,
                self.delete_alert_channel,
                Scope.ADMIN,
                "Delete an alert channel",
                _TAG,
                status=204,
                errors=(*errors, CriticalEventUncovered, PreconditionFailed),
                covers_tenant=True,
                sdk="alerts.delete_channel",
                cli=Command("alerts delete-channel", done="deleted the channel {channel}"),
            ),
            Route(
                "POST",
                f"{_CHANNEL}/confirm",
                self.confirm_alert_channel,
                Scope.ADMIN,
                "Confirm the address of an email channel",
                _TAG,
                body=Confirmation,
                response=AlertChannel,
                errors=(*errors, ConfirmationCodeInvalid, PreconditionFailed),
                covers_tenant=True,
                sdk="alerts.confirm_channel",
                cli=Command("alerts confirm-channel", done="confirmed {channel}"),
            ),
            Route(
                "POST",
                f"{_CHANNEL}/rotate",
                self.rotate_alert_channel,
                Scope.ADMIN,
                "Give a webhook a new secret",
                _TAG,
                response=SavedChannel,
                errors=(*errors, PreconditionFailed),
                description="Both secrets are valid for a day: notifications have a signature of each.",
                covers_tenant=True,
                sdk="alerts.rotate_channel",
                cli=Command("alerts rotate-channel", shown_once="secret"),
            ),
            Route(
                "POST",
                f"{_CHANNEL}/test",
                self.test_alert_channel,
                Scope.ADMIN,
                "Send a test notification",
                _TAG,
                response=ChannelTestResult,
                errors=(*errors, PreconditionFailed),
                covers_tenant=True,
                sdk="alerts.test_channel",
                cli=Command("alerts test-channel"),
            ),
        ]

    # Alerts

    async def list_alerts(self, request: Request) -> Response:
        page = self._alerts.page(request.caller, request.query)
        return Response(AlertPage(items=page.items, next_cursor=page.next_cursor))

    async def get_alert(self, request: Request) -> Response:
        return Response(await self._alerts.get(request.caller, request.parameters["alert"]))

    async def ack_alert(self, request: Request) -> Response:
        return Response(await self._alerts.acknowledge(request.context, request.parameters["alert"]))

    async def resolve_alert(self, request: Request) -> Response:
        return Response(await self._alerts.resolve(request.context, request.parameters["alert"]))

    async def list_operator_alerts(self, request: Request) -> Response:
        page = self._alerts.for_operators(request.query)
        return Response(AlertPage(items=page.items, next_cursor=page.next_cursor))

    # Rules

    async def list_alert_rules(self, request: Request) -> Response:
        return Response(AlertRuleList(rules=[rule_of(one) for one in self._rules.all(request.caller.tenant)]))

    async def put_alert_rule(self, request: Request) -> Response:
        rule, is_new = await self._rules.put(request.context, request.parameters["rule"], request.body)
        return Response(rule_of(rule), status=201 if is_new else 200)

    async def get_alert_rule(self, request: Request) -> Response:
        return Response(rule_of(await self._rules.get(request.caller.tenant, request.parameters["rule"])))

    async def delete_alert_rule(self, request: Request) -> Response:
        await self._rules.delete(request.context, request.parameters["rule"])
        return Response(status=204)

    # Channels

    async def list_alert_channels(self, request: Request) -> Response:
        return Response(AlertChannels(channels=self._channels.all(request.caller.tenant)))

    async def put_alert_channel(self, request: Request) -> Response:
        channel, is_new = await self._channels.put(request.context, request.parameters["channel"], request.body)
        return Response(channel, status=201 if is_new else 200)

    async def get_alert_channel(self, request: Request) -> Response:
        return Response(await self._channels.get(request.caller.tenant, request.parameters["channel"]))

    async def delete_alert_channel(self, request: Request) -> Response:
        name = request.parameters["channel"]
        if name == DASHBOARD:
            raise PreconditionFailed("the channel `dashboard` is always there")
        await self._channels.find(request.caller.tenant, name)
        self._rules.check_channel_unused(request.caller.tenant, name)
        await self._channels.delete(request.context, name)
        return Response(status=204)

    async def confirm_alert_channel(self, request: Request) -> Response:
        body: Confirmation = request.body
        return Response(await self._channels.confirm(request.context, request.parameters["channel"], body.code))

    async def rotate_alert_channel(self, request: Request) -> Response:
        return Response(await self._channels.rotate(request.context, request.parameters["channel"]))

    async def test_alert_channel(self, request: Request) -> Response:
        tenant, name = request.caller.tenant, request.parameters["channel"]
        if name == DASHBOARD:
            raise PreconditionFailed("the channel `dashboard` is the list of alerts: nothing is sent")
        record = await self._channels.find(tenant, name)
        if record.state != "active":
            raise PreconditionFailed(f"the channel is {record.state}")
        notification = Notification(type="alert.test", summary=f"Test of the alert channel {name}", alerts=[])
        result = await self._notifier.send(tenant, name, notification, f"test.{new_id()}")
        await self._channels.record_attempt(tenant, name, result.outcome.value, 0, result)
        return Response(
            ChannelTestResult(
                outcome=result.outcome.value, duration_ms=result.duration_ms, status=result.status, error=result.error
            )
        )
