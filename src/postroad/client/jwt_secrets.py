"""`client.jwt_secrets`: what the tenant signs JWTs for its own users with (HS256). Needs the scope `admin`."""

from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, given, moment, segment
from postroad.client.shapes.access import JwtSecret, JwtSecretList, MadeJwtSecret

_SECRETS = "/api/control/jwt-secrets"


class JwtSecretCalls:
    @pages
    def list(self) -> Pages[JwtSecret]:
        """The tenant's secrets, oldest first, without their texts."""
        call: Call[JwtSecretList] = Call(method="GET", path=_SECRETS, response=JwtSecretList)
        return Pages(call=call, items=lambda page: page.secrets, cursor=lambda _: None)

    @operation
    def create(self, name: str, *, secret: str | None = None, expires_at: Moment | None = None) -> Call[MadeJwtSecret]:
        """Add a secret: yours, of at least 32 characters, or one that is made; `.secret` of what comes back, this once.

        A tenant has up to five at a time, for rotation. Raises NotNow when it has.
        """
        body = given(name=name, secret=secret, expiresAt=moment(expires_at))
        return Call(method="POST", path=_SECRETS, body=body, response=MadeJwtSecret, is_repeatable=False)

    @operation
    def delete(self, secret_id: str) -> Call[None]:
        """JWTs that it signed are refused from now on. Raises SecretNotFound, also when a repeated try finds it gone already."""
        return Call(method="DELETE", path=f"{_SECRETS}/{segment(secret_id)}")


class JwtSecrets(JwtSecretCalls, SyncNamespace):
    pass


class AsyncJwtSecrets(JwtSecretCalls, AsyncNamespace):
    pass
