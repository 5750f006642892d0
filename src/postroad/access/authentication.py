"""The gate: every request that needs a caller comes through here. What is not allowed by name is refused."""

import contextlib
from urllib.parse import parse_qs

from postroad.access import hook as operators
from postroad.access.hook import Attempt, Authorize
from postroad.access.identity_cache import FIRST_TENANT, CallerWatch, IdentityCache
from postroad.access.jwts import JwtSecrets
from postroad.access.keys import KEY_PREFIXES
from postroad.access.login_throttle import LoginThrottle
from postroad.access.records import TenantState
from postroad.access.tokens import TOKEN_PREFIX, Tokens
from postroad.governance.audit import Audit
from postroad.http.request import Request
from postroad.http.routing import Route
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Forbidden, Unauthenticated
from postroad.kernel.identity import MISSING_CREDENTIALS_HINT, Caller, Credential, RouteRequirement, Scope


class RequestAuthenticator:
    def __init__(
        self,
        directory: IdentityCache,
        tokens: Tokens,
        jwts: JwtSecrets,
        guard: LoginThrottle,
        audit: Audit,
        *,
        authorize: Authorize | None = None,
        keys_in_urls: bool = False,
        is_open: bool = False,
    ) -> None:
        self._directory, self._tokens, self._jwts, self._guard, self._audit = directory, tokens, jwts, guard, audit
        self._authorize, self._keys_in_urls, self._is_open = authorize, keys_in_urls, is_open

    async def authenticate(self, request: Request, route: Route) -> Caller:
        """The caller, if this route is open to it. Raises Unauthenticated, RateLimited, Forbidden, TenantNotFound,
        TenantDisabled, OutOfTouch."""
        self._directory.check_in_touch()
        if route.takes_anyone and not _shows_any(request):
            return await self._nobody(request, route)
        text, is_in_url = _credential(request, route)
        caller = await self._identified(request, route, text, is_in_url=is_in_url)
        if self._authorize is not None:
            caller = await operators.ask(self._authorize, _attempt(request, route, text, caller))
        if caller is None:
            raise self._guard.fail(request.client, "the credential is not valid")
        _check(caller, request, route)
        if caller.is_platform and _is_tenants_business(request, route):
            await self._audit.record(
                RequestContext(caller, request.request_id, request.client), "platform.use", f"{route.method} {route.path}"
            )
        return caller

    async def _nobody(self, request: Request, route: Route) -> Caller:
        """Who shows nothing. Where the installation is open it may use the first tenant's; elsewhere it has no scope at all, and
        may only read what the route's handler finds to be public."""
        tenant = _named(request) or FIRST_TENANT
        may_ask = not self._guard.is_braked(request.client)
        record = await self._directory.tenant(tenant) if may_ask else None
        if record is None or record.state is not TenantState.READY:
            raise self._guard.fail(request.client, MISSING_CREDENTIALS_HINT)
        scopes = _OPEN_SCOPES if self._is_open and tenant == FIRST_TENANT else frozenset[Scope]()
        if route.scope not in scopes and route.scope is not Scope.READ:
            raise Unauthenticated(MISSING_CREDENTIALS_HINT)
        return Caller(tenant, "", scopes, credential=Credential.NONE)

    async def _identified(self, request: Request, route: Route, text: str, *, is_in_url: bool) -> Caller | None:
        """By which kind of credential it is: the first characters tell."""
        named = _named(request)
        if text.startswith(KEY_PREFIXES):
            if is_in_url and not self._keys_in_urls:
                raise Unauthenticated("a key does not belong in a URL, where it is logged: get a stream token by POST /v1/tokens")
            may_ask = not self._guard.is_braked(request.client)
            return await self._directory.caller_by_key(text, named, may_ask=may_ask)
        if text.startswith(TOKEN_PREFIX):
            resource = None if route.resource is None else route.resource.format(**request.parameters)
            return None if resource is None else await self._tokens.caller(text, resource, request.parameters.get("project"))
        if route.takes_jwt and text.count(".") == 2:
            return await self._jwts.caller(text, named or FIRST_TENANT)
        return None

    def watch(self, caller: Caller) -> CallerWatch:
        return self._directory.watch(caller)


_OPEN_SCOPES = frozenset({Scope.READ, Scope.WRITE, Scope.CONSUME})


def _named(request: Request) -> str | None:
    """The tenant that the request is about, if it says so."""
    return request.parameters.get("project") or request.header(b"x-postroad-tenant")


def _shows_any(request: Request) -> bool:
    return b"authorization" in request.headers or b"bearer=" in request.query_string


def _credential(request: Request, route: Route) -> tuple[str, bool]:
    """The text, and whether it stands in the URL. Raises Unauthenticated if there is none."""
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


def _check(caller: Caller, request: Request, route: Route) -> None:
    if route.scope is RouteRequirement.PLATFORM:
        if not caller.is_platform:
            raise Forbidden("this needs a platform key")
    elif (
        route.scope is not RouteRequirement.IDENTITY and route.scope not in caller.scopes and route.or_scope not in caller.scopes
    ):
        raise Forbidden(f"the key lacks the scope {str(route.scope)!r}")
    if caller.allowed is not None or caller.only_stream is not None:
        for kind in route.guarded:
            name = request.parameters[kind]
            if not caller.may_use(kind, name):
                raise Forbidden(f"the key may not use the {kind} {name[:100]!r}")


def _is_tenants_business(request: Request, route: Route) -> bool:
    """Whether a platform key acts in a tenant's place here, which the tenant may want to know of."""
    if route.scope in (RouteRequirement.PLATFORM, RouteRequirement.IDENTITY):
        return False
    return route.path.startswith("/v1/") or request.header(b"x-postroad-tenant") is not None


def _attempt(request: Request, route: Route, text: str, caller: Caller | None) -> Attempt:
    return Attempt(
        method=request.method,
        route=route.path,
        parameters=dict(request.parameters),
        needs=str(route.scope),
        address=request.client,
        credential=text,
        caller=caller,
    )
