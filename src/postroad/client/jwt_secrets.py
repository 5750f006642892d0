"""`client.jwt_secrets`: secrets that the tenant signs JWTs for its own users with (HS256). Needs the scope `admin`."""

from postroad.api.access import JwtSecret, JwtSecretPage
from postroad.client.calls import AsyncNamespace, Call, Pages, SyncNamespace, pages
from postroad.client.generated.jwt_secrets import JwtSecretsCalls


class JwtSecretCalls(JwtSecretsCalls):
    @pages
    def list(self) -> Pages[JwtSecret]:
        """List the tenant's secrets, oldest first, without their texts."""
        return Pages(call=Call(method="GET", path="/api/control/jwt-secrets", response=JwtSecretPage))


class JwtSecrets(JwtSecretCalls, SyncNamespace):
    pass


class AsyncJwtSecrets(JwtSecretCalls, AsyncNamespace):
    pass
