"""Authentication and authorization of requests. Everything that is not explicitly allowed is refused."""

import contextlib
from typing import Protocol
from urllib.parse import parse_qs

from postroad.access.hook import Attempt, Authorize, apply_hook
from postroad.access.identity_cache import DEFAULT_TENANT, CallerWatch, IdentityCache
from postroad.access.jwts import JwtSecrets
from postroad.access.keys import KEY_PREFIXES
from postroad.access.login_throttle import LoginThrottle
from postroad.access.tokens import TOKEN_PREFIX, Tokens
from postroad.access.web_sessions import WebSessions, check_same_origin, session_cookie
from postroad.governance.audit import Audit
from postroad.governance.refused_attempts import is_administrative, operation_of
from postroad.http.request import Request
from postroad.http.routing import Route
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Forbidden, InvalidParameter, PostroadError, Unauthenticated
from postroad.kernel.identity import MISSING_CREDENTIALS_HINT, Caller, Credential, RouteRequirement, Scope
from postroad.kernel.usage_counters import ANONYMOUS

EMIT_PREFIX = "pr_emit_"


class EmitAuthenticator(Protocol):
    """Verifies emit tokens. `named_tenant` is the tenant that the request names."""

    def cached_caller(self, text: str, named_tenant: str | None) -> Caller | None: ...
    async def authenticate(self, text: str, named_tenant: str | None) -> Caller | None: ...


