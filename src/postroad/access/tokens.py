"""Stream tokens: for live reads where the client cannot send a header, such as EventSource in a browser.

A token is read-only, short-lived and valid for one resource, with `once` for one connection. It becomes invalid with the text of
the key that requested it: a rotation ends it at the end of the grace period.

    pr_token_<signed>      signed content: format, tenant, key id, resource, expiry, an id if valid once, id of the text, grants,
                           prefix of the keys of a bucket
"""

import re
from collections.abc import Iterable

import msgspec

from postroad.access.identity_cache import IdentityCache
from postroad.access.records import earliest
from postroad.api.access import NewToken
from postroad.api.selectors import PREFIX
from postroad.crypto.signing import SignatureInvalid, Signer
from postroad.http.routing import Route
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.storage_budget import StoreBudget
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Conflict, Forbidden, InvalidParameter
from postroad.kernel.identity import Caller, Credential, Scope
from postroad.kernel.ids import new_id
from postroad.kernel.json import at_field, invalid_field
from postroad.kernel.resources import ResourceKind

TOKEN_PREFIX = "pr_token_"  # noqa: S105  # a prefix
LIVE_RESOURCE = "live"
_OWNER = b"stream"


class _Token(msgspec.Struct, frozen=True, array_like=True):
    v: int
    tenant: str
    key_id: str
    resource: str
    expires_at_ms: int
    once_id: str | None
    text_id: str = ""
    grants: tuple[tuple[str, tuple[str, ...]], ...] | None = None
    key_prefix: str = ""


_BUCKET = re.compile(r"bucket/[^/]+")
_KEY_PREFIX = re.compile(PREFIX)
_GRANTS_BYTES_MAX = 3000  # of a token's content: it must fit into a URL
_decode = msgspec.msgpack.Decoder(_Token).decode


