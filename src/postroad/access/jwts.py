"""JWTs that a tenant signs for its own users, with secrets it shares with us: HS256, several secrets at a time for rotation.

Claims: `sub` and `exp` must be there, `scope` is `read`, `write` or both, `stream_id` keeps it to one stream. A `kid` in the
head names the secret; without one all of the tenant's are tried. They open stream and session routes, nothing else.
"""

import secrets
from typing import Annotated, Any

import jwt
import msgspec
import structlog
from msgspec import UNSET, Meta, UnsetType

from postroad.access.identity_cache import IdentityCache
from postroad.access.key_service import LATEST_MS, When, check_expiry
from postroad.access.records import SecretRecord, TenantState
from postroad.access.views import secret_view
from postroad.crypto.secret_encryption import DecryptionFailed, SecretCipher
from postroad.governance.audit import Audit
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PreconditionFailed, SecretNotFound, TenantDisabled
from postroad.kernel.identity import Caller, Credential, Scope
from postroad.kernel.ids import new_id

SECRETS_MAX = 5
_LEEWAY_SECONDS = 5
_SCOPES = {"read": Scope.READ, "write": Scope.WRITE}
_TEXT_MAX = 4096
# A secret that looks like a public key is none to HS256; the others are texts nested too deeply, or claims of odd types.
_UNREADABLE = (jwt.PyJWTError, RecursionError, TypeError, OverflowError)

log = structlog.get_logger("postroad.access")


class NewSecret(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(min_length=1, max_length=100)]
    secret: (
        Annotated[str, Meta(min_length=32, max_length=512, description="Made here, and shown once, if left out.")] | UnsetType
    ) = UNSET
    expires_at: When | None = None


class JwtSecrets:
    def __init__(
        self, table: ReplicatedTable[SecretRecord], directory: IdentityCache, vault: SecretCipher, audit: Audit, clock: Clock
    ) -> None:
        self._table, self._directory, self._vault, self._audit, self._clock = table, directory, vault, audit, clock
        self._by_tenant: dict[str, dict[str, SecretRecord]] = {}
        self._plain: dict[str, str] = {}
        table.on_change(self._changed)

    def _changed(self, key: str, record: SecretRecord | None) -> None:
        tenant, _, secret = key.partition(".")
        self._plain.pop(secret, None)
        known = self._by_tenant.setdefault(tenant, {})
        if record is not None:
            known[secret] = record
            return
        known.pop(secret, None)
        self._directory.end_watches(_caller_id(secret))

    async def create(self, context: RequestContext, wanted: NewSecret) -> tuple[SecretRecord, str]:
        """The record, and the secret, which nobody can ask for again."""
        if len(self._by_tenant.get(context.tenant, ())) >= SECRETS_MAX:
            raise PreconditionFailed(f"a tenant has at most {SECRETS_MAX} JWT secrets: delete one that is no longer used")
        expires_at_ms = None if wanted.expires_at is None else int(wanted.expires_at.timestamp() * 1000)
        check_expiry(expires_at_ms, self._clock())
        plain = wanted.secret if isinstance(wanted.secret, str) else secrets.token_urlsafe(48)
        secret_id = new_id()
        record = SecretRecord(
            id=secret_id,
            tenant=context.tenant,
            name=wanted.name,
            locked=self._vault.encrypt(_owner(context.tenant, secret_id), plain),
            created_at_ms=self._clock(),
            expires_at_ms=expires_at_ms,
        )
        async with self._audit.change(context, "jwt-secret.create", record.id, after=secret_view(record)):
            await self._table.create(f"{context.tenant}.{record.id}", record)
        return record, plain

    def of(self, tenant: str) -> list[SecretRecord]:
        return sorted(self._by_tenant.get(tenant, {}).values(), key=lambda record: record.id)

    async def delete(self, context: RequestContext, secret_id: str) -> None:
        """Raises SecretNotFound. JWTs that it signed stop within moments, everywhere."""
        record = self._by_tenant.get(context.tenant, {}).get(secret_id)
        if record is None:
            raise SecretNotFound(f"there is no JWT secret {secret_id[:64]!r}")
        async with self._audit.change(context, "jwt-secret.delete", record.id, before=secret_view(record)):
            await self._table.delete(f"{context.tenant}.{record.id}")

    async def delete_all(self, tenant: str) -> None:
        for record in self.of(tenant):
            await self._table.delete(f"{tenant}.{record.id}")

    async def caller(self, text: str, tenant: str) -> Caller | None:
        """The caller of a JWT, None if it is not good. Raises TenantDisabled."""
        found = self._verified(text, tenant)
        if found is None:
            return None
        owner = await self._directory.tenant(tenant)
        if owner is None or owner.state is not TenantState.READY:
            raise TenantDisabled(f"the tenant {tenant!r} is disabled")
        record, claims = found
        subject, scope, stream = claims.get("sub"), claims.get("scope"), claims.get("stream_id")
        scopes = frozenset(_SCOPES[word] for word in str(scope or "").split() if word in _SCOPES)
        if not isinstance(subject, str) or not scopes or not (stream is None or isinstance(stream, str)):
            return None
        return Caller(
            tenant,
            _caller_id(record.id),
            scopes,
            name=subject,
            credential=Credential.JWT,
            subject=subject,
            expires_at_ms=min(int(claims["exp"]) * 1000, record.expires_at_ms or LATEST_MS),
            only_stream=stream,
        )

    def _verified(self, text: str, tenant: str) -> tuple[SecretRecord, dict[str, Any]] | None:
        if len(text) > _TEXT_MAX:
            return None
        now = self._clock()
        try:
            kid = jwt.get_unverified_header(text).get("kid")
        except _UNREADABLE:
            return None
        for record in self._by_tenant.get(tenant, {}).values():
            if (kid is not None and kid != record.id) or (record.expires_at_ms is not None and record.expires_at_ms <= now):
                continue
            plain = self._unlocked(record)
            if plain is None:
                continue
            try:
                claims: dict[str, Any] = jwt.decode(
                    text,
                    plain,
                    algorithms=["HS256"],
                    leeway=_LEEWAY_SECONDS,
                    options={"require": ["exp", "sub"], "verify_aud": False, "verify_exp": False, "verify_iat": False},
                )
            except _UNREADABLE:
                continue
            exp = claims["exp"]
            if isinstance(exp, bool) or not isinstance(exp, int | float) or not now < exp * 1000 < 2**60:
                return None
            return record, claims
        return None

    def _unlocked(self, record: SecretRecord) -> str | None:
        plain = self._plain.get(record.id)
        if plain is None:
            try:
                plain = self._plain[record.id] = self._vault.decrypt(_owner(record.tenant, record.id), record.locked)
            except DecryptionFailed:
                log.error("jwt_secret_locked", tenant=record.tenant, secret_id=record.id)
        return plain

    async def relock(self) -> int:
        """Lock with the newest platform key what an older one locked; how many that were. For the control role."""
        count = 0
        for record in [one for some in list(self._by_tenant.values()) for one in list(some.values())]:
            plain = self._unlocked(record)
            if plain is None or self._vault.uses_newest_key(_owner(record.tenant, record.id), record.locked):
                continue
            newer = msgspec.structs.replace(record, locked=self._vault.encrypt(_owner(record.tenant, record.id), plain))
            key = f"{record.tenant}.{record.id}"
            await self._table.update(key, newer, self._table.revision(key))
            count += 1
        return count


def _owner(tenant: str, secret_id: str) -> str:
    return f"jwt-secret {tenant} {secret_id}"


def _caller_id(secret_id: str) -> str:
    return f"jwt:{secret_id}"