class RequestAuthenticator:
    """`authorize` is the operator's hook. `is_open`: anonymous callers may use the streams of the default tenant."""

    def __init__(
        self,
        identities: IdentityCache,
        tokens: Tokens,
        jwts: JwtSecrets,
        throttle: LoginThrottle,
        audit: Audit,
        *,
        web_sessions: WebSessions | None = None,
        authorize: Authorize | None = None,
        keys_in_urls: bool = False,
        is_open: bool = False,
    ) -> None:
        self._identities, self._tokens, self._jwts, self._throttle, self._audit = identities, tokens, jwts, throttle, audit
        self._web_sessions = web_sessions
        self._authorize, self._keys_in_urls, self._is_open = authorize, keys_in_urls, is_open
        self.emit_tokens: EmitAuthenticator | None = None  # set by the capability that issues them

    async def authenticate(self, request: Request, route: Route) -> Caller:
        """The caller, if it may use the route. Raises Unauthenticated, RateLimited, Forbidden, TenantNotFound, TenantDisabled,
        RegistryStale."""
        self._identities.check_fresh()
        if not _has_credential(request):
            cookie = session_cookie(request) if self._web_sessions is not None else None
            if cookie is not None:
                return await self._by_session(request, route, cookie)
            if route.allows_anonymous:
                return await self._anonymous(request, route)
        text, is_in_url = _credential(request, route)
        caller = await self._identify(request, route, text, is_in_url=is_in_url)
        return await self.authorize(request, route, text, caller)

    async def _by_session(self, request: Request, route: Route, cookie: str) -> Caller:
        """The caller of a session cookie. An ended session is no guess at a credential, so it is not throttled."""
        if self._web_sessions is None:
            raise RuntimeError("there are no web sessions")
        check_same_origin(request, is_websocket=route.is_websocket)
        caller = await self._web_sessions.authenticate(cookie, _named_tenant(request))
        if caller is None:
            raise Unauthenticated("the session has ended; sign in again")
        return await self.authorize(request, route, cookie, caller)

    def authorize_now(self, request: Request, route: Route, caller: Caller) -> bool:
        """False if the operator's hook has to be asked: call `authorize`. No effect. Raises Forbidden if the caller may not use
        the route."""
        if self._authorize is not None:
            return False
        _check_permissions(caller, request, route)
        return True

    async def authorize(self, request: Request, route: Route, text: str, caller: Caller | None) -> Caller:
        """The caller of the credential `text`, after the operator's hook, if it may use the route. Raises like `authenticate`."""
        if self._authorize is not None:
            if route.body_ids:
                await self._read_body(request, caller)
            caller = await apply_hook(self._authorize, _attempt(request, route, text, caller))
        if caller is None:
            raise self._throttle.record_failure(request.client, "the credential is invalid")
        try:
            _check_permissions(caller, request, route)
        except Forbidden:
            if is_administrative(route):
                context = RequestContext(caller, request.request_id, request.client)
                await self._audit.refused_attempts.record(context, operation_of(route))
            raise
        if caller.is_platform and _acts_for_tenant(request, route):
            context = RequestContext(caller, request.request_id, request.client)
            await self._audit.record_platform_use(context, route.method, operation_of(route))
        return caller

    def authenticate_now(self, request: Request, route: Route) -> Caller | None:
        """The caller of a tenant's key or emit token that was used before; None: call `authenticate`. No effect.

        Raises like `authenticate`.
        """
        if self._authorize is not None or b"authorization" not in request.headers:
            return None
        self._identities.check_fresh()
        text, _ = _credential(request, route)
        if text.startswith(EMIT_PREFIX):
            caller = self._cached_emit_caller(request, route, text)
        else:
            caller = self._identities.cached_caller(text, _named_tenant(request))
        if caller is not None:
            _check_permissions(caller, request, route)
        return caller

    def _cached_emit_caller(self, request: Request, route: Route, text: str) -> Caller | None:
        if self.emit_tokens is None or not route.accepts_emit_token:
            return None
        return self.emit_tokens.cached_caller(text, _named_tenant(request))

    async def _read_body(self, request: Request, caller: Caller | None) -> None:
        """Read the body before the hook is called. A fault of the body is reported to known callers only."""
        try:
            await request.read_body()
        except PostroadError as fault:
            if caller is None:
                raise self._throttle.record_failure(request.client, "the credential is invalid") from fault
            raise

    async def _anonymous(self, request: Request, route: Route) -> Caller:
        """Anonymous caller. In open mode it gets the stream scopes of the default tenant; otherwise none, and the handler
        decides what is public.

        Unknown and disabled tenants are not refused here but replaced by none, and the handler does for them what it does for a
        tenant without public data: neither the response nor its time reveals which tenants exist.
        """
        request.refusal = lambda: self._throttle.record_failure(request.client, MISSING_CREDENTIALS_HINT)
        if self._throttle.is_throttled(request.client):
            raise request.refusal()
        tenant = _named_tenant(request) or DEFAULT_TENANT
        scopes = _OPEN_SCOPES if self._is_open and tenant == DEFAULT_TENANT else frozenset[Scope]()
        if route.scope not in scopes and route.scope is not Scope.READ:
            raise request.refusal()
        return Caller(tenant if self._identities.is_served(tenant) else ANONYMOUS, "", scopes, credential=Credential.NONE)

    async def _identify(self, request: Request, route: Route, text: str, *, is_in_url: bool) -> Caller | None:
        """The caller of a credential, None if it is invalid. The prefix of the text determines the kind of credential."""
        named = _named_tenant(request)
        if text.startswith(KEY_PREFIXES):
            if is_in_url and not self._keys_in_urls:
                raise Unauthenticated("keys in URLs are refused, as URLs are logged; get a stream token from POST /v1/tokens")
            may_fetch = not self._throttle.is_throttled(request.client)
            return await self._identities.caller_by_key(text, named, may_fetch=may_fetch)
        if text.startswith(TOKEN_PREFIX):
            named_resources = (route.resource, route.alternative_resource)
            resources = tuple(one.format(**request.parameters) for one in named_resources if one is not None)
            return await self._tokens.authenticate(text, resources, request.parameters.get("project")) if resources else None
        if text.startswith(EMIT_PREFIX):
            if self.emit_tokens is None or is_in_url or not route.accepts_emit_token:
                return None
            return await self.emit_tokens.authenticate(text, named)
        if route.accepts_jwt and text.count(".") == 2:
            return await self._jwts.authenticate(text, named or _tenant_in_url(request, route) or DEFAULT_TENANT)
        return None

    @property
    def throttle(self) -> LoginThrottle:
        return self._throttle

    def identify_key_now(self, request: Request, text: str) -> Caller | None:
        """The caller of the text of a tenant's key that was used before; None: call `identify_key`. No effect."""
        return self._identities.cached_caller(text, _named_tenant(request)) if text.startswith(KEY_PREFIXES) else None

    async def identify_key(self, request: Request, text: str) -> Caller | None:
        """The caller of the text of a key, None if it is invalid. Raises like `authenticate`."""
        self._identities.check_fresh()
        if not text.startswith(KEY_PREFIXES):
            return None
        may_fetch = not self._throttle.is_throttled(request.client)
        return await self._identities.caller_by_key(text, _named_tenant(request), may_fetch=may_fetch)

    def watch(self, caller: Caller) -> CallerWatch:
        return self._identities.watch(caller)