class Tokens:
    def __init__(
        self, identities: IdentityCache, signer: Signer, used: Bucket, clock: Clock, store: StoreBudget | None = None
    ) -> None:
        self._identities, self._signer, self._used, self._clock = identities, signer, used, clock
        self._store = store or StoreBudget()
        self._resources: list[tuple[re.Pattern[str], str]] = []
        self._kinds: dict[str, ResourceKind] = {}

    def set_resources(self, routes: Iterable[Route], kinds: Iterable[ResourceKind]) -> None:
        """Set the routes that tokens can be issued for, and the kinds of resources that keys can be restricted to."""
        self._kinds = {kind.name: kind for kind in kinds}
        templates = sorted({route.resource for route in routes if route.resource is not None})
        self._resources = [(_compiled(template), template) for template in templates]

    def issue(self, caller: Caller, wanted: NewToken) -> tuple[str, int]:
        """Issue a token, which expires with the key at the latest; return it and its expiry in milliseconds.

        Raises BodyInvalid, Forbidden.
        """
        match = next((found for pattern, _ in self._resources if (found := pattern.fullmatch(wanted.resource))), None)
        if match is None:
            forms = ", ".join(template for _, template in self._resources)
            raise invalid_field("$.resource", f"must have one of the forms: {forms}")
        for kind, name in match.groupdict().items():
            self._check_name(caller, kind, name)
        grants, prefix = self._check_grants(caller, wanted), _checked_prefix(wanted)
        wanted_until_ms = self._clock() + wanted.expires_in_seconds * 1000
        expires_at_ms = min(wanted_until_ms, caller.expires_at_ms or wanted_until_ms)
        once_id = new_id() if wanted.once else None
        token = _Token(1, caller.tenant, caller.key_id, wanted.resource, expires_at_ms, once_id, caller.text_id, grants, prefix)
        content = msgspec.msgpack.encode(token)
        if grants is not None and len(content) > _GRANTS_BYTES_MAX:
            raise invalid_field("$.grants", f"the grants do not fit into a token of {_GRANTS_BYTES_MAX} bytes")
        return TOKEN_PREFIX + self._signer.sign(_OWNER, content), expires_at_ms

    def _check_grants(self, caller: Caller, wanted: NewToken) -> tuple[tuple[str, tuple[str, ...]], ...] | None:
        """The topics of a token for `live`, None for all of the key's. Raises BodyInvalid, Forbidden."""
        if wanted.grants is None:
            return None
        if wanted.resource != LIVE_RESOURCE:
            raise invalid_field("$.grants", f"are for the resource `{LIVE_RESOURCE}` only")
        grants: list[tuple[str, tuple[str, ...]]] = []
        for index, grant in enumerate(wanted.grants):
            self._check_name(caller, "topic", grant.topic, f"$.grants[{index}].topic")
            with at_field(f"$.grants[{index}].filter"):
                grants.append((grant.topic, grant.patterns))
        return tuple(grants)

    async def authenticate(self, text: str, resources: tuple[str, ...], project: str | None = None) -> Caller | None:
        """The caller of a token, None if it is invalid or for none of these resources. `project` is the tenant in the path."""
        try:
            token = _decode(self._signer.verify(_OWNER, text.removeprefix(TOKEN_PREFIX)))
        except (SignatureInvalid, msgspec.DecodeError):
            return None
        now = self._clock()
        if token.expires_at_ms <= now or token.resource not in resources or project not in (None, token.tenant):
            return None
        key = await self._identities.key(token.key_id)
        if key is None or not key.is_active(now) or Scope.READ not in key.scopes or (key.tenant or token.tenant) != token.tenant:
            return None
        key_text = key.text_by_id(token.text_id, now)
        if key_text is None:
            return None
        if not await self._identities.is_enabled(token.tenant):
            return None
        if token.once_id is not None and not await self._is_first_use(token.once_id, token.expires_at_ms - now):
            return None
        return Caller(
            token.tenant,
            token.key_id,
            frozenset({Scope.READ}),
            name=key.name,
            credential=Credential.TOKEN,
            expires_at_ms=earliest(token.expires_at_ms, key.expiry_of(key_text)),
            allowed=key.allowed,
            text_id=key_text.text_id,
            max_requests_per_second=key.max_requests_per_second,
            max_live_connections=key.max_live_connections,
            grants=token.grants,
            key_prefix=token.key_prefix,
        )

    def _check_name(self, caller: Caller, kind: str, name: str, path: str = "$.resource") -> None:
        """Raises BodyInvalid if no resource of this kind can have the name, Forbidden if the caller may not use it."""
        known = self._kinds.get(kind)
        if known is None:
            return
        try:
            if known.check is not None:
                known.check(name)
        except InvalidParameter as exc:
            raise invalid_field(path, str(exc)) from exc
        if not caller.may_use(kind, name):
            raise Forbidden(f"the key may not use the {kind} {name!r}")

    async def _is_first_use(self, once_id: str, left_ms: int) -> bool:
        """Raises EngineFull: recording uses must not fill the reserve of the store."""
        if self._store.is_reserved:
            raise self._store.refuse()
        try:
            await self._used.create(once_id, b"", ttl_seconds=left_ms // 1000 + 60)
        except Conflict:
            return False
        return True


def _compiled(template: str) -> re.Pattern[str]:
    parts = re.split(r"\{(\w+)\}", template)
    return re.compile("".join(re.escape(part) if index % 2 == 0 else f"(?P<{part}>.+)" for index, part in enumerate(parts)))


def _checked_prefix(wanted: NewToken) -> str:
    """The prefix of the keys that a token for a bucket reads. Raises BodyInvalid."""
    if wanted.prefix is None:
        return ""
    if not _BUCKET.fullmatch(wanted.resource):
        raise invalid_field("$.prefix", "is for a resource `bucket/{bucket}` only")
    if not _KEY_PREFIX.fullmatch(wanted.prefix):
        raise invalid_field("$.prefix", "no key can start with it")
    return wanted.prefix
