"""Alert channels: create, confirm, rotate secrets, delete; their endpoints and last attempts."""

import hashlib
import hmac
import secrets as random_numbers
from typing import Protocol

import msgspec

from postroad.alerts.email_sender import EmailFailed, EmailSender, is_address
from postroad.alerts.events import ChannelFailing
from postroad.alerts.records import (
    ATTEMPTS_KEPT,
    AttemptsRecord,
    ChannelRecord,
    ChannelSecret,
    channel_of,
    named_key,
)
from postroad.alerts.rules import CONTACT, check_name
from postroad.alerts.settings import AlertsSettings
from postroad.api.alerts import (
    DASHBOARD,
    AlertChannel,
    AlertChannelNotFound,
    ChannelAttempt,
    ChannelDefinition,
    ConfirmationCodeInvalid,
    MailServerUnavailable,
    SavedChannel,
)
from postroad.crypto.secret_encryption import SecretCipher
from postroad.governance.audit import Audit
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, Forbidden, PreconditionFailed
from postroad.kernel.event import PLATFORM
from postroad.kernel.ids import new_id
from postroad.kernel.json import invalid_field
from postroad.outbound.rules import OutboundRefused
from postroad.subscriptions.outgoing import Endpoint
from postroad.subscriptions.push_client import PushClient
from postroad.subscriptions.signatures import Signer, new_secret
from postroad.telemetry.outbox import Outbox

_CODE_MS = 24 * 3_600_000
_CODE_ATTEMPTS = 5
_RESEND_MS = 60_000
_CODES = "_codes"  # no channel has this name
_CODES_MAX, _CODES_MS = 10, 3_600_000  # of a tenant
_OVERLAP_MS = 24 * 3_600_000
_TIMEOUT_MS = 10_000


class _Result(Protocol):
    @property
    def duration_ms(self) -> int: ...
    @property
    def status(self) -> int | None: ...
    @property
    def error(self) -> str | None: ...


