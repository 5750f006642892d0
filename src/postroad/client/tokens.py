"""`client.tokens`: stream tokens, for live reading where no header can be sent. Needs the scope `read`."""

from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation
from postroad.client.shapes.access import MadeToken


class TokenCalls:
    @operation
    def create(self, resource: str, *, expires_in_seconds: int = 3600, once: bool = False) -> Call[MadeToken]:
        """A token that may read this one resource, such as `telemetry`; with `once`, by one connection. It dies with the key."""
        body = {"resource": resource, "expiresInSeconds": expires_in_seconds, "once": once}
        return Call(method="POST", path="/v1/tokens", body=body, response=MadeToken, is_repeatable=False)


class Tokens(TokenCalls, SyncNamespace):
    pass


class AsyncTokens(TokenCalls, AsyncNamespace):
    pass
