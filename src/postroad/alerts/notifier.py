"""Sends notifications of alerts: each channel on its own, so that a slow one delays no other.

A channel with many alerts to report gets them in one digest. A notification that fails is tried again with growing delays for 24
hours; then, or when the endpoint refuses it for good, the alert shows the channel as `undelivered`, and operators see a critical
one.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import structlog

from postroad.alerts import metrics
from postroad.alerts.channels import Channels
from postroad.alerts.email_sender import EmailFailed, EmailSender
from postroad.alerts.processor import AlertProcessor
from postroad.alerts.records import AlertRecord, ChannelRecord, alert_of
from postroad.alerts.rules import CONTACT, CRITICAL_EVENTS
from postroad.api.alerts import Alert, Notification
from postroad.kernel.backoff import Backoff
from postroad.kernel.clock import Clock
from postroad.kernel.errors import PostroadError
from postroad.subscriptions.endpoint_rules import Outcome
from postroad.subscriptions.outgoing import OutgoingMessage
from postroad.subscriptions.push_client import PushClient
from postroad.topics.records import StoredTopicMessage

_POLL_SECONDS = 0.5
_DIGEST_FROM = 20  # alerts that wait for one channel
_DIGEST_MAX = 50  # alerts in a digest; the others are counted
_GIVE_UP_MS = 24 * 3_600_000
_BACKOFF = Backoff(first_seconds=5.0, max_seconds=1800.0)
_RUNNING_MAX = 256
_MARKED_MAX = 300  # alerts of a digest that change at once

log = structlog.get_logger("postroad.alerts")


@dataclass(frozen=True, slots=True)
class SendResult:
    outcome: Outcome
    duration_ms: int = 0
    status: int | None = None
    error: str | None = None


class Notifier:
    """`contact` returns the address of a tenant's contact. Runs beside the processor, in the same process."""

    def __init__(
        self,
        processor: AlertProcessor,
        channels: Channels,
        push: PushClient,
        email: EmailSender | None,
        clock: Clock,
        contact: Callable[[str], str],
    ) -> None:
        self._processor, self._channels, self._push, self._email = processor, channels, push, email
        self._clock, self._contact = clock, contact
        self._running: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Send until cancelled."""
        try:
            while True:
                await asyncio.sleep(_POLL_SECONDS)
                if self._processor.is_running:
                    self.start_due()
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    def start_due(self) -> None:
        """Start to send to the channels that have notifications, if they are not busy."""
        for key, records in self._processor.book.due(self._clock()).items():
            if key not in self._running and len(self._running) < _RUNNING_MAX:
                task = self._running[key] = asyncio.create_task(self._send_all(*key, records))
                task.add_done_callback(lambda _done, key=key: self._running.pop(key, None))  # type: ignore[misc]

    async def _send_all(self, tenant: str, channel: str, records: list[AlertRecord]) -> None:
        """Send until one fails. Those with fewest attempts come first, so one that always fails holds up no other."""
        records.sort(key=lambda one: one.due[channel].attempts)
        try:
            groups = [records] if len(records) > _DIGEST_FROM else [[one] for one in records]
            for number, group in enumerate(groups, 1):
                outcome = await self._send_group(tenant, channel, group)
                if outcome is Outcome.TRANSIENT:
                    await self._delay(channel, group[0], [one for others in groups[number:] for one in others])
                if outcome is not Outcome.DELIVERED:
                    return
        except PostroadError as problem:  # it is sent again
            log.warning("notification_interrupted", tenant=tenant, channel=channel, code=problem.code)

    async def _delay(self, channel: str, failed: AlertRecord, records: Sequence[AlertRecord]) -> None:
        """Let the other notifications of a channel wait for as long as the one that has failed: it may fail for all."""
        await self._processor.flush_if_full()
        book = self._processor.book
        known = book.find(failed.id)
        due = None if known is None else known.due.get(channel)
        for record in [found for one in records if (found := book.find(one.id)) is not None]:
            if due is not None and channel in record.due:
                book.delayed(record, channel, due.next_ms, is_attempt=False)

    async def _send_group(self, tenant: str, channel: str, records: Sequence[AlertRecord]) -> Outcome:
        """Send one notification."""
        result = await self.send(tenant, channel, _notification(channel, records), _identity(channel, records))
        await self._channels.record_attempt(tenant, channel, result.outcome.value, len(records), result)
        for start in range(0, len(records), _MARKED_MAX):
            await self._processor.flush_if_full()
            self._mark(tenant, channel, records[start : start + _MARKED_MAX], result)
        await self._processor.flush()
        return result.outcome

    def _mark(self, tenant: str, channel: str, records: Sequence[AlertRecord], result: SendResult) -> None:
        """Note what became of the notification of these alerts."""
        now, book = self._clock(), self._processor.book
        for one in records:
            record = book.find(one.id)  # another object if the processor has begun again meanwhile
            due = None if record is None else record.due.get(channel)
            if record is None or due is None:
                continue
            if result.outcome is Outcome.DELIVERED:
                book.delivered(record, channel)
            elif result.outcome is not Outcome.TRANSIENT or now - due.since_ms >= _GIVE_UP_MS:
                book.undelivered(record, channel, is_flagged=record.event in CRITICAL_EVENTS)
                metrics.notifications.labels("any", "abandoned").inc()
                log.warning("notification_abandoned", tenant=tenant, channel=channel, alert=record.id, error=result.error)
            else:
                book.delayed(record, channel, now + int(_BACKOFF.delay(due.attempts + 1) * 1000))

    async def send(self, tenant: str, channel: str, notification: Notification, identity: str) -> SendResult:
        """Send a notification to a channel, or to the tenant's contact. Does not raise for failures of the destination."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        if channel == CONTACT:
            result = await self._send_email(self._contact(tenant), notification, identity)
            kind = "email"
        else:
            record = self._channels.find_active(tenant, channel)
            if record is None:
                return SendResult(Outcome.GONE, error="the channel does not exist or is not active")
            kind = record.kind
            if record.kind == "email":
                result = await self._send_email(record.address or "", notification, identity)
            else:
                result = await self._send_webhook(record, notification, identity)
        metrics.notifications.labels(kind, result.outcome.value).inc()
        return SendResult(result.outcome, int((loop.time() - started) * 1000), result.status, result.error)

    async def _send_email(self, address: str, notification: Notification, identity: str) -> SendResult:
        if self._email is None or not address:
            return SendResult(Outcome.REFUSED, error="this installation sends no email")
        body = msgspec.json.format(msgspec.json.encode(notification), indent=2).decode()
        try:
            await self._email.send(address, notification.summary, body, identity)
        except EmailFailed as failed:
            return SendResult(Outcome.REFUSED if failed.is_permanent else Outcome.TRANSIENT, error=failed.reason)
        return SendResult(Outcome.DELIVERED)

    async def _send_webhook(self, record: ChannelRecord, notification: Notification, identity: str) -> SendResult:
        endpoint = self._channels.endpoint(record)
        message = StoredTopicMessage(
            sequence=int(hashlib.blake2b(identity.encode(), digest_size=7).hexdigest(), 16),
            at_ms=self._clock(),
            subject=notification.type,
            nats_subject=notification.type,
            headers={},
            content_type="application/json",
            traceparent=None,
            hops=0,
            body=msgspec.json.encode(notification),
        )
        result = await self._push.attempt(endpoint, OutgoingMessage(message), 1)
        if result.outcome is Outcome.GONE:
            await self._channels.disable(record, "the endpoint answered 410")
        return SendResult(result.outcome, result.duration_ms, result.status, result.error)


def _identity(channel: str, records: Sequence[AlertRecord]) -> str:
    """The same for a notification that is sent again after a crash."""
    parts = [f"{one.id}.{one.due[channel].kind}.{one.due[channel].since_ms}" for one in records if channel in one.due]
    return parts[0] if len(parts) == 1 else "digest." + hashlib.blake2b(" ".join(parts).encode(), digest_size=16).hexdigest()


def _notification(channel: str, records: Sequence[AlertRecord]) -> Notification:
    if len(records) == 1:
        [record] = records
        alert = alert_of(record)
        grew = channel in record.due and record.due[channel].kind == "grew"
        return Notification(type="alert.grew" if grew else "alert.opened", summary=alert.summary, alerts=[alert])
    shown = [alert_of(one) for one in records[:_DIGEST_MAX]]
    summary = f"[{_worst(shown)}] {len(records):,} alerts"
    return Notification(type="alert.digest", summary=summary, alerts=shown, more=len(records) - len(shown))


def _worst(alerts: Sequence[Alert]) -> str:
    found = {one.severity for one in alerts}
    return next(one for one in ("critical", "warning", "info") if one in found)