_OPEN_SCOPES = frozenset({Scope.READ, Scope.WRITE, Scope.CONSUME})


def _named_tenant(request: Request) -> str | None:
    """The tenant in the path or in `X-Postroad-Tenant`. Raises InvalidParameter if the header is empty."""
    header = request.header(b"x-postroad-tenant")
    if header is not None and not header.strip():
        raise InvalidParameter("the header X-Postroad-Tenant is empty; leave it out, or name a tenant")
    return request.parameters.get("project") or header


def _tenant_in_url(request: Request, route: Route) -> str | None:
    """The tenant of a WebSocket, whose client in a browser cannot send headers."""
    if not route.is_websocket or b"tenant=" not in request.query_string:
        return None
    with contextlib.suppress(ValueError):
        found = parse_qs(request.query_string.decode("latin-1"), max_num_fields=64).get("tenant", [])
        return found[0] if len(found) == 1 else None
    return None


def _has_credential(request: Request) -> bool:
    return b"authorization" in request.headers or b"bearer=" in request.query_string


def _credential(request: Request, route: Route) -> tuple[str, bool]:
    """The text of the credential, and True if it is in the URL. Raises Unauthenticated if there is none."""
    header = request.header(b"authorization")
    if header is None and route.resource is not None and b"bearer=" in request.query_string:
        with contextlib.suppress(ValueError):
            found = parse_qs(request.query_string.decode("latin-1"), max_num_fields=64).get("bearer", [])
            if len(found) == 1:
                return found[0], True
    scheme, _, text = (header or "").partition(" ")
    if scheme.lower() not in ("bearer", "apikey"):
        raise Unauthenticated(MISSING_CREDENTIALS_HINT)
    return text.strip(), False


def _check_permissions(caller: Caller, request: Request, route: Route) -> None:
    """Raises Forbidden."""
    if route.scope is RouteRequirement.PLATFORM:
        if not caller.is_platform:
            raise Forbidden("this operation needs a platform key")
    elif (
        route.scope is not RouteRequirement.IDENTITY
        and route.scope not in caller.scopes
        and caller.scopes.isdisjoint(route.scopes)
    ):
        raise Forbidden(f"the key lacks the scope {' or '.join(repr(str(scope)) for scope in route.scopes)}")
    if caller.is_partial:
        if route.covers_tenant:
            raise Forbidden("this operation covers the whole tenant, and the key is restricted to a part of it")
        for kind in route.guarded:
            name = request.parameters[kind]
            if not caller.may_use(kind, name):
                raise Forbidden(f"the key may not use the {kind} {name[:100]!r}")


def _acts_for_tenant(request: Request, route: Route) -> bool:
    """True if a platform key acts for a tenant here, which is recorded in the tenant's audit log."""
    if route.scope in (RouteRequirement.PLATFORM, RouteRequirement.IDENTITY):
        return False
    return route.path.startswith("/v1/") or request.header(b"x-postroad-tenant") is not None


def _attempt(request: Request, route: Route, text: str, caller: Caller | None) -> Attempt:
    in_body = {name: getattr(request.body, field) for name, field in route.body_ids}
    return Attempt(
        action=route.action,
        project=_named_tenant(request) or (caller.tenant if caller is not None else ""),
        method=request.method,
        route=route.path,
        parameters={**request.parameters, **in_body},
        needs=str(route.scope),
        address=request.client,
        credential=text,
        caller=caller,
    )
