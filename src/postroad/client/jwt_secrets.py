"""`client.jwt_secrets`: secrets that the tenant signs JWTs for its own users with (HS256). Needs the scope `admin`."""

from postroad.api.access import IssuedJwtSecret, JwtSecret, JwtSecretPage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, given, moment, segment

_SECRETS = "/api/control/jwt-secrets"


class JwtSecretCalls:
    @pages
    def list(self) -> Pages[JwtSecret]:
        """List the tenant's secrets, oldest first, without their texts."""
        return Pages(call=Call(method="GET", path=_SECRETS, response=JwtSecretPage))

    @operation
    def create(self, name: str, *, secret: str | None = None, expires_at: Moment | None = None) -> Call[IssuedJwtSecret]:
        """Add a secret of at least 32 characters; it is generated if omitted. `.secret` of the result is shown once.

        A tenant has up to five secrets, for rotation. Raises PreconditionFailed if the limit is reached.
        """
        body = given(name=name, secret=secret, expiresAt=moment(expires_at))
        return Call(method="POST", path=_SECRETS, body=body, response=IssuedJwtSecret, is_repeatable=False)

    @operation
    def delete(self, secret_id: str) -> Call[None]:
        """Delete a secret; JWTs that were signed with it are refused. Raises SecretNotFound, also if a retry finds it deleted."""
        return Call(method="DELETE", path=f"{_SECRETS}/{segment(secret_id)}")


class JwtSecrets(JwtSecretCalls, SyncNamespace):
    pass


class AsyncJwtSecrets(JwtSecretCalls, AsyncNamespace):
    pass
