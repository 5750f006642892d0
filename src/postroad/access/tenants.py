"""Tenants as things: made, found, changed, disabled and deleted with all that is theirs."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

import msgspec
import structlog
from msgspec import UNSET, Meta, UnsetType

from postroad.access.identity_cache import FIRST_TENANT
from postroad.access.key_service import KeyService, record_of
from postroad.access.records import TenantRecord, TenantState
from postroad.access.views import tenant_view
from postroad.governance.audit import Audit
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import AlreadyExists, Conflict, InvalidParameter, PostroadError, PreconditionFailed, TenantNotFound
from postroad.kernel.identity import ALL_SCOPES
from postroad.kernel.json import invalid_field
from postroad.kernel.names import tenant_id

Cleaner = Callable[[str], Awaitable[None]]
Description = Annotated[str, Meta(max_length=1000)]
_LOOK_EVERY_SECONDS = 60.0

log = structlog.get_logger("postroad.access")


class NewTenant(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    id: Annotated[str, Meta(min_length=1, max_length=32, pattern="^[a-z0-9][a-z0-9-]*$")]
    description: Description = ""
    auto_create_queues: bool = False


class TenantChange(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """What to change; a field that is left out stays."""

    description: Description | UnsetType = UNSET
    enabled: Annotated[bool | UnsetType, Meta(description="A disabled tenant's credentials are refused everywhere.")] = UNSET


class Tenants:
    """`cleaners` delete what a tenant has, whatever that is; they are told its id and may be called again."""

    def __init__(
        self,
        table: ReplicatedTable[TenantRecord],
        keyring: KeyService,
        tenant_settings: TenantSettingsStore,
        audit: Audit,
        clock: Clock,
    ) -> None:
        self._table, self._keyring, self._tenant_settings, self._audit, self._clock = (
            table,
            keyring,
            tenant_settings,
            audit,
            clock,
        )
        self._cleaners: Sequence[Cleaner] = ()
        self._must_clean = asyncio.Event()
        table.on_change(self._changed)

    def clean_with(self, *cleaners: Cleaner) -> None:
        self._cleaners = cleaners

    def _changed(self, _tenant: str, record: TenantRecord | None) -> None:
        if record is not None and record.state is TenantState.DELETING:
            self._must_clean.set()

    def page(self, limit: int, after: str | None) -> tuple[list[TenantRecord], str | None]:
        ids = [name for name in self._table.keys_under() if after is None or name > after]
        found = [record for name in ids if (record := self._table.get(name)) and record.state is not TenantState.DELETED]
        return found[:limit], found[limit - 1].id if len(found) > limit else None

    async def find(self, name: str) -> TenantRecord:
        """Raises TenantNotFound."""
        with contextlib.suppress(InvalidParameter):
            record = await self._table.fetch(tenant_id(name))
            if record is not None and record.state is not TenantState.DELETED:
                return record
        raise TenantNotFound(f"there is no tenant {name[:64]!r}")

    async def create(self, context: RequestContext, wanted: NewTenant) -> TenantRecord:
        """Raises AlreadyExists."""
        record = self._record(wanted.id, wanted.description)
        await self._check_free(record.id)
        async with self._audit.change(context, "tenant.create", record.id, tenant=record.id, after=tenant_view(record)):
            await self.add(record, auto_create_queues=wanted.auto_create_queues)
        return record

    async def add(self, record: TenantRecord, *, auto_create_queues: bool) -> None:
        """Raises AlreadyExists. The settings come first: a tenant that is there has them."""
        await self._check_free(record.id)
        await self._tenant_settings.set_up(record.id, auto_create_queues=auto_create_queues)
        try:
            await self._table.create(record.id, record)
        except Conflict as exc:
            raise AlreadyExists(f"there is a tenant {record.id!r}") from exc

    async def _check_free(self, name: str) -> None:
        found = await self._table.fetch(name)
        if found is not None:
            was = "was" if found.state is TenantState.DELETED else "is"
            raise AlreadyExists(f"there {was} a tenant {name!r}, and ids are not used twice")

    def _record(self, name: str, description: str = "", invite: str | None = None) -> TenantRecord:
        try:
            checked = tenant_id(name)
        except InvalidParameter as fault:
            raise invalid_field("$.id", fault.detail) from fault
        now = self._clock()
        return TenantRecord(id=checked, description=description, invite=invite, created_at_ms=now, updated_at_ms=now)

    async def change(self, context: RequestContext, name: str, wanted: TenantChange) -> TenantRecord:
        """Raises TenantNotFound, NotNow while it is being deleted."""
        record = await self.find(name)
        if wanted.enabled is False and record.id == FIRST_TENANT:
            raise PreconditionFailed("the first tenant stands in for requests that name none; it cannot be disabled")

        def changed(record: TenantRecord) -> TenantRecord:
            if record.state is TenantState.DELETING:
                raise PreconditionFailed(f"the tenant {record.id!r} is being deleted")
            after = record
            if wanted.description is not UNSET:
                after = msgspec.structs.replace(after, description=wanted.description)
            if wanted.enabled is not UNSET:
                state = TenantState.READY if wanted.enabled else TenantState.DISABLED
                after = msgspec.structs.replace(after, state=state)
            return after if after == record else msgspec.structs.replace(after, updated_at_ms=self._clock())

        after = tenant_view(changed(record))
        async with self._audit.change(
            context, "tenant.change", record.id, tenant=record.id, before=tenant_view(record), after=after
        ):
            found = await self._table.change(record.id, changed)
        if found is None:
            raise TenantNotFound(f"there is no tenant {record.id!r}")
        return found[1]

    async def delete(self, context: RequestContext, name: str) -> TenantRecord:
        """From now on none of its credentials work; what it has is deleted soon, by the control role (`clean_up`)."""
        record = await self.find(name)
        if record.id == FIRST_TENANT:
            raise PreconditionFailed("the first tenant stands in for requests that name none; it cannot be deleted")
        async with self._audit.change(context, "tenant.delete", record.id, tenant=record.id, before=tenant_view(record)):
            found = await self._table.change(
                record.id,
                lambda now: (
                    msgspec.structs.replace(now, state=TenantState.DELETING, updated_at_ms=self._clock())
                    if now.state is not TenantState.DELETING
                    else now
                ),
            )
        return found[1] if found else record

    async def clean_up(self) -> None:
        """Finish deletions, as they come and once a minute, until cancelled. For the control role."""
        while True:
            self._must_clean.clear()
            for name in list(self._table.keys_under()):
                record = self._table.get(name)
                if record is not None and record.state is TenantState.DELETING:
                    await self._clean(name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_SECONDS):
                    await self._must_clean.wait()

    async def _clean(self, name: str) -> None:
        """The record goes last: who is interrupted begins again."""
        try:
            for cleaner in self._cleaners:
                await cleaner(name)
            await self._keyring.delete_all(name)
            await self._tenant_settings.remove(name)
            await self._table.change(name, lambda now: msgspec.structs.replace(now, state=TenantState.DELETED))
            log.info("tenant_deleted", tenant=name)
        except PostroadError as problem:
            log.warning("tenant_not_deleted", tenant=name, code=problem.code, detail=problem.detail)

    async def make_first(self, *, tenant_key: str, admin_key: str) -> bool:
        """On a fresh engine: the tenant `default` with its key, and the platform admin key. False if that was done before.

        The tenant's record is written last, so an interrupted start is simply done again with the same keys.
        """
        if await self._table.fetch(FIRST_TENANT) is not None:
            return False
        now = self._clock()
        for record in (
            record_of(tenant_key, FIRST_TENANT, "first key", ALL_SCOPES, now),
            record_of(admin_key, None, "platform admin", ALL_SCOPES, now),
        ):
            with contextlib.suppress(Conflict):
                await self._keyring.add(record)
        with contextlib.suppress(AlreadyExists):
            await self.add(self._record(FIRST_TENANT), auto_create_queues=True)
        return True

    async def claim(self, name: str, invite: str, *, auto_create_queues: bool) -> TenantRecord:
        """The tenant of an invite. One that an interrupted claim of the same invite has left is taken up."""
        record = self._record(name, invite=invite)
        try:
            await self.add(record, auto_create_queues=auto_create_queues)
            return record
        except AlreadyExists:
            found = await self._table.fetch(record.id)
            if found is None or found.invite != invite or found.state is not TenantState.READY:
                raise
            return found

    async def abandon(self, name: str) -> None:
        """Of a claim that lost against another one: nobody ever was this tenant, so its id is free again."""
        await self._tenant_settings.remove(name)
        await self._table.delete(name)
