"""The route table: routing, authentication, OpenAPI, SDK and CLI follow from the declaration of each route."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec

from postroad.http.cloudevents import EventBody
from postroad.http.problems import problem_response
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.kernel.errors import InvalidParameter, MethodNotAllowed, PostroadError, RouteNotFound
from postroad.kernel.identity import RouteRequirement, Scope
from postroad.kernel.json_keys import JsonShape, shape_of

Handler = Callable[[Request], Awaitable[Response]]
Respond = Callable[[Response | Exception], None]
Start = Callable[[Respond], None]


@dataclass(frozen=True, slots=True)
class Command:
    """The CLI command that is generated for a route.

    `columns` are the attributes of a table's columns (`stats.ready`); without them every field is shown. `confirm` is asked
    before the call, with path parameters in braces. `shown_once` is the secret attribute that is printed alone. `done` is printed
    in place of the response. `anonymous`: the call is made without a key. `limit` is the number of items that a list shows.
    """

    name: str
    columns: tuple[str, ...] = ()
    confirm: str = ""
    shown_once: str = ""
    done: str = ""
    anonymous: bool = False
    limit: int = 100
    options: tuple[tuple[str, str], ...] = ()  # field and option name, where it is not the field's own


@dataclass(frozen=True, slots=True)
class Route:
    """One operation. `scope` None needs no credential; `query`, `body` and `response` are msgspec types.

    `{name}` in the path matches one segment; with `matches_rest` the last one matches the rest of the path, slashes included.
    `raw_body`: the body is passed as bytes; `body` then only describes it. `media` empty: a successful response has no body.
    `events`: CloudEvents are accepted in place of `body`, and converted to it. `event_media`: content types of CloudEvents that
    the response can have, by the header `Accept`.
    `resource` is the resource that a stream token must be for, made of path parameters; `alternative_resource` is accepted, too.
    `accepts_jwt`: JWTs of the tenant are accepted. `accepts_emit_token`: emit tokens of services are accepted.
    `allows_anonymous`: requests without a credential are accepted without scopes, and the handler decides.
    `covers_tenant`: the operation is about all resources of the tenant, so a credential that is restricted to some is refused.
    `alternative_scope` is a scope that is accepted instead of `scope`. `allows_admin`: `admin` is accepted, too, because the
    route manages or observes resources; routes that carry a tenant's data (publish, consume, read or append to streams) do not.
    `token_tenant`, on a route without a scope: the tenant of a signed token that the handler checks, None without a valid one;
    then the limits of anonymous requests apply.
    `accepts_large_body`, on a route without a scope whose handler authenticates by the body: whether the limit of the body is
    that of authenticated requests. `error_response` makes the response to an error, in place of a problem.
    `body_ids` are the names of ids in the body and their fields, for the operator's hook: then the body is read before it is
    called. `is_websocket`: the handler returns a response with a `socket`; other requests than handshakes are refused before.
    `is_page`: a page or file of the console, which the OpenAPI document leaves out.
    `is_unlimited`: the route responds when the limits on open requests are reached, as health checks must.
    `prepare`, for a busy route without a query, serves ordinary requests without a task. It has no effect; it returns None for a
    request that the handler must serve, or raises PostroadError. The function that it returns starts the operation, and `Respond`
    is called once, later. Both ways use the same rules (decision 0050). On a route without a scope it identifies the caller.
    """

    method: str
    path: str
    handler: Handler
    scope: Scope | RouteRequirement | None
    summary: str
    tag: str
    body: Any = None
    empty_body: Any = None  # the decoded body of a request without one; None: the body is required
    events: EventBody | None = None
    event_media: tuple[str, ...] = ()
    query: type[msgspec.Struct] | None = None
    response: Any = None
    status: int = 200
    other_statuses: tuple[int, ...] = ()
    media: str = "application/json"
    errors: tuple[type[PostroadError], ...] = ()
    description: str = ""
    headers: tuple[tuple[str, Any], ...] = ()  # request headers with their types
    resource: str | None = None
    alternative_resource: str | None = None
    accepts_jwt: bool = False
    accepts_emit_token: bool = False
    covers_tenant: bool = False
    allows_anonymous: bool = False
    raw_body: bool = False
    matches_rest: bool = False
    alternative_scope: Scope | None = None
    allows_admin: bool = False
    token_tenant: Callable[[Request], str | None] | None = None
    is_unlimited: bool = False
    is_page: bool = False
    is_websocket: bool = False
    accepts_large_body: Callable[[Request], bool] | None = None
    error_response: "Callable[[PostroadError, Request | None, str], Response] | None" = None
    body_ids: tuple[tuple[str, str], ...] = ()
    prepare: Callable[[Request], Start | None] | None = None
    action: str = ""  # name of the operation for the operator's hook; default: that of the handler
    sdk: str = ""  # generated SDK method, such as `tasks.list`
    sdk_arguments: tuple[tuple[str, str], ...] = ()  # optional or long-named fields that are required arguments, and their names
    sdk_page: str = ""  # generated SDK method that returns one page of the list, for pages with more fields than the items
    cli: Command | None = None  # generated CLI command
    repeatable: bool | None = None  # safe to send again when no response came; None: all methods but POST
    guarded: tuple[str, ...] = ()  # parameters that a key's restrictions are checked against; set when the process is built
    body_decoder: Any = field(init=False, default=None)
    body_shape: JsonShape | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.body is not None and not self.raw_body:
            object.__setattr__(self, "body_decoder", msgspec.json.Decoder(self.body))
            object.__setattr__(self, "body_shape", shape_of(self.body))
        if not self.action:
            first, *more = getattr(self.handler, "__name__", "").split("_")
            object.__setattr__(self, "action", first + "".join(word.capitalize() for word in more))

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """The scopes of which a caller needs one; none for routes with another requirement."""
        if not isinstance(self.scope, Scope):
            return ()
        more = (self.alternative_scope, Scope.ADMIN if self.allows_admin else None)
        return (self.scope, *(scope for scope in more if scope is not None))

    @property
    def parameters(self) -> list[str]:
        return [segment.strip("{}") for segment in self.path.split("/") if segment.startswith("{")]


_CACHE_MAX = 8192  # paths whose routes are cached: a busy gateway serves few distinct paths
_CACHED_CHARS_MAX = 256  # longer paths are not cached, since unauthenticated clients can fill the cache


class RouteConflict(Exception):
    """Two routes match the same request."""


class _Node:
    __slots__ = ("literals", "parameter", "rest", "routes")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.rest: _Node | None = None
        self.routes: dict[str, tuple[Route, tuple[str, ...]]] = {}


class Router:
    """Finds the route of a request by path segments: literals precede parameters, and those the rest of a path.

    Paths are percent-encoded, and only the values of parameters are decoded: a proxy that compares paths as they were sent sees
    the same route.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _Node()
        self._cache: dict[tuple[str, str], tuple[Route, dict[str, str]]] = {}
        for route in self.routes:
            self._add(route)

    def _add(self, route: Route) -> None:
        node = self._root
        *segments, last = route.path.split("/")[1:]
        for segment in segments if route.matches_rest else (*segments, last):
            if segment.startswith("{"):
                node.parameter = node.parameter or _Node()
                node = node.parameter
            else:
                node = node.literals.setdefault(segment, _Node())
        if route.matches_rest:
            node.rest = node.rest or _Node()
            node = node.rest
        if route.method in node.routes:
            raise RouteConflict(f"{route.method} {route.path} and {node.routes[route.method][0].path}")
        node.routes[route.method] = (route, tuple(route.parameters))

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route and its path parameters. Raises RouteNotFound, MethodNotAllowed, InvalidParameter."""
        known = self._cache.get((method, path))
        if known is None:
            known = self._search(method, path)
            if len(self._cache) >= _CACHE_MAX:
                self._cache.clear()
            if len(path) <= _CACHED_CHARS_MAX:
                self._cache[method, path] = known
        return known

    def _search(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        values: list[list[str]] = []
        node = self._walk(self._root, path.split("/")[1:], 0, values)
        if node is None:
            raise RouteNotFound(f"there is no route {path[:200]}")
        found = node.routes.get(method) or (node.routes.get("GET") if method == "HEAD" else None)
        if found is None:
            raise MethodNotAllowed(f"{path[:200]} does not support {method}", extra={"allow": allowed_methods(node.routes)})
        route, names = found
        texts = ["/".join(_decode(segment) for segment in segments) for segments in values]
        if any("/" in text for text in (texts[:-1] if route.matches_rest else texts)):
            raise InvalidParameter("a segment of the path contains an encoded slash")
        return route, dict(zip(names, texts, strict=True))

    def is_websocket(self, path: str) -> bool:
        try:
            return self.find("GET", path)[0].is_websocket
        except PostroadError:
            return False

    @property
    def sections(self) -> list[str]:
        """The first segments of the pages."""
        return sorted({route.path.split("/")[1] for route in self.routes if route.is_page and not route.matches_rest})

    def methods(self, path: str) -> list[str]:
        node = self._walk(self._root, path.split("/")[1:], 0, [])
        return allowed_methods(node.routes) if node else []

    def _walk(self, node: _Node, segments: list[str], index: int, values: list[list[str]]) -> "_Node | None":
        if index == len(segments):
            return node if node.routes else None
        segment = segments[index]
        following = node.literals.get(segment)
        if following is not None:
            found = self._walk(following, segments, index + 1, values)
            if found is not None:
                return found
        if not segment or ("%" in segment and unquote(segment) in node.literals):  # an encoded literal is no value
            return None
        if node.parameter is not None:
            values.append([segment])
            found = self._walk(node.parameter, segments, index + 1, values)
            if found is not None:
                return found
            values.pop()
        if node.rest is not None:
            values.append(segments[index:])
            return node.rest
        return None


def _decode(segment: str) -> str:
    """The value of a path segment. Raises InvalidParameter for a dot segment, which proxies resolve, and for invalid encoding."""
    try:
        value = unquote(segment, errors="strict") if "%" in segment else segment
    except UnicodeDecodeError as exc:
        raise InvalidParameter("the path is not percent-encoded UTF-8") from exc
    if not {".", ".."}.isdisjoint(value.split("/")):
        raise InvalidParameter("the path has a segment '.' or '..'")
    return value


def allowed_methods(routes: Iterable[str]) -> list[str]:
    methods = set(routes) | {"OPTIONS"}
    return sorted(methods | {"HEAD"}) if "GET" in methods else sorted(methods)


def error_response(problem: PostroadError, route: Route | None, request: Request | None, request_id: str) -> Response:
    """The response to an error: a problem, unless the route makes its own."""
    if route is not None and route.error_response is not None:
        return route.error_response(problem, request, request_id)
    return problem_response(problem, request_id)
