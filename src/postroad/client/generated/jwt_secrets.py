"""Calls of `client.jwt_secrets`. Generated from the route table by `make generate`; do not edit."""

from collections.abc import Sequence

from postroad.api.access import IssuedJwtSecret, JwtScope, JwtSecret, JwtSecretPage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, operation, pages
from postroad.client.encoding import Moment, body_of, moment, segment


class JwtSecretsCalls:
    @pages
    def list(self) -> Pages[JwtSecret]:
        """List JWT secrets. Oldest first, without their texts."""
        return Pages(call=Call(method="GET", path="/api/control/jwt-secrets", response=JwtSecretPage))

    @operation
    def create(
        self,
        name: str,
        *,
        secret: str | None = None,
        scopes: Sequence[JwtScope | str] | None = None,
        expires_at: Moment | None = None,
    ) -> Call[IssuedJwtSecret]:
        """Add a JWT secret.

        Stream and session routes accept JWTs signed with it (HS256). They can use no stream that the key which creates
        the secret may not use, and end with that key. A tenant has at most five secrets. Raises PreconditionFailed,
        KeyRequired.
        """
        body = body_of({"name": name, "secret": secret, "scopes": scopes, "expiresAt": moment(expires_at)})
        return Call(method="POST", path="/api/control/jwt-secrets", body=body, response=IssuedJwtSecret, is_repeatable=False)

    @operation
    def delete(self, secret: str) -> Call[None]:
        """Delete a JWT secret. JWTs signed with it are refused from then on. Raises SecretNotFound."""
        return Call(method="DELETE", path=f"/api/control/jwt-secrets/{segment(secret)}")


class JwtSecrets(JwtSecretsCalls, SyncNamespace):
    pass


class AsyncJwtSecrets(JwtSecretsCalls, AsyncNamespace):
    pass
