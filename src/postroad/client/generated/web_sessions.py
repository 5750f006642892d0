"""Calls of `client.web_sessions`. Generated from the route table by `make generate`; do not edit."""

from postroad.api.access import SignInLink, WebSession
from postroad.client.calls import AsyncNamespace, Call, SyncNamespace, operation
from postroad.client.encoding import body_of


class WebSessionsCalls:
    @operation
    def get(self) -> Call[WebSession]:
        """Show the identity of the request and the installation's features."""
        return Call(method="GET", path="/v1/session", response=WebSession)

    @operation
    def create_link(self, *, expires_in_seconds: int | None = None) -> Call[SignInLink]:
        """Create a sign-in link.

        The link opens the console signed in as the key of the request. It is valid once. Raises Forbidden.
        """
        body = body_of({"expiresInSeconds": expires_in_seconds})
        return Call(method="POST", path="/v1/session/links", body=body, response=SignInLink, is_repeatable=False)


class WebSessions(WebSessionsCalls, SyncNamespace):
    pass


class AsyncWebSessions(WebSessionsCalls, AsyncNamespace):
    pass
