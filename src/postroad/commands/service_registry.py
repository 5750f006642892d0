"""Services: identities that send and receive commands, with the keys that they trust and the secrets that they sign with."""

import secrets

import msgspec
import structlog

from postroad.access.identity_cache import IdentityCache
from postroad.api.commands import POLL_SECONDS, ConfigSecret, ServiceConfig, ServiceDefinition, ServiceNotFound, TenantConfig
from postroad.api.pages import Page
from postroad.commands.records import PollRecord, RouteRecord, SecretRecord, ServiceRecord, service_key, service_of
from postroad.commands.rules import version_id
from postroad.commands.settings import CommandsSettings
from postroad.crypto.secret_encryption import DecryptionFailed, SecretCipher
from postroad.governance.audit import Audit
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Conflict, Forbidden, PreconditionFailed
from postroad.kernel.identity import Caller
from postroad.kernel.ids import new_id
from postroad.kernel.json import invalid_field
from postroad.kernel.names import escape, service_name

_DAY_MS = 86_400_000
_POLL_PRECISION_MS = 60_000
_SECRET_BYTES = 32

log = structlog.get_logger("postroad.commands")


class ServiceRegistry:
    def __init__(
        self,
        table: ReplicatedTable[ServiceRecord],
        routes: ReplicatedTable[RouteRecord],
        polls: ReplicatedTable[PollRecord],
        identities: IdentityCache,
        tenant_settings: TenantSettingsStore,
        cipher: SecretCipher,
        audit: Audit,
        clock: Clock,
        settings: CommandsSettings,
    ) -> None:
        self.table, self._routes, self._polls = table, routes, polls
        self._identities, self._tenant_settings, self._cipher = identities, tenant_settings, cipher
        self._audit, self._clock, self._settings = audit, clock, settings

    # Look-ups

    async def find(self, tenant: str, name: str) -> ServiceRecord:
        """Raises ServiceNotFound, InvalidParameter."""
        record = await self.table.fetch(service_key(tenant, service_name(name)))
        if record is None:
            raise ServiceNotFound(f"there is no service {name!r}")
        return record

    def page(self, caller: Caller, limit: int, after: str | None) -> Page[ServiceRecord]:
        """The services that the caller may use, ordered by the tokens of their names, after `after`."""
        prefix = f"{caller.tenant}."
        keys = self.table.keys_under(prefix, prefix + escape(after) if after is not None else "")
        records: list[ServiceRecord] = []
        for key in keys:
            record = self.table.get(key)
            if record is None or not caller.may_use("service", record.name):
                continue
            if len(records) == limit:
                return Page(items=records, next_cursor=records[-1].name)
            records.append(record)
        return Page(items=records)

    def polled_at_ms(self, tenant: str, service: str) -> int | None:
        record = self._polls.get(service_key(tenant, service))
        return None if record is None else record.at_ms

    def decrypt(self, record: ServiceRecord, secret: SecretRecord) -> bytes | None:
        """The text of a secret, None if the platform key is not the one that it was encrypted with."""
        try:
            return self._cipher.decrypt(record.secret_owner(secret.number), secret.locked).encode()
        except DecryptionFailed:
            log.error("service_secret_not_decrypted", source=record.source, version=version_id(secret.number))
            return None

    # Changes

    async def put(self, context: RequestContext, name: str, wanted: ServiceDefinition) -> tuple[ServiceRecord, bool]:
        """Create or replace the service; return it and whether it is new. Secrets are kept.

        Raises InvalidParameter, BodyInvalid, Forbidden, EngineUnavailable.
        """
        key = service_key(context.tenant, service_name(name))
        trusted = tuple(dict.fromkeys(wanted.trusted_keys))
        await self._check_keys(context.tenant, trusted, await self.table.fetch(key))
        fields = {"trusted_keys": trusted, "description": wanted.description, "contact": wanted.contact}
        while True:
            known = await self.table.fetch(key)
            if known is None:
                try:
                    return await self._create(context, key, name, wanted, trusted), True
                except Conflict:
                    self.table.forget(key)
                    continue
            now = self._clock()
            if all(getattr(known, field) == value for field, value in fields.items()):
                return known, False

            def changed(record: ServiceRecord, now: int = now) -> ServiceRecord:
                return msgspec.structs.replace(record, **fields, updated_at_ms=now)

            after = changed(known)
            async with self._audit.change(context, "registry.service.change", name, before=_shown(known), after=_shown(after)):
                result = await self.table.change(key, changed)
            if result is not None:
                return result[1], False

    async def _check_keys(self, tenant: str, trusted: tuple[str, ...], known: ServiceRecord | None) -> None:
        """Raises BodyInvalid for a new trusted key that the tenant does not have. One that was trusted may be deleted by now."""
        for key_id in trusted:
            found = await self._identities.key(key_id)
            is_kept = known is not None and key_id in known.trusted_keys
            if not is_kept and (found is None or found.tenant != tenant):
                raise invalid_field("$.trustedKeys", f"the tenant has no key {key_id!r}")

    async def _create(
        self, context: RequestContext, key: str, name: str, wanted: ServiceDefinition, trusted: tuple[str, ...]
    ) -> ServiceRecord:
        count, limit = self.table.count_under(f"{context.tenant}."), self._tenant_settings.of(context.tenant).max_services
        if count >= limit:
            raise Forbidden(f"the tenant has {count} services; {limit} is the limit")
        now = self._clock()
        record = ServiceRecord(
            tenant=context.tenant,
            name=name,
            incarnation=new_id(),
            trusted_keys=trusted,
            description=wanted.description,
            contact=wanted.contact,
            secrets=(),
            created_at_ms=now,
            updated_at_ms=now,
        )
        record = msgspec.structs.replace(record, secrets=(self._new_secret(record, 1, now),))
        async with self._audit.change(context, "registry.service.create", name, after=_shown(record)):
            await self.table.create(key, record)
        return record

    async def delete(self, context: RequestContext, name: str) -> None:
        """Raises ServiceNotFound, and PreconditionFailed while it has routes."""
        record = await self.find(context.tenant, name)
        revision = self.table.revision(record.key)
        routes = self._routes.count_under(f"{record.key}.")
        if routes:
            raise PreconditionFailed(f"the service has {routes} routes; delete them first")
        async with self._audit.change(context, "registry.service.delete", name, before=_shown(record)):
            await self.table.delete(record.key, revision)
        await self._polls.delete(record.key)

    async def delete_all(self, tenant: str) -> None:
        """Delete all services of a tenant. May be repeated after an interruption."""
        for table in (self.table, self._polls):
            for key in list(table.keys_under(f"{tenant}.")):
                await table.delete(key)

    # Secrets

    def _new_secret(self, record: ServiceRecord, number: int, now_ms: int) -> SecretRecord:
        locked = self._cipher.encrypt(record.secret_owner(number), secrets.token_hex(_SECRET_BYTES))
        return SecretRecord(number=number, locked=locked, created_at_ms=now_ms)

    def _rotated(self, record: ServiceRecord, overlap_ms: int) -> ServiceRecord:
        """With a new current version. The previous one ends after the overlap, older ones end now."""
        now, previous = self._clock(), record.secrets[:1]
        new = self._new_secret(record, 1 + max((one.number for one in record.secrets), default=0), now)
        kept = [msgspec.structs.replace(one, expires_at_ms=now + overlap_ms) for one in previous] if overlap_ms else []
        return msgspec.structs.replace(record, secrets=(new, *kept), updated_at_ms=now)

    async def rotate(self, context: RequestContext, name: str, overlap_seconds: int | None) -> ServiceRecord:
        """Raises ServiceNotFound."""
        record = await self.find(context.tenant, name)
        overlap_ms = self._overlap_ms if overlap_seconds is None else overlap_seconds * 1000
        async with self._audit.change(context, "registry.service-secret.rotate", name, after={"overlapMs": overlap_ms}):
            result = await self.table.change(record.key, lambda known: self._rotated(known, overlap_ms))
        if result is None:
            raise ServiceNotFound(f"there is no service {name!r}")
        return result[1]

    @property
    def _overlap_ms(self) -> int:
        return int(self._settings.commands_secret_overlap_days * _DAY_MS)

    async def maintain_secrets(self) -> int:
        """Rotate secrets that are old enough, drop expired versions, and encrypt with the newest platform key; return the number
        of changed services. For the leader of the control role: a repetition after an interruption does no harm."""
        count = 0
        for key in list(self.table.keys_under()):
            result = await self.table.change(key, self._maintained)
            if result is not None and result[0] is not result[1]:
                count += 1
                log.info("service_secrets_maintained", source=result[1].source, version=version_id(result[1].secrets[0].number))
        return count

    def _maintained(self, record: ServiceRecord) -> ServiceRecord:
        now, age_ms_max = self._clock(), self._settings.commands_secret_days * _DAY_MS
        if not record.secrets or now - record.secrets[0].created_at_ms >= age_ms_max:
            return self._rotated(record, self._overlap_ms)
        kept = tuple(
            self._reencrypted(record, one) for one in record.secrets if one.expires_at_ms is None or one.expires_at_ms > now
        )
        return record if kept == record.secrets else msgspec.structs.replace(record, secrets=kept)

    def _reencrypted(self, record: ServiceRecord, secret: SecretRecord) -> SecretRecord:
        owner, plain = record.secret_owner(secret.number), self.decrypt(record, secret)
        if plain is None or self._cipher.uses_newest_key(owner, secret.locked):
            return secret
        return msgspec.structs.replace(secret, locked=self._cipher.encrypt(owner, plain.decode()))

    # Configuration of senders

    async def config(self, caller: Caller) -> TenantConfig:
        """The secrets of the services that trust the caller, and a record of the poll. Raises EngineUnavailable."""
        now = self._clock()
        trusting = [record for record in self._trusting(caller) if caller.may_use("service", record.name)]
        for record in trusting:
            await self._record_poll(record, now)
        return TenantConfig(
            tenant=caller.tenant,
            poll_seconds=POLL_SECONDS,
            window_seconds=self._settings.commands_window_seconds,
            services=[
                ServiceConfig(name=one.name, source=one.source, secrets=self._config_secrets(one, now)) for one in trusting
            ],
        )

    def _trusting(self, caller: Caller) -> list[ServiceRecord]:
        keys = (
            self.table.keys_under(f"{caller.tenant}.") if caller.service is None else [service_key(caller.tenant, caller.service)]
        )
        return [one for key in keys if (one := self.table.get(key)) is not None and caller.key_id in one.trusted_keys]

    def _config_secrets(self, record: ServiceRecord, now_ms: int) -> list[ConfigSecret]:
        valid = [one for one in record.secrets if one.expires_at_ms is None or one.expires_at_ms > now_ms]
        return [
            ConfigSecret(
                secret=plain.decode(),
                version_id=version_id(one.number),
                is_current=one.expires_at_ms is None,
                created_at=rfc3339(one.created_at_ms),
                expires_at=None if one.expires_at_ms is None else rfc3339(one.expires_at_ms),
            )
            for one in valid
            if (plain := self.decrypt(record, one)) is not None
        ]

    async def _record_poll(self, record: ServiceRecord, now_ms: int) -> None:
        known = self._polls.get(record.key)
        if known is not None and now_ms - known.at_ms < _POLL_PRECISION_MS:
            return
        poll = PollRecord(at_ms=now_ms)
        try:
            if known is None:
                await self._polls.create(record.key, poll)
            else:
                await self._polls.update(record.key, poll, self._polls.revision(record.key))
        except Conflict:  # another gateway has just recorded one
            pass


def _shown(record: ServiceRecord) -> object:
    return service_of(record, None)
