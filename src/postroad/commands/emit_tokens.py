"""Emit tokens: short-lived credentials that send the commands of one service, for keys that the service trusts.

    pr_emit_<signed>      signed content: format, tenant, service, its incarnation, key id, id of the key's text, expiry

A token becomes invalid with the text of its key, the trust of the service, the service or the tenant.
"""

from typing import NamedTuple

import msgspec

from postroad.access.authentication import EMIT_PREFIX
from postroad.access.identity_cache import IdentityCache
from postroad.access.keys import key_hash
from postroad.access.records import KeyRecord, earliest
from postroad.api.commands import SourceRefused
from postroad.commands.records import ServiceRecord, service_key
from postroad.crypto.signing import SignatureInvalid, Signer
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.identity import Caller, Credential, Scope

_OWNER = b"emit"
_VERIFIED_MAX = 10_000


class _EmitToken(msgspec.Struct, frozen=True, array_like=True):
    v: int
    tenant: str
    service: str
    incarnation: str
    key_id: str
    text_id: str
    expires_at_ms: int


_decode = msgspec.msgpack.Decoder(_EmitToken).decode


class _Verified(NamedTuple):
    """The caller of a token, and the records by which it was verified."""

    caller: Caller
    service: ServiceRecord
    key: KeyRecord


class EmitTokens:
    def __init__(self, services: ReplicatedTable[ServiceRecord], identities: IdentityCache, signer: Signer, clock: Clock) -> None:
        self._services, self._identities, self._signer, self._clock = services, identities, signer, clock
        self._verified: dict[str, _Verified] = {}  # by the hash of the token's text

    def issue(self, caller: Caller, record: ServiceRecord, seconds: int) -> tuple[str, int]:
        """A token, which expires with the key at the latest, and its expiry in milliseconds. Raises SourceRefused."""
        if caller.credential is not Credential.KEY or caller.key_id not in record.trusted_keys:
            raise SourceRefused(f"the service {record.name!r} does not trust this key: add its id to `trustedKeys`")
        wanted = self._clock() + seconds * 1000
        expires_at_ms = min(wanted, caller.expires_at_ms or wanted)
        token = _EmitToken(1, record.tenant, record.name, record.incarnation, caller.key_id, caller.text_id, expires_at_ms)
        return EMIT_PREFIX + self._signer.sign(_OWNER, msgspec.msgpack.encode(token)), expires_at_ms

    def cached_caller(self, text: str, named_tenant: str | None) -> Caller | None:
        """The caller of a token that was verified before, if its service and key have not changed since; None for all others."""
        known = self._verified.get(key_hash(text))
        if known is None:
            return None
        caller, service, key = known
        if caller.expires_at_ms is None or caller.expires_at_ms <= self._clock() or named_tenant not in (None, caller.tenant):
            return None
        is_current = self._services.get(service.key) is service and self._identities.keys.get(key.id) is key
        return caller if is_current and self._identities.is_served(caller.tenant) else None

    async def authenticate(self, text: str, named_tenant: str | None) -> Caller | None:
        """The caller of a token, None if it is invalid. `named_tenant` is the tenant that the request names."""
        try:
            token = _decode(self._signer.verify(_OWNER, text.removeprefix(EMIT_PREFIX)))
        except (SignatureInvalid, msgspec.DecodeError):
            return None
        now = self._clock()
        if token.expires_at_ms <= now or named_tenant not in (None, token.tenant):
            return None
        service = await self._services.fetch(service_key(token.tenant, token.service))
        if service is None or service.incarnation != token.incarnation or token.key_id not in service.trusted_keys:
            return None
        key = await self._identities.key(token.key_id)
        if key is None or not key.is_active(now) or key.tenant != token.tenant or Scope.PUBLISH not in key.scopes:
            return None
        key_text = key.text_by_id(token.text_id, now)
        if key_text is None or not await self._identities.is_enabled(token.tenant):
            return None
        caller = Caller(
            token.tenant,
            token.key_id,
            frozenset({Scope.PUBLISH}),
            name=key.name,
            credential=Credential.EMIT,
            expires_at_ms=earliest(token.expires_at_ms, key.expiry_of(key_text)),
            allowed=key.allowed,
            text_id=key_text.text_id,
            service=token.service,
            max_requests_per_second=key.max_requests_per_second,
            max_live_connections=key.max_live_connections,
        )
        if not caller.may_use("service", token.service):
            return None
        if len(self._verified) >= _VERIFIED_MAX:
            self._verified.clear()
        self._verified[key_hash(text)] = _Verified(caller, service, key)
        return caller
