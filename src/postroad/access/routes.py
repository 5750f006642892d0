"""HTTP routes of keys, JWT secrets and stream tokens."""

from collections.abc import Sequence

from postroad.access.accounts import Accounts
from postroad.access.aws_keys import AwsKeys
from postroad.access.identity_cache import IdentityCache
from postroad.access.jwts import JwtSecrets
from postroad.access.key_service import KeyService
from postroad.access.records import KeyRecord, jwt_secret_of, key_of, key_properties_of
from postroad.access.tokens import Tokens
from postroad.api.access import (
    AwsAccessKey,
    IssuedJwtSecret,
    IssuedKey,
    IssuedToken,
    JwtSecretPage,
    Key,
    KeyChange,
    KeyNotFound,
    KeyPage,
    KeyQuery,
    KeyRequired,
    KeyRotation,
    NewJwtSecret,
    NewKey,
    NewToken,
    SecretNotFound,
    WhoAmI,
)
from postroad.governance.audit import Audit
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import EngineUnavailable, Forbidden, InvalidParameter, PreconditionFailed
from postroad.kernel.identity import ALL_RESOURCES, Caller, Credential, RouteRequirement, Scope

NO_STORE = (b"cache-control", b"no-store")  # responses with secrets


class AccessRoutes:
    def __init__(
        self,
        identities: IdentityCache,
        keys: KeyService,
        secrets: JwtSecrets,
        tokens: Tokens,
        aws_keys: AwsKeys,
        accounts: Accounts,
        audit: Audit,
    ) -> None:
        self._identities, self._keys, self._secrets, self._tokens, self._audit = identities, keys, secrets, tokens, audit
        self._aws_keys, self._accounts = aws_keys, accounts

    def table(self) -> Sequence[Route]:
        return [*self._caller_routes(), *self._key_routes(), *self._secret_routes()]

    def _caller_routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/whoami",
                self.whoami,
                RouteRequirement.IDENTITY,
                "Show the credential of the request",
                "Access",
                response=WhoAmI,
                accepts_jwt=True,
                description="Shows the tenant, scopes and restrictions of the credential. Accepts JWTs, too.",
                sdk="keys.whoami",
            ),
            Route(
                "POST",
                "/v1/tokens",
                self.create_token,
                Scope.READ,
                "Create a stream token",
                "Access",
                body=NewToken,
                response=IssuedToken,
                status=201,
                errors=(EngineUnavailable,),
                description=(
                    "For live reads where the client cannot send a header. "
                    "The token is read-only and valid for one resource. It becomes invalid with the key."
                ),
                sdk="tokens.create",
                cli=Command("tokens create", shown_once="token", options=(("expires_in_seconds", "expires-in"),)),
            ),
        ]

    def _key_routes(self) -> list[Route]:
        keys, one = "/api/control/keys", "/api/control/keys/{key}"
        stored = (EngineUnavailable,)
        found = (KeyNotFound, *stored)
        return [
            Route(
                "GET",
                keys,
                self.list_keys,
                Scope.ADMIN,
                "List keys",
                "Keys",
                query=KeyQuery,
                response=KeyPage,
                errors=stored,
                sdk="keys.list",
                cli=Command("keys list", ("id", "name", "scopes", "enabled", "expires_at", "last_used_at", "created_at")),
            ),
            Route(
                "POST",
                keys,
                self.create_key,
                Scope.ADMIN,
                "Create a key",
                "Keys",
                body=NewKey,
                response=IssuedKey,
                status=201,
                errors=(KeyRequired, *stored),
                description=(
                    "The text of the key is shown once. A key grants no resources that it may not use itself, "
                    "and an expiring key cannot create a key that expires later. A platform key has all scopes."
                ),
                sdk="keys.create",
                cli=Command(
                    "keys create",
                    shown_once="key",
                    options=(
                        ("scopes", "scope"),
                        ("allowed_queues", "queue"),
                        ("allowed_topics", "topic"),
                        ("allowed_buckets", "bucket"),
                        ("allowed_streams", "stream"),
                        ("expires_at", "expires"),
                    ),
                ),
            ),
            Route(
                "GET",
                one,
                self.get_key,
                Scope.ADMIN,
                "Show a key",
                "Keys",
                response=Key,
                errors=found,
                sdk="keys.get",
                cli=Command("keys show"),
            ),
            Route(
                "PATCH",
                one,
                self.change_key,
                Scope.ADMIN,
                "Update, disable or enable a key",
                "Keys",
                body=KeyChange,
                response=Key,
                errors=(PreconditionFailed, KeyRequired, *found),
                description="Takes effect on every gateway in less than a second.",
                sdk="keys.update",
                cli=Command(
                    "keys update",
                    options=(
                        ("scopes", "scope"),
                        ("allowed_queues", "queue"),
                        ("allowed_topics", "topic"),
                        ("allowed_buckets", "bucket"),
                        ("allowed_streams", "stream"),
                        ("expires_at", "expires"),
                    ),
                ),
            ),
            Route(
                "POST",
                f"{one}/rotate",
                self.rotate_key,
                Scope.ADMIN,
                "Rotate a key",
                "Keys",
                body=KeyRotation,
                response=IssuedKey,
                errors=(PreconditionFailed, KeyRequired, *found),
                description=(
                    "Replaces the text of the key; its id, scopes and history stay. "
                    "The previous text stays valid for the grace period; then live streams, long polls and stream tokens "
                    "that it opened end."
                ),
                sdk="keys.rotate",
                cli=Command("keys rotate", shown_once="key"),
            ),
            Route(
                "POST",
                f"{one}/aws",
                self.create_aws_key,
                Scope.ADMIN,
                "Create AWS credentials for a key",
                "Keys",
                body=KeyRotation,
                empty_body=KeyRotation(),
                response=AwsAccessKey,
                status=201,
                errors=(PreconditionFailed, KeyRequired, *found),
                description=(
                    "For AWS SDKs: the access key id follows from the key's id, and the secret is shown once. A previous secret "
                    "stays valid for the grace period. The credentials have its scopes and restrictions, and end with it."
                ),
                sdk="keys.create_aws_key",
            ),
            Route(
                "DELETE",
                f"{one}/aws",
                self.delete_aws_key,
                Scope.ADMIN,
                "Delete the AWS credentials of a key",
                "Keys",
                status=204,
                errors=(KeyRequired, *found),
                description="Requests signed with them are refused from then on. The key itself stays valid.",
                sdk="keys.delete_aws_key",
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
                sdk="keys.delete",
                cli=Command("keys delete", confirm="Delete the key {key}?", done="deleted the key {key}"),
            ),
        ]

    def _secret_routes(self) -> list[Route]:
        path = "/api/control/jwt-secrets"
        return [
            Route(
                "GET",
                path,
                self.list_secrets,
                Scope.ADMIN,
                "List JWT secrets",
                "JWT secrets",
                response=JwtSecretPage,
                description="Oldest first, without their texts.",
                sdk="jwt_secrets.list",
                cli=Command(
                    "secrets list", columns=("id", "name", "scopes", "allowed_streams", "created_by", "expires_at", "created_at")
                ),
            ),
            Route(
                "POST",
                path,
                self.create_secret,
                Scope.ADMIN,
                "Add a JWT secret",
                "JWT secrets",
                body=NewJwtSecret,
                response=IssuedJwtSecret,
                status=201,
                errors=(PreconditionFailed, KeyRequired, EngineUnavailable),
                description=(
                    "Stream and session routes accept JWTs signed with it (HS256). They can use no stream that the key which "
                    "creates the secret may not use, and end with that key. A tenant has at most five secrets."
                ),
                sdk="jwt_secrets.create",
            ),
            Route(
                "DELETE",
                f"{path}/{{secret}}",
                self.delete_secret,
                Scope.ADMIN,
                "Delete a JWT secret",
                "JWT secrets",
                status=204,
                errors=(SecretNotFound, EngineUnavailable),
                description="JWTs signed with it are refused from then on.",
                sdk="jwt_secrets.delete",
                cli=Command("secrets delete", confirm="Delete the JWT secret {secret}?", done="deleted the JWT secret {secret}"),
            ),
        ]

    async def whoami(self, request: Request) -> Response:
        return Response(identity_of(request.caller, await self._accounts.of(request.caller.tenant)))

    async def create_token(self, request: Request) -> Response:
        wanted: NewToken = request.body
        token, expires_at_ms = self._tokens.issue(request.caller, wanted)
        await self._audit.issued_tokens.record(request.context, wanted.resource)
        return Response(IssuedToken(token=token, resource=wanted.resource, expires_at=rfc3339(expires_at_ms)), status=201)

    async def list_keys(self, request: Request) -> Response:
        query: KeyQuery = request.query
        if query.platform and not request.caller.is_platform:
            raise Forbidden("only a platform key may list the platform keys")
        records = list(self._identities.keys_of(None if query.platform else request.caller.tenant))
        if query.cursor is not None:
            after = _parse_cursor(query.cursor)
            records = [record for record in records if _position(record) > after]
        shown = records[: query.limit]
        used = await self._identities.key_usage.last_used(record.id for record in shown)
        cursor = ".".join(map(str, _position(shown[-1]))) if len(records) > query.limit else None
        return Response(KeyPage(items=[key_of(record, used.get(record.id)) for record in shown], next_cursor=cursor))

    async def create_key(self, request: Request) -> Response:
        record, text = await self._keys.create(request.context, request.body)
        return issued_key(record, text, status=201)

    async def get_key(self, request: Request) -> Response:
        return Response(await self._key(await self._keys.find(request.context, request.parameters["key"])))

    async def change_key(self, request: Request) -> Response:
        return Response(await self._key(await self._keys.change(request.context, request.parameters["key"], request.body)))

    async def rotate_key(self, request: Request) -> Response:
        rotation: KeyRotation = request.body
        record, text = await self._keys.rotate(request.context, request.parameters["key"], rotation.grace_seconds)
        return issued_key(record, text)

    async def create_aws_key(self, request: Request) -> Response:
        rotation: KeyRotation = request.body
        record, secret = await self._aws_keys.issue(request.context, request.parameters["key"], rotation.grace_seconds)
        issued = AwsAccessKey(
            secret_access_key=secret,
            access_key_id=record.aws_access_key_id or "",
            account_id=await self._accounts.of(record.tenant or ""),
            record=key_properties_of(record),
        )
        return Response(issued, status=201, headers=[NO_STORE])

    async def delete_aws_key(self, request: Request) -> Response:
        await self._aws_keys.revoke(request.context, request.parameters["key"])
        return Response(status=204)

    async def delete_key(self, request: Request) -> Response:
        await self._keys.delete(request.context, request.parameters["key"])
        return Response(status=204)

    async def _key(self, record: KeyRecord) -> Key:
        return key_of(record, (await self._identities.key_usage.last_used([record.id])).get(record.id))

    async def list_secrets(self, request: Request) -> Response:
        return Response(JwtSecretPage(items=[jwt_secret_of(record) for record in self._secrets.of(request.caller.tenant)]))

    async def create_secret(self, request: Request) -> Response:
        record, text = await self._secrets.create(request.context, request.body)
        return Response(IssuedJwtSecret(secret=text, record=jwt_secret_of(record)), status=201, headers=[NO_STORE])

    async def delete_secret(self, request: Request) -> Response:
        await self._secrets.delete(request.context, request.parameters["secret"])
        return Response(status=204)


