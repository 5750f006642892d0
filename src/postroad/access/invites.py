"""Invites: an operator hands out a code, and whoever has it makes a tenant and its first key with it, once."""

from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.access.key_service import KeyService, record_of
from postroad.access.keys import INVITE_PREFIX, is_same_hash, key_hash, key_id_of, new_key
from postroad.access.records import InviteRecord, KeyRecord
from postroad.access.tenants import Tenants
from postroad.access.views import invite_view, key_view
from postroad.governance.audit import PLATFORM, Audit
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import InvalidParameter, InviteEnded, InviteNotFound
from postroad.kernel.identity import ALL_SCOPES, Caller
from postroad.kernel.json import invalid_field
from postroad.kernel.names import tenant_id

TenantName = Annotated[str, Meta(min_length=1, max_length=32, pattern="^[a-z0-9][a-z0-9-]*$")]


class NewInvite(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    tenant: Annotated[TenantName | None, Meta(description="The only tenant that it may make; any name if left out.")] = None
    note: Annotated[str, Meta(max_length=1000)] = ""
    auto_create_queues: bool = False
    expires_in_seconds: Annotated[int, Meta(ge=60, le=90 * 86_400)] = 7 * 86_400


class Claim(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    code: Annotated[str, Meta(min_length=1, max_length=128)]
    tenant: Annotated[TenantName | None, Meta(description="The tenant's id; may be left out if the invite names it.")] = None
    key_name: Annotated[str, Meta(min_length=1, max_length=100)] = "first key"


class Invites:
    def __init__(
        self, table: ReplicatedTable[InviteRecord], tenants: Tenants, keyring: KeyService, audit: Audit, clock: Clock
    ) -> None:
        self._table, self._tenants, self._keyring, self._audit, self._clock = table, tenants, keyring, audit, clock

    async def create(self, context: RequestContext, wanted: NewInvite) -> tuple[InviteRecord, str]:
        """The invite, and its code, which nobody can ask for again."""
        if wanted.tenant is not None:
            _checked_tenant(wanted.tenant)
        code = new_key(INVITE_PREFIX)
        now = self._clock()
        record = InviteRecord(
            id=key_id_of(code, (INVITE_PREFIX,)) or "",
            sha256=key_hash(code),
            tenant=wanted.tenant,
            note=wanted.note,
            auto_create_queues=wanted.auto_create_queues,
            created_by=context.caller.key_id,
            created_at_ms=now,
            expires_at_ms=now + wanted.expires_in_seconds * 1000,
        )
        async with self._audit.change(context, "invite.create", record.id, tenant=PLATFORM, after=invite_view(record, now)):
            await self._table.create(record.id, record)
        return record, code

    def page(self, limit: int, after: str | None) -> tuple[list[InviteRecord], str | None]:
        """Newest first; the cursor is the last one's place."""
        found = [record for key in self._table.keys_under() if (record := self._table.get(key)) is not None]
        places = sorted(((record.created_at_ms, record.id), record) for record in found)[::-1]
        if after is not None:
            at, _, invite = after.partition(".")
            if not at.isdecimal():
                raise InvalidParameter("the cursor is not one that this list gave out")
            places = [(place, record) for place, record in places if place < (int(at), invite)]
        shown = places[:limit]
        return [record for _, record in shown], f"{shown[-1][0][0]}.{shown[-1][0][1]}" if len(places) > limit else None

    async def revoke(self, context: RequestContext, invite: str) -> None:
        """Raises InviteNotFound."""
        record = await self._find(invite)
        async with self._audit.change(
            context, "invite.revoke", record.id, tenant=PLATFORM, before=invite_view(record, self._clock())
        ):
            await self._table.delete(record.id)

    async def _find(self, invite: str) -> InviteRecord:
        record = await self._table.fetch(invite) if invite.isalnum() and len(invite) == 16 else None
        if record is None:
            raise InviteNotFound("the invite is not known")
        return record

    async def claim(self, wanted: Claim, *, request_id: str, address: str) -> tuple[KeyRecord, str]:
        """The new tenant's first key and its text. Raises InviteNotFound, InviteEnded, AlreadyExists if the name is taken.

        First the tenant and the key, which nobody knows yet; then the invite is marked, which one claim alone can do. Who is
        interrupted before that claims again; who loses the race takes the key away again.
        """
        record = await self._open(wanted.code)
        name = wanted.tenant or record.tenant
        if name is None or (record.tenant is not None and name != record.tenant):
            raise invalid_field("$.tenant", "this invite " + (f"is for {record.tenant!r}" if record.tenant else "needs a name"))
        _checked_tenant(name)
        context = RequestContext(Caller(name, f"invite:{record.id}", frozenset()), request_id, address)
        text = new_key()
        key = record_of(text, name, wanted.key_name, ALL_SCOPES, self._clock(), created_by=context.caller.key_id)
        async with self._audit.change(context, "invite.claim", record.id, tenant=PLATFORM, after=key_view(key)):
            await self._tenants.claim(name, record.id, auto_create_queues=record.auto_create_queues)
            await self._keyring.add(key)
            try:
                await self._mark(record.id, name)
            except (InviteEnded, InviteNotFound):
                await self._keyring.remove(key.id)
                winner = await self._table.fetch(record.id)
                if winner is None or winner.claimed_tenant != name:
                    await self._tenants.abandon(name)
                raise
        await self._audit.record(context, "tenant.create", name, tenant=name, after=key_view(key))
        return key, text

    async def _open(self, code: str) -> InviteRecord:
        invite = key_id_of(code, (INVITE_PREFIX,))
        record = await self._table.fetch(invite) if invite is not None else None
        if record is None or not is_same_hash(record.sha256, key_hash(code)):
            raise InviteNotFound("the invite is not known")
        return self._still_open(record)

    def _still_open(self, record: InviteRecord) -> InviteRecord:
        if record.claimed_at_ms is not None:
            raise InviteEnded("the invite was used before")
        if record.expires_at_ms <= self._clock():
            raise InviteEnded("the invite has expired")
        return record

    async def _mark(self, invite: str, tenant: str) -> None:
        changed = await self._table.change(
            invite,
            lambda record: msgspec.structs.replace(self._still_open(record), claimed_at_ms=self._clock(), claimed_tenant=tenant),
        )
        if changed is None:
            raise InviteNotFound("the invite was revoked")


def _checked_tenant(name: str) -> str:
    try:
        return tenant_id(name)
    except InvalidParameter as fault:
        raise invalid_field("$.tenant", fault.detail) from fault
