"""What a tenant's admin governs over HTTP: keys, JWT secrets and settings; and for every caller: who am I, and stream tokens."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from postroad.access.identity_cache import IdentityCache
from postroad.access.jwts import JwtSecrets, NewSecret
from postroad.access.key_service import KeyChange, KeyService, NewKey, Rotation
from postroad.access.key_usage import KeyUsage
from postroad.access.records import KeyRecord
from postroad.access.tokens import NewToken, Tokens
from postroad.access.views import KeyView, SecretView, key_view, secret_view
from postroad.governance.tenant_settings import TenantSettings, TenantSettingsChange, TenantSettingsStore
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.kernel.clock import Timestamp, rfc3339
from postroad.kernel.errors import (
    EngineUnavailable,
    Forbidden,
    InvalidParameter,
    KeyNotFound,
    PreconditionFailed,
    SecretNotFound,
)
from postroad.kernel.identity import ALL_RESOURCES, Credential, RouteRequirement, Scope


class KeyList(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    keys: list[KeyView]
    next_cursor: str | None


class KeyMade(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`key` is the text to call with. It is shown here and never again."""

    key: str
    record: KeyView


PlaceCursor = Annotated[str, Meta(pattern=r"^[0-9]{1,18}\.[0-9A-Za-z]{16}$")]  # when, and which


class KeyQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: PlaceCursor | None = None
    platform: Annotated[bool, Meta(description="The platform's keys instead of the tenant's. Platform keys only.")] = False


class SecretList(msgspec.Struct, frozen=True):
    secrets: list[SecretView]


class SecretMade(msgspec.Struct, frozen=True):
    """`secret` is what JWTs are to be signed with (HS256). It is shown here and never again."""

    secret: str
    record: SecretView