def identity_of(caller: Caller, account_id: str) -> WhoAmI:
    allowed = caller.allowed or {}
    if caller.credential is Credential.JWT:
        streams = allowed.get("stream", ALL_RESOURCES) if caller.only_stream is None else (caller.only_stream,)
        allowed = {"queue": (), "topic": (), "bucket": (), "stream": streams, "service": ()}
    return WhoAmI(
        tenant=caller.tenant,
        platform=caller.is_platform,
        credential=caller.credential,
        key_id=caller.key_id,
        key_name=caller.name,
        subject=caller.subject,
        scopes=tuple(sorted(caller.scopes)),
        allowed_queues=allowed.get("queue", ALL_RESOURCES),
        allowed_topics=allowed.get("topic", ALL_RESOURCES),
        allowed_buckets=allowed.get("bucket", ALL_RESOURCES),
        allowed_streams=allowed.get("stream", ALL_RESOURCES),
        allowed_services=allowed.get("service", ALL_RESOURCES),
        expires_at=None if caller.expires_at_ms is None else rfc3339(caller.expires_at_ms),
        account_id=account_id,
    )


def issued_key(record: KeyRecord, text: str, *, status: int = 200) -> Response:
    return Response(IssuedKey(key=text, record=key_properties_of(record)), status=status, headers=[NO_STORE])


def _position(record: KeyRecord) -> tuple[int, str]:
    return record.created_at_ms, record.id


def _parse_cursor(cursor: str) -> tuple[int, str]:
    at, _, key_id = cursor.partition(".")
    if not at.isdecimal() or len(at) > 18:
        raise InvalidParameter("the cursor was not returned by this list")
    return int(at), key_id
