"""HTTP routes of web sessions and sign-in links."""

from collections.abc import Callable, Sequence

from postroad import __version__
from postroad.access.accounts import Accounts
from postroad.access.authentication import RequestAuthenticator
from postroad.access.routes import NO_STORE, identity_of
from postroad.access.web_sessions import COOKIE, WebSessions, check_same_origin, link_url, session_cookie, set_cookie
from postroad.api.access import NewSignInLink, NewWebSession, SignInLink, TenantDisabled, WebSession
from postroad.governance.audit import Audit
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Route
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import EngineUnavailable, Forbidden, RateLimited, Unauthenticated
from postroad.kernel.identity import Caller, Credential, RouteRequirement


class WebSessionRoutes:
    """`features` returns the names of the installation's capabilities."""

    def __init__(
        self,
        sessions: WebSessions,
        authenticator: RequestAuthenticator,
        accounts: Accounts,
        audit: Audit,
        clock: Clock,
        features: Callable[[], tuple[str, ...]],
        *,
        public_url: str | None,
    ) -> None:
        self._sessions, self._authenticator, self._accounts, self._audit = sessions, authenticator, accounts, audit
        self._clock, self._features, self._public_url = clock, features, public_url

    def table(self) -> Sequence[Route]:
        path, tag = "/v1/session", "Access"
        return [
            Route(
                "POST",
                path,
                self.sign_in,
                None,
                "Sign in with a browser",
                tag,
                body=NewWebSession,
                response=WebSession,
                status=201,
                errors=(Unauthenticated, Forbidden, TenantDisabled, RateLimited, EngineUnavailable),
                description=(
                    "Sets the cookie `postroad_session`, which acts as the key: with its scopes and restrictions, and not "
                    "longer than it. The cookie counts if a request has no `Authorization`, and only in requests of pages of "
                    "this origin."
                ),
            ),
            Route(
                "GET",
                path,
                self.get_session,
                RouteRequirement.IDENTITY,
                "Show the identity of the request and the installation's features",
                tag,
                response=WebSession,
                errors=(EngineUnavailable,),
                sdk="web_sessions.get",
            ),
            Route(
                "DELETE",
                path,
                self.sign_out,
                None,
                "Sign out",
                tag,
                status=204,
                errors=(Forbidden, EngineUnavailable),
                description="Ends the session of the cookie on every worker, with its live streams. No effect without one.",
            ),
            Route(
                "POST",
                f"{path}/links",
                self.create_link,
                RouteRequirement.IDENTITY,
                "Create a sign-in link",
                tag,
                body=NewSignInLink,
                empty_body=NewSignInLink(),
                response=SignInLink,
                status=201,
                errors=(Forbidden, EngineUnavailable),
                description="The link opens the console signed in as the key of the request. It is valid once.",
                sdk="web_sessions.create_link",
            ),
        ]

    async def sign_in(self, request: Request) -> Response:
        wanted: NewWebSession = request.body
        if b"sec-fetch-site" in request.headers or b"origin" in request.headers:
            check_same_origin(request)
        caller = await self._identify(request, wanted)
        if caller is None:
            hint = "the sign-in link is invalid, has expired or was used" if wanted.key is None else "the key is invalid"
            if wanted.key is None and wanted.access is None:
                hint = "send `key`, or the `access` of a sign-in link"
            raise self._authenticator.throttle.record_failure(request.client, hint)
        cookie, expires_at_ms = self._sessions.start(caller)
        await self._audit.record(RequestContext(caller, request.request_id, request.client), "console.sign_in", caller.key_id)
        seconds = max(1, round((expires_at_ms - self._clock()) / 1000))
        header = set_cookie(request, COOKIE, cookie, seconds, self._public_url, "Strict")
        body = await self._session(caller, expires_at_ms, is_signed_in=True)
        return Response(body, status=201, headers=[header, NO_STORE])

    async def _identify(self, request: Request, wanted: NewWebSession) -> Caller | None:
        if wanted.key is not None:
            return await self._authenticator.identify_key(request, wanted.key.strip())
        if self._authenticator.throttle.is_throttled(request.client):
            return None
        return await self._sessions.redeem(wanted.access or "")

    async def get_session(self, request: Request) -> Response:
        expires_at_ms = self._sessions.expiry_of(request) if request.caller.session else None
        body = await self._session(request.caller, expires_at_ms, is_signed_in=bool(request.caller.session))
        return Response(body, headers=[NO_STORE])

    async def sign_out(self, request: Request) -> Response:
        cookie = session_cookie(request)
        if cookie is not None:
            check_same_origin(request)
            caller = await self._signed_in(cookie)
            if caller is not None:
                context = RequestContext(caller, request.request_id, request.client)
                await self._audit.record(context, "console.sign_out", caller.key_id)
                await self._sessions.end(caller)
        return Response(status=204, headers=[set_cookie(request, COOKIE, "", 0, self._public_url, "Strict")])

    async def _signed_in(self, cookie: str) -> Caller | None:
        """The caller of a session that has something to end: a disabled tenant's has not."""
        try:
            return await self._sessions.authenticate(cookie, None)
        except TenantDisabled:
            return None

    async def create_link(self, request: Request) -> Response:
        caller, wanted = request.caller, request.body
        if caller.credential is not Credential.KEY or caller.session:
            raise Forbidden("only a key itself can create sign-in links, so that a session cannot prolong itself")
        until_ms = self._clock() + wanted.expires_in_seconds * 1000
        expires_at_ms = min(until_ms, caller.expires_at_ms or until_ms)
        code = self._sessions.links.issue(caller.key_id, caller.text_id, expires_at_ms)
        await self._audit.record(request.context, "console.create_link", caller.key_id)
        url = link_url(request.base_url(self._public_url), code)
        return Response(SignInLink(url=url, expires_at=rfc3339(expires_at_ms)), status=201, headers=[NO_STORE])

    async def _session(self, caller: Caller, expires_at_ms: int | None, *, is_signed_in: bool) -> WebSession:
        identity = identity_of(caller, await self._accounts.of(caller.tenant))
        return WebSession(
            **{name: getattr(identity, name) for name in identity.__struct_fields__},
            signed_in=is_signed_in,
            session_expires_at=None if expires_at_ms is None else rfc3339(expires_at_ms),
            version=__version__,
            features=self._features(),
        )