class TokenMade(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    token: Annotated[str, Meta(description="Send it as `?bearer=` or as a Bearer token.")]
    resource: str
    expires_at: Timestamp


class WhoAmI(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What the credential of this request is, and allows."""

    tenant: str
    platform: bool
    credential: Credential
    key_id: str
    key_name: str
    subject: str | None
    scopes: list[Scope]
    allowed_queues: tuple[str, ...]
    allowed_topics: tuple[str, ...]
    allowed_streams: tuple[str, ...]
    expires_at: Timestamp | None


class SettingsView(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What holds, and which of it was chosen here; the rest is the platform's default."""

    settings: TenantSettings
    chosen: dict[str, Any]


_CHANGING = (EngineUnavailable,)


class AccessRoutes:
    def __init__(
        self,
        directory: IdentityCache,
        keyring: KeyService,
        uses: KeyUsage,
        secrets: JwtSecrets,
        tokens: Tokens,
        tenant_settings: TenantSettingsStore,
    ) -> None:
        self._directory, self._keyring, self._uses = directory, keyring, uses
        self._secrets, self._tokens, self._tenant_settings = secrets, tokens, tenant_settings

    def table(self) -> Sequence[Route]:
        return [*self._callers_table(), *self._keys_table(), *self._secrets_table(), *self._settings_table()]

    def _callers_table(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/whoami",
                self.whoami,
                RouteRequirement.IDENTITY,
                "Who am I?",
                "Access",
                response=WhoAmI,
                takes_jwt=True,
                description="What the credential of the request is, and allows. Also for a tenant's JWTs.",
            ),
            Route(
                "POST",
                "/v1/tokens",
                self.create_token,
                Scope.READ,
                "Get a stream token",
                "Access",
                body=NewToken,
                response=TokenMade,
                status=201,
                description="For live reading where no header can be sent. Read-only, one resource; it dies with the key.",
            ),
        ]

    def _keys_table(self) -> list[Route]:
        keys, one = "/api/control/keys", "/api/control/keys/{key}"
        found = (KeyNotFound, *_CHANGING)
        return [
            Route(
                "GET", keys, self.list_keys, Scope.ADMIN, "List keys", "Keys", query=KeyQuery, response=KeyList, errors=_CHANGING
            ),
            Route(
                "POST",
                keys,
                self.create_key,
                Scope.ADMIN,
                "Make a key",
                "Keys",
                body=NewKey,
                response=KeyMade,
                status=201,
                errors=_CHANGING,
                description="The key is shown once. A key can give no more than it may do itself.",
            ),
            Route("GET", one, self.get_key, Scope.ADMIN, "Show a key", "Keys", response=KeyView, errors=found),
            Route(
                "PATCH",
                one,
                self.change_key,
                Scope.ADMIN,
                "Change, disable or enable a key",
                "Keys",
                body=KeyChange,
                response=KeyView,
                errors=(PreconditionFailed, *found),
                description="Takes effect on every gateway in under a second.",
            ),
            Route(
                "POST",
                f"{one}/rotate",
                self.rotate_key,
                Scope.ADMIN,
                "Give a key a new text",
                "Keys",
                body=Rotation,
                response=KeyMade,
                errors=(PreconditionFailed, *found),
                description="The text before stays good for the grace. The key's id, scopes and history stay.",
            ),
            Route(
                "DELETE",
                one,
                self.delete_key,
                Scope.ADMIN,
                "Delete a key",
                "Keys",
                status=204,
                errors=(PreconditionFailed, *found),
            ),
        ]

    def _secrets_table(self) -> list[Route]:
        path = "/api/control/jwt-secrets"
        return [
            Route("GET", path, self.list_secrets, Scope.ADMIN, "List JWT secrets", "JWT secrets", response=SecretList),
            Route(
                "POST",
                path,
                self.create_secret,
                Scope.ADMIN,
                "Add a JWT secret",
                "JWT secrets",
                body=NewSecret,
                response=SecretMade,
                status=201,
                errors=(PreconditionFailed, *_CHANGING),
                description="For JWTs (HS256) that open stream and session routes. Up to five at a time, for rotation.",
            ),
            Route(
                "DELETE",
                f"{path}/{{secret}}",
                self.delete_secret,
                Scope.ADMIN,
                "Delete a JWT secret",
                "JWT secrets",
                status=204,
                errors=(SecretNotFound, *_CHANGING),
            ),
        ]

    def _settings_table(self) -> list[Route]:
        path = "/v1/admin/settings"
        return [
            Route("GET", path, self.get_settings, Scope.ADMIN, "Show the tenant's settings", "Settings", response=SettingsView),
            Route(
                "POST",
                path,
                self.change_settings,
                Scope.ADMIN,
                "Change the tenant's settings",
                "Settings",
                body=TenantSettingsChange,
                response=SettingsView,
                errors=_CHANGING,
                description="Takes effect on every gateway in under a second. null goes back to the default.",
            ),
        ]

    async def whoami(self, request: Request) -> Response:
        caller = request.caller
        allowed = caller.allowed or {}
        if caller.credential is Credential.JWT:
            allowed = {"queue": (), "topic": (), "stream": ALL_RESOURCES if caller.only_stream is None else (caller.only_stream,)}
        return Response(
            WhoAmI(
                tenant=caller.tenant,
                platform=caller.is_platform,
                credential=caller.credential,
                key_id=caller.key_id,
                key_name=caller.name,
                subject=caller.subject,
                scopes=sorted(caller.scopes),
                allowed_queues=allowed.get("queue", ALL_RESOURCES),
                allowed_topics=allowed.get("topic", ALL_RESOURCES),
                allowed_streams=allowed.get("stream", ALL_RESOURCES),
                expires_at=None if caller.expires_at_ms is None else rfc3339(caller.expires_at_ms),
            )
        )

    async def create_token(self, request: Request) -> Response:
        wanted: NewToken = request.body
        token, expires_at_ms = self._tokens.mint(request.caller, wanted)
        return Response(TokenMade(token=token, resource=wanted.resource, expires_at=rfc3339(expires_at_ms)), status=201)

    async def list_keys(self, request: Request) -> Response:
        query: KeyQuery = request.query
        if query.platform and not request.caller.is_platform:
            raise Forbidden("only a platform key may see the platform's keys")
        records = list(self._directory.keys_of(None if query.platform else request.caller.tenant))
        if query.cursor is not None:
            records = [record for record in records if _place(record) > _place_of(query.cursor)]
        shown = records[: query.limit]
        used = await self._uses.of(record.id for record in shown)
        cursor = ".".join(map(str, _place(shown[-1]))) if len(records) > query.limit else None
        return Response(KeyList(keys=[key_view(record, used.get(record.id)) for record in shown], next_cursor=cursor))

    async def create_key(self, request: Request) -> Response:
        record, text = await self._keyring.create(request.context, request.body)
        return Response(KeyMade(key=text, record=key_view(record)), status=201, headers=[_NOT_STORED])

    async def get_key(self, request: Request) -> Response:
        return Response(await self._view(await self._keyring.find(request.context, request.parameters["key"])))

    async def change_key(self, request: Request) -> Response:
        return Response(await self._view(await self._keyring.change(request.context, request.parameters["key"], request.body)))

    async def rotate_key(self, request: Request) -> Response:
        rotation: Rotation = request.body
        record, text = await self._keyring.rotate(request.context, request.parameters["key"], rotation.grace_seconds)
        return Response(KeyMade(key=text, record=key_view(record)), headers=[_NOT_STORED])

    async def delete_key(self, request: Request) -> Response:
        await self._keyring.delete(request.context, request.parameters["key"])
        return Response(status=204)

    async def _view(self, record: KeyRecord) -> KeyView:
        return key_view(record, (await self._uses.of([record.id])).get(record.id))

    async def list_secrets(self, request: Request) -> Response:
        return Response(SecretList([secret_view(record) for record in self._secrets.of(request.caller.tenant)]))

    async def create_secret(self, request: Request) -> Response:
        record, plain = await self._secrets.create(request.context, request.body)
        return Response(SecretMade(plain, secret_view(record)), status=201, headers=[_NOT_STORED])

    async def delete_secret(self, request: Request) -> Response:
        await self._secrets.delete(request.context, request.parameters["secret"])
        return Response(status=204)

    async def get_settings(self, request: Request) -> Response:
        return Response(settings_view(self._tenant_settings, request.caller.tenant))

    async def change_settings(self, request: Request) -> Response:
        await self._tenant_settings.change(request.context, request.caller.tenant, request.body)
        return Response(settings_view(self._tenant_settings, request.caller.tenant))


_NOT_STORED = (b"cache-control", b"no-store")


def settings_view(tenant_settings: TenantSettingsStore, tenant: str) -> SettingsView:
    return SettingsView(settings=tenant_settings.of(tenant), chosen=tenant_settings.chosen(tenant))


def _place(record: KeyRecord) -> tuple[int, str]:
    return record.created_at_ms, record.id


def _place_of(cursor: str) -> tuple[int, str]:
    at, _, key_id = cursor.partition(".")
    if not at.isdecimal() or len(at) > 18:
        raise InvalidParameter("the cursor is not one that this list gave out")
    return int(at), key_id
