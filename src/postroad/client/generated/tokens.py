"""Calls of `client.tokens`. Generated from the route table by `make generate`; do not edit."""

from collections.abc import Sequence

from postroad.api.access import IssuedToken, TopicGrant
from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation
from postroad.client.encoding import body_of


class TokensCalls:
    @operation
    def create(
        self,
        resource: str,
        *,
        expires_in_seconds: int | None = None,
        once: bool = False,
        grants: Sequence[TopicGrant] | None = None,
        prefix: str | None = None,
    ) -> Call[IssuedToken]:
        """Create a stream token.

        For live reads where the client cannot send a header. The token is read-only and valid for one resource. It
        becomes invalid with the key.
        """
        body = body_of(
            {
                "resource": resource,
                "expiresInSeconds": expires_in_seconds,
                "once": once or None,
                "grants": grants,
                "prefix": prefix,
            }
        )
        return Call(method="POST", path="/v1/tokens", body=body, response=IssuedToken, is_repeatable=False)


class Tokens(TokensCalls, SyncNamespace):
    pass


class AsyncTokens(TokensCalls, AsyncNamespace):
    pass
