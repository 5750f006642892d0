"""JWTs that a tenant signs for its own users (HS256), and the shared secrets; several at a time, for rotation.

Claims: `sub` and `exp` are required, `scope` is `read`, `write` or both, `stream_id` restricts the JWT to one stream, and
`topics` lists the topics that it may read live, with patterns of subjects; without it there are none. `kid` in
the header names the secret; without it all secrets of the tenant are tried. JWTs are accepted by stream and session routes only.

A JWT can do no more than its secret allows and the key that created the secret can grant, and ends when that key is deleted,
disabled or expires. The secret survives a rotation of the key, which keeps its id.
"""

import secrets
from typing import Any

import jwt
import msgspec
import structlog
from msgspec import UNSET

from postroad.access.identity_cache import IdentityCache
from postroad.access.key_service import check_expiry
from postroad.access.keys import is_id
from postroad.access.records import JWT_SCOPES, KeyRecord, SecretRecord, earliest, jwt_secret_of
from postroad.api.access import GRANTS_MAX, NewJwtSecret, SecretNotFound, TenantDisabled, TopicGrant
from postroad.crypto.secret_encryption import DecryptionFailed, SecretCipher
from postroad.governance.audit import Audit
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import LATEST_MS, Clock
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Forbidden, InvalidParameter, PreconditionFailed
from postroad.kernel.identity import (
    ALL_RESOURCES,
    Caller,
    Credential,
    Scope,
    common_globs,
    grantable_scopes,
    resource_restrictions,
)
from postroad.kernel.ids import new_id
from postroad.kernel.json import invalid_field

SECRETS_MAX = 5
_LEEWAY_SECONDS = 5
_SCOPES = {"read": Scope.READ, "write": Scope.WRITE}
_CHARS_MAX = 4096
# PyJWT refuses secrets that look like a public key; the others are raised for deeply nested texts and claims of wrong types.
_INVALID_JWT = (jwt.PyJWTError, RecursionError, TypeError, OverflowError)

log = structlog.get_logger("postroad.access")


