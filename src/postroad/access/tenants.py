"""Tenant lifecycle: create, look up, update, disable, delete with all resources."""

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence

import msgspec
import structlog
from msgspec import UNSET

from postroad.access.identity_cache import DEFAULT_TENANT
from postroad.access.key_service import KeyService, key_record
from postroad.access.records import AwsSecret, TenantRecord, tenant_of
from postroad.api.access import NewTenant, TenantChange, TenantNotFound, TenantState
from postroad.governance.audit import Audit
from postroad.governance.tenant_settings import TenantSettingsStore
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import AlreadyExists, Conflict, InvalidParameter, PostroadError, PreconditionFailed
from postroad.kernel.identity import ALL_SCOPES
from postroad.kernel.json import at_field, invalid_field
from postroad.kernel.names import tenant_id

DeleteResources = Callable[[str], Awaitable[None]]
_POLL_SECONDS = 60.0

log = structlog.get_logger("postroad.access")


class Tenants:
    """`reserved` are the words that cannot be tenant ids; `deleters` delete the resources of a tenant. Both are collected from
    the capabilities once all are built. A deleter may be called again for the same tenant."""

    def __init__(
        self,
        table: ReplicatedTable[TenantRecord],
        keys: KeyService,
        tenant_settings: TenantSettingsStore,
        audit: Audit,
        clock: Clock,
    ) -> None:
        self._table, self._keys, self._tenant_settings = table, keys, tenant_settings
        self._audit, self._clock = audit, clock
        self.reserved: frozenset[str] = frozenset()
        self.deleters: Sequence[DeleteResources] = ()
        self.assign_account: Callable[[str], Awaitable[str]] | None = None
        self._deletion_requested = asyncio.Event()
        table.on_change(self._changed)

    def _changed(self, _tenant: str, record: TenantRecord | None) -> None:
        if record is not None and record.state is TenantState.DELETING:
            self._deletion_requested.set()

    def check_id(self, name: str, path: str) -> None:
        """Check the id of a new tenant, which is at `path` in the body. Raises BodyInvalid."""
        with at_field(path):
            tenant_id(name)
        if name in self.reserved:
            raise invalid_field(path, f"{name!r} is a word of the API and cannot be a tenant id")

    def page(self, limit: int, after: str | None) -> tuple[list[TenantRecord], str | None]:
        """Ordered by id. The cursor is the last id."""
        ids = self._table.keys_under(after=after or "")
        shown = (record for name in ids if (record := self._table.get(name)) and record.state is not TenantState.DELETED)
        found = list(itertools.islice(shown, limit + 1))
        return found[:limit], found[limit - 1].id if len(found) > limit else None

    async def find(self, name: str) -> TenantRecord:
        """Raises TenantNotFound."""
        with contextlib.suppress(InvalidParameter):
            record = await self._table.fetch(tenant_id(name))
            if record is not None and record.state is not TenantState.DELETED:
                return record
        raise TenantNotFound(f"there is no tenant {name[:64]!r}")

    async def create(self, context: RequestContext, wanted: NewTenant) -> TenantRecord:
        """Raises AlreadyExists, BodyInvalid."""
        self.check_id(wanted.id, "$.id")
        record = self._record(wanted.id, wanted.description)
        await self.check_unused(record.id)
        async with self._audit.change(context, "tenant.create", record.id, tenant=record.id, after=tenant_of(record)):
            await self.add(record, auto_create_queues=wanted.auto_create_queues)
        return record

    async def add(self, record: TenantRecord, *, auto_create_queues: bool, auto_create_topics: bool = False) -> None:
        """Store a tenant without checks of its id and audit. Raises AlreadyExists.

        The settings and the AWS account id are stored first, so that every tenant that exists has them.
        """
        await self.check_unused(record.id)
        await self._tenant_settings.set_up(
            record.id, auto_create_queues=auto_create_queues, auto_create_topics=auto_create_topics
        )
        if self.assign_account is not None:
            await self.assign_account(record.id)
        try:
            await self._table.create(record.id, record)
        except Conflict as exc:
            raise AlreadyExists(f"the tenant {record.id!r} exists") from exc

    async def check_unused(self, name: str) -> None:
        """Raises AlreadyExists, also for the id of a deleted tenant."""
        found = await self._table.fetch(name)
        if found is not None:
            state = "existed" if found.state is TenantState.DELETED else "exists"
            raise AlreadyExists(f"the tenant {name!r} {state}; an id cannot be used twice")

    def _record(self, name: str, description: str = "", invite: str | None = None) -> TenantRecord:
        now = self._clock()
        return TenantRecord(id=name, description=description, invite=invite, created_at_ms=now, updated_at_ms=now)

    async def change(self, context: RequestContext, name: str, wanted: TenantChange) -> TenantRecord:
        """Raises TenantNotFound, and PreconditionFailed while the tenant is being deleted."""
        record = await self.find(name)
        if wanted.enabled is False and record.id == DEFAULT_TENANT:
            raise PreconditionFailed("the default tenant cannot be disabled: requests that name no tenant use it")

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

        before, after = tenant_of(record), tenant_of(changed(record))
        async with self._audit.change(context, "tenant.change", record.id, tenant=record.id, before=before, after=after):
            found = await self._table.change(record.id, changed)
        if found is None:
            raise TenantNotFound(f"there is no tenant {record.id!r}")
        return found[1]

    async def delete(self, context: RequestContext, name: str) -> TenantRecord:
        """Refuse the tenant's credentials from now on. The control role deletes its resources (`run_deletions`).

        Raises TenantNotFound, and PreconditionFailed for the default tenant.
        """
        record = await self.find(name)
        if record.id == DEFAULT_TENANT:
            raise PreconditionFailed("the default tenant cannot be deleted: requests that name no tenant use it")
        async with self._audit.change(context, "tenant.delete", record.id, tenant=record.id, before=tenant_of(record)):
            found = await self._table.change(
                record.id,
                lambda now: (
                    msgspec.structs.replace(now, state=TenantState.DELETING, updated_at_ms=self._clock())
                    if now.state is not TenantState.DELETING
                    else now
                ),
            )
        return found[1] if found else record

    async def run_deletions(self) -> None:
        """Delete the resources of tenants that are being deleted, until cancelled. For the leader of the control role."""
        while True:
            self._deletion_requested.clear()
            for name in list(self._table.keys_under()):
                record = self._table.get(name)
                if record is not None and record.state is TenantState.DELETING:
                    await self._delete_resources(name)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_SECONDS):
                    await self._deletion_requested.wait()

    async def _delete_resources(self, name: str) -> None:
        """The record changes last, so an interrupted deletion is repeated."""
        try:
            for delete in self.deleters:
                await delete(name)
            await self._keys.delete_all(name)
            await self._tenant_settings.remove(name)
            await self._table.change(name, lambda now: msgspec.structs.replace(now, state=TenantState.DELETED))
            log.info("tenant_deleted", tenant=name)
        except PostroadError as problem:
            log.warning("tenant_not_deleted", tenant=name, code=problem.code, detail=problem.detail)

    async def create_default(self, aws_secrets: tuple[AwsSecret, ...] = (), /, *, tenant_key: str, admin_key: str) -> bool:
        """Create the tenant `default` with its key, and the platform admin key. Return False if the tenant exists.

        The tenant is stored last, so an interrupted start can be repeated with the same keys.
        """
        if await self._table.fetch(DEFAULT_TENANT) is not None:
            return False
        now = self._clock()
        for record in (
            msgspec.structs.replace(key_record(tenant_key, DEFAULT_TENANT, "first key", ALL_SCOPES, now), aws=aws_secrets),
            key_record(admin_key, None, "platform admin", ALL_SCOPES, now),
        ):
            with contextlib.suppress(Conflict):
                await self._keys.add(record)
        with contextlib.suppress(AlreadyExists):
            await self.add(self._record(DEFAULT_TENANT), auto_create_queues=True, auto_create_topics=True)
        return True

    async def create_for_invite(self, name: str, invite: str, *, auto_create_queues: bool) -> None:
        """Create the tenant of an invite, unless an interrupted claim of the same invite already did. Raises AlreadyExists."""
        record = self._record(name, invite=invite)
        try:
            await self.add(record, auto_create_queues=auto_create_queues)
        except AlreadyExists:
            found = await self._table.fetch(record.id)
            if found is None or found.invite != invite or found.state is not TenantState.READY:
                raise

    async def discard(self, name: str) -> None:
        """Remove the tenant of a claim that lost against another one. It was never used, so its id is free again."""
        await self._tenant_settings.remove(name)
        await self._table.delete(name)


def reserved_words(paths: Iterable[str]) -> frozenset[str]:
    """Words that follow a prefix where other paths have `{project}`: a tenant of such an id could not be reached there."""
    segments = [path.split("/") for path in paths]
    prefixes = {tuple(path[: path.index("{project}")]) for path in segments if "{project}" in path}
    return frozenset(
        path[len(prefix)]
        for path in segments
        for prefix in prefixes
        if tuple(path[: len(prefix)]) == prefix and len(path) > len(prefix) and not path[len(prefix)].startswith("{")
    )