class Channels:
    def __init__(
        self,
        table: ReplicatedTable[ChannelRecord],
        attempts: ReplicatedTable[AttemptsRecord],
        cipher: SecretCipher,
        push: PushClient,
        email: EmailSender | None,
        outbox: Outbox,
        audit: Audit,
        clock: Clock,
        settings: AlertsSettings,
    ) -> None:
        self.table, self._attempts, self._cipher, self._push, self._email = table, attempts, cipher, push, email
        self._outbox, self._audit, self._clock, self._settings = outbox, audit, clock, settings

    @property
    def has_email(self) -> bool:
        return self._email is not None

    # Reading

    def all(self, tenant: str) -> list[AlertChannel]:
        found = [record for key in self.table.keys_under(f"{tenant}.") if (record := self.table.get(key)) is not None]
        return [AlertChannel(name=DASHBOARD, kind="dashboard", state="active"), *(self._shown(one) for one in found)]

    def _shown(self, record: ChannelRecord) -> AlertChannel:
        return channel_of(record, self._attempts.get(record.key), self._clock())

    async def get(self, tenant: str, name: str) -> AlertChannel:
        """Raises AlertChannelNotFound."""
        if name == DASHBOARD:
            return AlertChannel(name=DASHBOARD, kind="dashboard", state="active")
        return self._shown(await self.find(tenant, name))

    async def find(self, tenant: str, name: str) -> ChannelRecord:
        """Raises AlertChannelNotFound."""
        record = await self.table.fetch(named_key(tenant, name))
        if record is None:
            raise AlertChannelNotFound(f"there is no alert channel {name!r}")
        return record

    def exists(self, tenant: str, name: str) -> bool:
        return name == DASHBOARD or self.table.get(named_key(tenant, name)) is not None

    def find_active(self, tenant: str, name: str) -> ChannelRecord | None:
        record = self.table.get(named_key(tenant, name))
        return record if record is not None and record.state == "active" else None

    def active(self, tenant: str) -> list[str]:
        found = (self.table.get(key) for key in self.table.keys_under(f"{tenant}."))
        return [one.name for one in found if one is not None and one.state == "active"]

    def endpoint(self, record: ChannelRecord) -> Endpoint:
        now = self._clock()
        valid = [one for one in record.secrets if one.valid_until_ms is None or one.valid_until_ms > now]
        return Endpoint(
            subscription=f"alert.{record.id}",
            tenant=record.tenant,
            topic="alerts",
            url=record.url or "",
            ack_wait_ms=_TIMEOUT_MS,
            signers=tuple(Signer(self._cipher.decrypt(record.secret_owner, one.encrypted)) for one in valid),
        )

    # Changes

    async def put(self, context: RequestContext, name: str, wanted: ChannelDefinition) -> tuple[SavedChannel, bool]:
        """Create or replace a channel; return it and whether it is new. A new address must be confirmed, a new webhook gets a
        secret, which is shown once.

        Raises InvalidParameter, BodyInvalid, Forbidden, PreconditionFailed without a mail server, MailServerUnavailable if the
        code cannot be sent.
        """
        check_name(name)
        if name == DASHBOARD:
            raise Forbidden("the channel `dashboard` is always there and cannot be changed")
        self._check(wanted)
        key, now = named_key(context.tenant, name), self._clock()
        known = await self.table.fetch(key)
        is_same = known is not None and (known.kind, known.address, known.url) == (wanted.kind, wanted.address, wanted.url)
        if known is not None and is_same and known.state == "active":
            return _saved(self._shown(known)), False
        self._check_count(context.tenant, is_new=known is None)
        record = ChannelRecord(
            tenant=context.tenant,
            name=name,
            id=known.id if known is not None else new_id(),
            kind=wanted.kind,
            state="unconfirmed" if wanted.kind == "email" else "active",
            address=wanted.address,
            url=wanted.url,
            secrets=known.secrets if known is not None else (),
            created_at_ms=now if known is None else known.created_at_ms,
            updated_at_ms=now,
        )
        secret: str | None = None
        if wanted.kind == "webhook" and not record.secrets:
            record, secret = self._with_secret(record)
        elif wanted.kind == "email":
            record = await self._with_code(record, known)
        action = "alert-channel.create" if known is None else "alert-channel.change"
        before = None if known is None else self._shown(known)
        async with self._audit.change(context, action, name, before=before, after=self._shown(record)):
            await self._store(record, known)
        return _saved(self._shown(record), secret), known is None

    def _check(self, wanted: ChannelDefinition) -> None:
        if wanted.kind == "email":
            if wanted.url is not None or wanted.address is None or not is_address(wanted.address):
                raise invalid_field("$.address", "an `email` channel needs an email address, and has no `url`")
            if self._email is None:
                raise PreconditionFailed("this installation has no mail server (POSTROAD_SMTP_URL): use a webhook")
            return
        if wanted.address is not None or wanted.url is None:
            raise invalid_field("$.url", "a `webhook` channel needs a URL, and has no `address`")
        try:
            self._push.check(wanted.url)
        except OutboundRefused as refused:
            raise invalid_field("$.url", f"not allowed: {refused.explanation}") from refused

    def _check_count(self, tenant: str, *, is_new: bool) -> None:
        count, limit = self.table.count_under(f"{tenant}."), self._settings.alert_channels_max
        if is_new and count >= limit:
            raise Forbidden(f"the tenant has {count} alert channels; {limit} is the limit")

    def _with_secret(self, record: ChannelRecord) -> tuple[ChannelRecord, str]:
        """The record with a new secret. The latest one before it stays valid for a day."""
        secret, now = new_secret(), self._clock()
        kept = tuple(ChannelSecret(one.encrypted, now + _OVERLAP_MS) for one in record.secrets if one.valid_until_ms is None)
        added = ChannelSecret(self._cipher.encrypt(record.secret_owner, secret))
        return msgspec.structs.replace(record, secrets=(*kept, added)), secret

    async def _with_code(self, record: ChannelRecord, known: ChannelRecord | None) -> ChannelRecord:
        """Send a confirmation code to the address."""
        now = self._clock()
        if known is not None and now - known.code_sent_ms < _RESEND_MS:
            raise PreconditionFailed("a code was sent less than a minute ago: wait before you request another")
        await self._count_code(record.tenant)
        code = f"{random_numbers.randbelow(10**8):08d}"
        text = (
            f"Confirm that this address receives alerts of the tenant {record.tenant} of Postroad.\n\nCode: {code}\n\n"
            "It is valid for 24 hours. If you do not expect this email, ignore it: nothing more is sent.\n"
        )
        if self._email is not None:
            try:
                await self._email.send(record.address or "", "Confirm this address for alerts", text, f"confirm.{new_id()}")
            except EmailFailed as failed:
                raise MailServerUnavailable(
                    f"the mail server did not accept the confirmation: {failed.reason}", retry_after=10
                ) from failed
        return msgspec.structs.replace(
            record, code_hash=_code_hash(record, code), code_expires_ms=now + _CODE_MS, code_attempts=0, code_sent_ms=now
        )

    async def _count_code(self, tenant: str) -> None:
        """Count a confirmation code that is sent. The count outlives the channels: deleting one must not allow another code."""
        key, now = f"{tenant}.{_CODES}", self._clock()
        known = await self._attempts.fetch(key)
        recent = tuple(at for at in (known.codes_sent_ms if known is not None else ()) if now - at < _CODES_MS)
        if len(recent) >= _CODES_MAX:
            raise PreconditionFailed(f"{_CODES_MAX} codes were sent within an hour: wait before you request another")
        record = AttemptsRecord(codes_sent_ms=(*recent, now))
        if known is None:
            await self._attempts.create(key, record)
        else:
            await self._attempts.update(key, record, self._attempts.revision(key))

    async def _store(self, record: ChannelRecord, known: ChannelRecord | None) -> None:
        if known is None:
            await self.table.create(record.key, record)
        else:
            await self.table.update(record.key, record, self.table.revision(record.key))

    async def confirm(self, context: RequestContext, name: str, code: str) -> AlertChannel:
        """Activate an email channel. Raises AlertChannelNotFound, ConfirmationCodeInvalid, PreconditionFailed."""
        record = await self.find(context.tenant, name)
        if record.kind != "email":
            raise PreconditionFailed("only email channels are confirmed")
        if record.state == "active":
            return self._shown(record)

        def attempted(known: ChannelRecord) -> ChannelRecord:
            if known.code_attempts >= _CODE_ATTEMPTS or self._clock() > known.code_expires_ms:
                raise ConfirmationCodeInvalid("the code has expired, or there were too many attempts: request a new one")
            return msgspec.structs.replace(known, code_attempts=known.code_attempts + 1)

        changed = await self.table.change(record.key, attempted)
        if changed is None or not hmac.compare_digest(changed[1].code_hash, _code_hash(record, code)):
            raise ConfirmationCodeInvalid("the code is wrong")
        after = msgspec.structs.replace(changed[1], state="active", code_hash="", updated_at_ms=self._clock())
        async with self._audit.change(context, "alert-channel.confirm", name, after=self._shown(after)):
            await self.table.update(record.key, after, self.table.revision(record.key))
        return self._shown(after)

    async def rotate(self, context: RequestContext, name: str) -> SavedChannel:
        """Give a webhook a new secret; the previous one is valid for a day. Raises AlertChannelNotFound, PreconditionFailed."""
        record = await self.find(context.tenant, name)
        if record.kind != "webhook":
            raise PreconditionFailed("only webhooks have a secret")
        after, secret = self._with_secret(msgspec.structs.replace(record, updated_at_ms=self._clock()))
        async with self._audit.change(context, "alert-channel.rotate", name, after=self._shown(after)):
            await self.table.update(record.key, after, self.table.revision(record.key))
        return _saved(self._shown(after), secret)

    async def delete(self, context: RequestContext, name: str) -> None:
        """Raises AlertChannelNotFound."""
        record = await self.find(context.tenant, name)
        async with self._audit.change(context, "alert-channel.delete", name, before=self._shown(record)):
            await self.table.delete(record.key)
            await self._attempts.delete(record.key)

    async def disable(self, record: ChannelRecord, reason: str) -> None:
        def disabled(known: ChannelRecord) -> ChannelRecord:
            return msgspec.structs.replace(known, state="disabled", reason=reason, updated_at_ms=self._clock())

        await self.table.change(record.key, disabled)

    # Attempts

    async def record_attempt(self, tenant: str, channel: str, outcome: str, alerts: int, result: _Result) -> None:
        """Keep the attempt, and report a channel that fails again and again. Nothing is kept of a channel that was deleted."""
        key = named_key(tenant, channel)
        if channel != CONTACT and self.table.get(key) is None:
            return
        attempt = ChannelAttempt(
            at=rfc3339(self._clock()),
            outcome=outcome,
            alerts=alerts,
            duration_ms=result.duration_ms,
            status=result.status,
            error=result.error,
        )
        known = self._attempts.get(key)
        failures = 0 if outcome == "delivered" else (0 if known is None else known.failures) + 1
        kept = (attempt, *(known.attempts if known is not None else ()))[:ATTEMPTS_KEPT]
        record = AttemptsRecord(attempts=kept, failures=failures)
        try:
            if known is None:
                await self._attempts.create(key, record)
            else:
                await self._attempts.update(key, record, self._attempts.revision(key))
        except Conflict:  # a test of the channel at the same time
            self._attempts.forget(key)
        if failures == 3 or (failures and failures % 10 == 0):
            error = result.error or f"HTTP {result.status}"
            event = ChannelFailing(tenant=PLATFORM, channel=f"{tenant}/{channel}", failures=failures, error=error)
            self._outbox.record(None, event)


def _code_hash(record: ChannelRecord, code: str) -> str:
    return hashlib.sha256(f"{record.id} {record.address} {code}".encode()).hexdigest()


def _saved(channel: AlertChannel, secret: str | None = None) -> SavedChannel:
    return SavedChannel(**{name: getattr(channel, name) for name in AlertChannel.__struct_fields__}, secret=secret)
