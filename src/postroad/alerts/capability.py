"""Wiring of alerts."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from postroad.alerts.channels import Channels
from postroad.alerts.email_sender import EmailSender
from postroad.alerts.events import EVENTS
from postroad.alerts.live_alerts import LiveAlerts
from postroad.alerts.monitors import DeadLetterMonitor, PipelineMonitor
from postroad.alerts.notifier import Notifier
from postroad.alerts.processor import FOLLOWED, AlertProcessor
from postroad.alerts.records import (
    ACTIONS_BUCKET,
    ALERTS_BUCKET,
    ATTEMPTS_BUCKET,
    CHANNELS_BUCKET,
    RULES_BUCKET,
    ActionRecord,
    AttemptsRecord,
    ChannelRecord,
    RuleRecord,
    StoredAlert,
)
from postroad.alerts.routes import AlertRoutes
from postroad.alerts.rule_index import RuleIndex
from postroad.alerts.rules import EventFields, Rule, destinations
from postroad.alerts.service import AlertRules, Alerts
from postroad.alerts.settings import AlertsSettings
from postroad.api.alerts import (
    NAME_PATTERN,
    AlertChannelNotFound,
    AlertNotFound,
    AlertRuleNotFound,
    ConfirmationCodeInvalid,
    CriticalEventUncovered,
    MailServerUnavailable,
)
from postroad.crypto.secret_encryption import SecretCipher
from postroad.http.routing import Route
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.event import PLATFORM, event_name
from postroad.kernel.task_group import run_all
from postroad.platform import Assembly, BackgroundJob, Capability, Platform, Role, every
from postroad.queues.capability import QueuesCapability
from postroad.subscriptions.capability import SubscriptionsCapability
from postroad.telemetry.live_sections import LiveSection
from postroad.telemetry.routes import EventVisibility

_PIPELINE_SECONDS = 60.0


class AlertsCapability(Capability):
    name = "alerts"
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "channel": {"pattern": NAME_PATTERN, "description": "Name of the alert channel."},
        "rule": {"pattern": NAME_PATTERN, "description": "Name of the alert rule."},
        "alert": {"pattern": "^[0-9a-f-]{36}$", "description": "Id of the alert."},
    }
    errors = (
        AlertNotFound,
        AlertRuleNotFound,
        AlertChannelNotFound,
        ConfirmationCodeInvalid,
        CriticalEventUncovered,
        MailServerUnavailable,
    )
    events = EVENTS
    buckets = (ALERTS_BUCKET, ACTIONS_BUCKET, RULES_BUCKET, CHANNELS_BUCKET, ATTEMPTS_BUCKET)
    cli_groups: ClassVar[Mapping[str, str]] = {"alerts": "Alerts, their rules, and the channels that they are sent to."}

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        chosen = platform.settings.section(AlertsSettings)
        self.table = platform.table(ALERTS_BUCKET, StoredAlert)
        self.actions = platform.table(ACTIONS_BUCKET, ActionRecord)
        self._rule_table = platform.table(RULES_BUCKET, RuleRecord)
        self._channel_table = platform.table(CHANNELS_BUCKET, ChannelRecord)
        self._attempt_table = platform.table(ATTEMPTS_BUCKET, AttemptsRecord)
        push = platform.use(SubscriptionsCapability).push
        email = _email_sender(chosen)
        self.channels = Channels(
            self._channel_table,
            self._attempt_table,
            SecretCipher(platform.platform_keys),
            push,
            email,
            platform.outbox,
            platform.audit,
            platform.clock,
            chosen,
        )
        self.index = RuleIndex(self._rule_table)
        self.rules = AlertRules(self._rule_table, self.index, self.channels, platform.audit, platform.clock, chosen)
        self.alerts = Alerts(self.table, self.actions, platform.audit, platform.clock)
        self._live = LiveAlerts(self.table, self.alerts, self.index, self._destinations, platform.clock)
        self.processor = AlertProcessor(
            platform.connection,
            platform.committers,
            self.index,
            self.actions,
            platform.outbox,
            platform.clock,
            self._destinations,
            lambda tenant: tenant == PLATFORM or platform.identities.is_served(tenant),
            platform.identities.is_deleted,
        )
        self.notifier = Notifier(self.processor, self.channels, push, email, platform.clock, self._contact)
        self.dead_letters = DeadLetterMonitor(platform.outbox, platform.clock)
        platform.use(QueuesCapability).sampler.add_listener(self.dead_letters)
        self.pipeline = PipelineMonitor(platform.connection, platform.outbox, platform.clock)

    def _contact(self, tenant: str) -> str:
        return self.platform.tenant_settings.of(tenant).contact

    def _destinations(self, rule: Rule, event: EventFields) -> Sequence[str]:
        has_contact = self.channels.has_email and bool(self._contact(event.tenant))
        return destinations(rule, event.event, self.channels.active(event.tenant), has_contact=has_contact)

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self.table, self.actions, self._rule_table, self._channel_table, self._attempt_table)

    def routes(self) -> Sequence[Route]:
        return AlertRoutes(self.alerts, self.rules, self.channels, self.notifier).table()

    def live_sections(self) -> Sequence[LiveSection]:
        return (self._live,)

    def assembled(self, assembly: Assembly) -> None:
        self.alerts.visibility = EventVisibility(assembly.events)
        self.rules.types = [event_name(one) for one in assembly.events if one.stream in FOLLOWED and not one.is_attached]

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (
            BackgroundJob(self._lead, Role.DELIVERY, leader_only=True),
            BackgroundJob(every(_PIPELINE_SECONDS, self.pipeline.run_once, "watch the pipeline"), Role.CONTROL, leader_only=True),
        )

    async def _lead(self) -> None:
        await run_all(self.processor.run(), self.notifier.run())

    async def delete_tenant(self, tenant: str) -> None:
        for table in (self.table, self.actions, self._rule_table, self._channel_table, self._attempt_table):
            for key in list(table.keys_under(f"{tenant}.")):
                await table.delete(key)


def _email_sender(chosen: AlertsSettings) -> EmailSender | None:
    if chosen.smtp_url is None:
        return None
    return EmailSender(chosen.smtp_url.reveal(), chosen.smtp_from, chosen.smtp_ca_file)


CAPABILITY = AlertsCapability