class JwtSecrets:
    def __init__(
        self, table: ReplicatedTable[SecretRecord], identities: IdentityCache, cipher: SecretCipher, audit: Audit, clock: Clock
    ) -> None:
        self._table, self._identities, self._cipher, self._audit, self._clock = table, identities, cipher, audit, clock
        self._by_tenant: dict[str, dict[str, SecretRecord]] = {}
        self._plain: dict[str, str] = {}
        self._decoy = secrets.token_urlsafe(48)
        table.on_change(self._changed)

    def _changed(self, key: str, record: SecretRecord | None) -> None:
        tenant, _, secret = key.partition(".")
        self._plain.pop(secret, None)
        known = self._by_tenant.setdefault(tenant, {})
        if record is not None:
            known[secret] = record
            return
        known.pop(secret, None)
        self._identities.end_watches(_caller_id(secret))

    async def create(self, context: RequestContext, wanted: NewJwtSecret) -> tuple[SecretRecord, str]:
        """Add a secret; return its record and its text. Raises PreconditionFailed, BodyInvalid, Forbidden."""
        caller = context.caller
        scopes = _granted_scopes(caller, wanted)
        if len(self._by_tenant.get(context.tenant, ())) >= SECRETS_MAX:
            raise PreconditionFailed(f"a tenant has at most {SECRETS_MAX} JWT secrets; delete an unused one")
        expires_at_ms = None if wanted.expires_at is None else int(wanted.expires_at.timestamp() * 1000)
        check_expiry(expires_at_ms, self._clock(), caller)
        plain = wanted.secret if isinstance(wanted.secret, str) else secrets.token_urlsafe(48)
        secret_id = new_id()
        record = SecretRecord(
            id=secret_id,
            tenant=context.tenant,
            name=wanted.name,
            locked=self._cipher.encrypt(_owner(context.tenant, secret_id), plain),
            scopes=scopes,
            allowed_streams=(caller.allowed or {}).get("stream", ALL_RESOURCES),
            created_by=caller.key_id,
            created_at_ms=self._clock(),
            expires_at_ms=expires_at_ms,
        )
        async with self._audit.change(context, "jwt-secret.create", record.id, after=jwt_secret_of(record)):
            await self._table.create(record.key, record)
        return record, plain

    def of(self, tenant: str) -> list[SecretRecord]:
        return sorted(self._by_tenant.get(tenant, {}).values(), key=lambda record: record.id)

    async def delete(self, context: RequestContext, secret_id: str) -> None:
        """Refuse JWTs that were signed with this secret, on all gateways within moments. Raises SecretNotFound."""
        record = self._by_tenant.get(context.tenant, {}).get(secret_id)
        if record is None:
            raise SecretNotFound(f"there is no JWT secret {secret_id[:64]!r}")
        async with self._audit.change(context, "jwt-secret.delete", record.id, before=jwt_secret_of(record)):
            await self._table.delete(record.key)

    async def delete_all(self, tenant: str) -> None:
        for record in self.of(tenant):
            await self._table.delete(record.key)

    async def authenticate(self, text: str, tenant: str) -> Caller | None:
        """The caller of a JWT, None if it is invalid. Raises TenantDisabled."""
        found = self._verified(text, tenant)
        if found is None:
            return None
        if not await self._identities.is_enabled(tenant):
            raise TenantDisabled(f"the tenant {tenant!r} is disabled")
        record, creator, claims = found
        subject, scope, stream = claims.get("sub"), claims.get("scope"), claims.get("stream_id")
        scopes = frozenset(_SCOPES[word] for word in str(scope or "").split() if word in _SCOPES) & set(record.scopes)
        streams = record.allowed_streams
        if creator is not None:
            scopes &= grantable_scopes(creator.scopes)
            streams = common_globs(streams, creator.allowed_streams)
        if not isinstance(subject, str) or not scopes or not (stream is None or isinstance(stream, str)):
            return None
        grants = _topic_grants(claims.get("topics", ()))
        if grants is None:
            return None
        return Caller(
            tenant,
            _caller_id(record.id),
            scopes,
            name=subject,
            credential=Credential.JWT,
            subject=subject,
            expires_at_ms=earliest(
                int(claims["exp"]) * 1000, LATEST_MS, record.expires_at_ms, creator.expires_at_ms if creator else None
            ),
            allowed=resource_restrictions(stream=streams, topic=creator.allowed_topics if creator else ()),
            grants=grants,
            only_stream=stream,
            issuer=creator.id if creator else "",
        )

    def _verified(self, text: str, tenant: str) -> tuple[SecretRecord, KeyRecord | None, dict[str, Any]] | None:
        """The secret that verifies the JWT, the key that created it (None if unknown), and the claims."""
        if len(text) > _CHARS_MAX:
            return None
        now, attempts = self._clock(), 0
        try:
            kid = jwt.get_unverified_header(text).get("kid")
        except _INVALID_JWT:
            return None
        for record in self._by_tenant.get(tenant, {}).values():
            if (kid is not None and kid != record.id) or (record.expires_at_ms is not None and record.expires_at_ms <= now):
                continue
            creator = self._identities.keys.get(record.created_by)
            if is_id(record.created_by) and (creator is None or not creator.is_active(now)):
                continue
            plain = self._decrypted(record)
            if plain is None:
                continue
            attempts += 1
            claims = _claims(text, plain)
            if claims is None:
                continue
            exp = claims["exp"]
            if isinstance(exp, bool) or not isinstance(exp, int | float) or not now < exp * 1000 < 2**60:
                return None
            return record, creator, claims
        if not attempts:
            _claims(text, self._decoy)  # as long as for a tenant that has a secret
        return None

    def _decrypted(self, record: SecretRecord) -> str | None:
        plain = self._plain.get(record.id)
        if plain is None:
            try:
                plain = self._plain[record.id] = self._cipher.decrypt(_owner(record.tenant, record.id), record.locked)
            except DecryptionFailed:
                log.error("jwt_secret_not_decrypted", tenant=record.tenant, secret_id=record.id)
        return plain

    async def reencrypt(self) -> int:
        """Encrypt with the newest platform key the secrets that an older one encrypted; return their number."""
        count = 0
        for record in [one for some in list(self._by_tenant.values()) for one in list(some.values())]:
            plain = self._decrypted(record)
            if plain is None or self._cipher.uses_newest_key(_owner(record.tenant, record.id), record.locked):
                continue
            newer = msgspec.structs.replace(record, locked=self._cipher.encrypt(_owner(record.tenant, record.id), plain))
            await self._table.update(record.key, newer, self._table.revision(record.key))
            count += 1
        return count


def _claims(text: str, secret: str) -> dict[str, Any] | None:
    """The claims of a JWT, None if the signature is invalid. The expiry is not checked."""
    try:
        claims: dict[str, Any] = jwt.decode(
            text,
            secret,
            algorithms=["HS256"],
            leeway=_LEEWAY_SECONDS,
            options={"require": ["exp", "sub"], "verify_aud": False, "verify_exp": False, "verify_iat": False},
        )
    except _INVALID_JWT:
        return None
    return claims


def _granted_scopes(caller: Caller, wanted: NewJwtSecret) -> tuple[Scope, ...]:
    """The scopes of the secret: those of the request, or those of the caller's own that JWTs can have."""
    if wanted.scopes is UNSET:
        scopes = tuple(scope for scope in JWT_SCOPES if scope in caller.scopes)
        if not scopes:
            raise invalid_field("$.scopes", "is required: the key has neither 'read' nor 'write' to take over")
        return scopes
    scopes = tuple(dict.fromkeys(Scope(scope) for scope in wanted.scopes))
    missing = [scope for scope in scopes if scope not in grantable_scopes(caller.scopes)]
    if missing:
        raise Forbidden(f"the key lacks the scope {str(missing[0])!r}, so it cannot grant it")
    return scopes


def _owner(tenant: str, secret_id: str) -> str:
    return f"jwt-secret {tenant} {secret_id}"


def _caller_id(secret_id: str) -> str:
    return f"jwt:{secret_id}"


def _topic_grants(claim: object) -> tuple[tuple[str, tuple[str, ...]], ...] | None:
    """The topics of the claim `topics`, with patterns; None if it is invalid."""
    try:
        found = msgspec.convert(claim, tuple[TopicGrant, ...])
        return None if len(found) > GRANTS_MAX else tuple((grant.topic, grant.patterns) for grant in found)
    except (msgspec.ValidationError, InvalidParameter):
        return None
