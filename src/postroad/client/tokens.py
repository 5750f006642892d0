"""`client.tokens`: stream tokens, for live reads where the client cannot send a header. Needs the scope `read`."""

from postroad.api.access import IssuedToken
from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation


class TokenCalls:
    @operation
    def create(self, resource: str, *, expires_in_seconds: int = 3600, once: bool = False) -> Call[IssuedToken]:
        """Create a token for one resource, such as `telemetry`; with `once`, for one connection.

        It is read-only and becomes invalid with the key.
        """
        body = {"resource": resource, "expiresInSeconds": expires_in_seconds, "once": once}
        return Call(method="POST", path="/v1/tokens", body=body, response=IssuedToken, is_repeatable=False)


class Tokens(TokenCalls, SyncNamespace):
    pass


class AsyncTokens(TokenCalls, AsyncNamespace):
    pass
