"""Invites: an operator issues a code that creates one tenant and its first key, once."""

import msgspec

from postroad.access.key_service import KeyService, check_expiry, key_record
from postroad.access.keys import INVITE_PREFIX, is_id, is_same_hash, key_hash, key_id_of, new_key
from postroad.access.records import InviteRecord, KeyRecord, invite_of, key_properties_of
from postroad.access.tenants import Tenants
from postroad.api.access import InviteClaim, InviteEnded, InviteNotFound, NewInvite
from postroad.governance.audit import Audit
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import InvalidParameter
from postroad.kernel.event import PLATFORM
from postroad.kernel.identity import ALL_SCOPES, Caller
from postroad.kernel.json import invalid_field


class Invites:
    def __init__(
        self, table: ReplicatedTable[InviteRecord], tenants: Tenants, keys: KeyService, audit: Audit, clock: Clock
    ) -> None:
        self._table, self._tenants, self._keys, self._audit, self._clock = table, tenants, keys, audit, clock

    async def create(self, context: RequestContext, wanted: NewInvite) -> tuple[InviteRecord, str]:
        """Create an invite; return it and its code, which is not stored. Raises BodyInvalid, and AlreadyExists if the tenant that
        it names exists."""
        if wanted.tenant is not None:
            self._tenants.check_id(wanted.tenant, "$.tenant")
            await self._tenants.check_unused(wanted.tenant)
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
        check_expiry(record.expires_at_ms, now, context.caller, "$.expiresInSeconds")
        async with self._audit.change(context, "invite.create", record.id, tenant=PLATFORM, after=invite_of(record, now)):
            await self._table.create(record.id, record)
        return record, code

    def page(self, limit: int, after: str | None) -> tuple[list[InviteRecord], str | None]:
        """Newest first. The cursor has the creation time and the id of the last invite. Raises InvalidParameter."""
        found = [record for key in self._table.keys_under() if (record := self._table.get(key)) is not None]
        ordered = sorted(((record.created_at_ms, record.id), record) for record in found)[::-1]
        if after is not None:
            at, _, invite = after.partition(".")
            if not at.isdecimal() or len(at) > 18:
                raise InvalidParameter("the cursor was not returned by this list")
            ordered = [(position, record) for position, record in ordered if position < (int(at), invite)]
        shown = ordered[:limit]
        return [record for _, record in shown], f"{shown[-1][0][0]}.{shown[-1][0][1]}" if len(ordered) > limit else None

    async def revoke(self, context: RequestContext, invite: str) -> None:
        """Raises InviteNotFound."""
        record = await self._table.fetch(invite) if is_id(invite) else None
        if record is None:
            raise InviteNotFound("the invite is unknown")
        before = invite_of(record, self._clock())
        async with self._audit.change(context, "invite.revoke", record.id, tenant=PLATFORM, before=before):
            await self._table.delete(record.id)

    async def claim(self, wanted: InviteClaim, *, request_id: str, address: str) -> tuple[KeyRecord, str]:
        """Create the tenant and its first key; return the key and its text.

        Raises InviteNotFound, InviteEnded, BodyInvalid, and AlreadyExists if the tenant exists.

        The tenant and the key are stored first, then the invite is marked as claimed, which only one claim can do. An
        interrupted claim can be repeated; a claim that lost the race removes its key again.
        """
        record = await self._find_open(wanted.code)
        name = wanted.tenant or record.tenant
        if name is None or (record.tenant is not None and name != record.tenant):
            expected = f"must be {record.tenant!r} for this invite" if record.tenant else "is required for this invite"
            raise invalid_field("$.tenant", expected)
        self._tenants.check_id(name, "$.tenant")
        context = RequestContext(Caller(name, f"invite:{record.id}", frozenset()), request_id, address)
        text = new_key()
        key = key_record(text, name, wanted.key_name, ALL_SCOPES, self._clock(), created_by=context.caller.key_id)
        after = key_properties_of(key)
        async with self._audit.change(context, "invite.claim", record.id, tenant=PLATFORM, after=after):
            await self._tenants.create_for_invite(name, record.id, auto_create_queues=record.auto_create_queues)
            await self._keys.add(key)
            try:
                await self._mark_claimed(record.id, name)
            except (InviteEnded, InviteNotFound):
                await self._keys.remove(key.id)
                winner = await self._table.fetch(record.id)
                if winner is None or winner.claimed_tenant != name:
                    await self._tenants.discard(name)
                raise
        await self._audit.record(context, "tenant.create", name, tenant=name, after=after)
        return key, text

    async def _find_open(self, code: str) -> InviteRecord:
        invite = key_id_of(code, (INVITE_PREFIX,))
        record = await self._table.fetch(invite) if invite is not None else None
        if record is None or not is_same_hash(record.sha256, key_hash(code)):
            raise InviteNotFound("the invite is unknown")
        return self._check_open(record)

    def _check_open(self, record: InviteRecord) -> InviteRecord:
        if record.claimed_at_ms is not None:
            raise InviteEnded("the invite was already used")
        if record.expires_at_ms <= self._clock():
            raise InviteEnded("the invite has expired")
        return record

    async def _mark_claimed(self, invite: str, tenant: str) -> None:
        changed = await self._table.change(
            invite,
            lambda record: msgspec.structs.replace(self._check_open(record), claimed_at_ms=self._clock(), claimed_tenant=tenant),
        )
        if changed is None:
            raise InviteNotFound("the invite was revoked")
