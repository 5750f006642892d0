"""Stream tokens: for live reading where a header cannot be sent, such as a browser's EventSource. Read-only, for one resource,
short-lived; a token dies with the key that asked for it, and one made with `once` opens one connection.

    pr_token_<sealed>      sealed (`seal.py`): format, tenant, key id, resource, expiry, and an id if it is good once only
"""

import re
from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from postroad.access.identity_cache import IdentityCache
from postroad.access.records import TenantState
from postroad.crypto.signing import SignatureInvalid, Signer
from postroad.http.routing import Route
from postroad.jetstream.bucket import Bucket
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Conflict, Forbidden
from postroad.kernel.identity import Caller, Credential, Scope
from postroad.kernel.ids import new_id
from postroad.kernel.json import invalid_field
from postroad.kernel.resources import ResourceKind

TOKEN_PREFIX = "pr_token_"  # noqa: S105  # what they start with
_OWNER = b"stream"


class NewToken(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    resource: Annotated[str, Meta(min_length=1, max_length=512, description="What it may read, such as `telemetry`.")]
    expires_in_seconds: Annotated[int, Meta(ge=1, le=86_400)] = 3600
    once: Annotated[bool, Meta(description="Good for one connection.")] = False


class _Token(msgspec.Struct, frozen=True, array_like=True):
    v: int
    tenant: str
    key_id: str
    resource: str
    expires_at_ms: int
    once_id: str | None


_decode = msgspec.msgpack.Decoder(_Token).decode


class Tokens:
    def __init__(self, directory: IdentityCache, sealer: Signer, uses: Bucket, clock: Clock) -> None:
        self._directory, self._sealer, self._uses, self._clock = directory, sealer, uses, clock
        self._resources: list[tuple[re.Pattern[str], str]] = []
        self._kinds: frozenset[str] = frozenset()

    def offer(self, routes: Iterable[Route], kinds: Iterable[ResourceKind]) -> None:
        """Set the routes that tokens can be issued for, and the kinds of resources that keys can be restricted to."""
        self._kinds = frozenset(kind.name for kind in kinds)
        templates = sorted({route.resource for route in routes if route.resource is not None})
        self._resources = [(_compiled(template), template) for template in templates]

    def mint(self, caller: Caller, wanted: NewToken) -> tuple[str, int]:
        """The token, and when it expires. Raises BodyInvalid, Forbidden."""
        match = next((found for shape, _ in self._resources if (found := shape.fullmatch(wanted.resource))), None)
        if match is None:
            shapes = ", ".join(template for _, template in self._resources)
            raise invalid_field("$.resource", f"a token is for one of: {shapes}")
        for kind, name in match.groupdict().items():
            if kind in self._kinds and not caller.may_use(kind, name):
                raise Forbidden(f"the key may not use the {kind} {name!r}")
        expires_at_ms = self._clock() + wanted.expires_in_seconds * 1000
        token = _Token(1, caller.tenant, caller.key_id, wanted.resource, expires_at_ms, new_id() if wanted.once else None)
        return TOKEN_PREFIX + self._sealer.sign(_OWNER, msgspec.msgpack.encode(token)), expires_at_ms

    async def caller(self, text: str, resource: str, project: str | None = None) -> Caller | None:
        """The caller of a token, None if it is not good, or not good for this. `project`: the tenant that the path names."""
        try:
            token = _decode(self._sealer.verify(_OWNER, text.removeprefix(TOKEN_PREFIX)))
        except (SignatureInvalid, msgspec.DecodeError):
            return None
        now = self._clock()
        if token.expires_at_ms <= now or token.resource != resource or project not in (None, token.tenant):
            return None
        key, tenant = await self._directory.key(token.key_id), await self._directory.tenant(token.tenant)
        if key is None or not key.is_good(now) or Scope.READ not in key.scopes or (key.tenant or token.tenant) != token.tenant:
            return None
        if tenant is None or tenant.state is not TenantState.READY:
            return None
        if token.once_id is not None and not await self._is_first_use(token.once_id, token.expires_at_ms - now):
            return None
        return Caller(
            token.tenant,
            token.key_id,
            frozenset({Scope.READ}),
            name=key.name,
            credential=Credential.TOKEN,
            expires_at_ms=min(token.expires_at_ms, key.expires_at_ms or token.expires_at_ms),
            allowed=key.allowed,
        )

    async def _is_first_use(self, once_id: str, left_ms: int) -> bool:
        try:
            await self._uses.create(once_id, b"", ttl_seconds=left_ms // 1000 + 60)
        except Conflict:
            return False
        return True


def _compiled(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    return re.compile("".join(re.escape(part) if index % 2 == 0 else f"(?P<{part}>.+)" for index, part in enumerate(parts)))
