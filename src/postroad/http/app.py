"""The ASGI application: routing, authentication, decoding, response. Raw ASGI for throughput (decision 0005)."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from postroad.http.admission import Admission, AdmissionLimits, CallerLimits
from postroad.http.client_ip import Network, client_address
from postroad.http.html_pages import missing_page, page_response, prefers_html
from postroad.http.loopback import check_loopback
from postroad.http.metrics import RequestMetrics
from postroad.http.open_sockets import OpenSockets, renewal
from postroad.http.protocol_paths import is_protocol_path, is_protocol_request
from postroad.http.query import parse_query
from postroad.http.request import ClientDisconnected, Receive, Request, ResponseCycle, RevocationWatch, Scope, Send, no_body
from postroad.http.request_body import check_body_media, decode_body, read_body
from postroad.http.request_log import RequestLog
from postroad.http.request_span import begin_span, end_span
from postroad.http.response import SLICE_BYTES_MAX, Response
from postroad.http.routing import Route, Router, error_response
from postroad.http.security_headers import API, default_headers
from postroad.http.streaming import send_stream
from postroad.http.websocket_frames import check_handshake, check_origin
from postroad.kernel.errors import PostroadError, RouteNotFound
from postroad.kernel.identity import Caller, Credential, RouteRequirement
from postroad.kernel.ids import new_request_id
from postroad.kernel.names import project_name
from postroad.kernel.spans import Tracer, current_span
from postroad.kernel.usage_counters import ANONYMOUS, TenantCounters, UsageCounters

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_CORS_HEADERS = b"*, Authorization, Content-Type, Idempotency-Key, X-Request-Id, X-Postroad-Tenant, Last-Event-ID, traceparent"
_PLATFORM = RouteRequirement.PLATFORM  # an attribute lookup in the enum would cost more than the rest of counting
_ANONYMOUS = Credential.NONE


class Authenticator(Protocol):
    """Authenticates and authorizes requests."""

    def authenticate_now(self, request: Request, route: Route) -> Caller | None:
        """The caller, if it is known without waiting and nothing has to be recorded; else None, without effect. Raises like
        `authenticate`, without effect too: `authenticate` must be called then."""

    async def authenticate(self, request: Request, route: Route) -> Caller:
        """The caller. Raises Unauthenticated, Forbidden, RateLimited, TenantNotFound, TenantDisabled, RegistryStale."""

    def watch(self, caller: Caller) -> RevocationWatch:
        """Watch for the revocation of the caller's credential."""


@dataclass(frozen=True, slots=True)
class AppSettings:
    body_bytes_max: int
    anonymous_body_bytes_max: int
    limits: AdmissionLimits
    cors_origin: str = "*"
    is_open: bool = False  # only for clients and pages on this machine
    access_log: bool = False
    trusted_proxies: tuple[Network, ...] = ()


class App:
    """Serves the routes of a `Router`. `drain` ends long responses; new requests are served until the socket closes.
    `protocol` serves requests of another wire protocol (`protocol_paths.py`).
    """

    def __init__(
        self,
        router: Router,
        authenticator: Authenticator,
        settings: AppSettings,
        usage: UsageCounters | None = None,
        caller_limits: CallerLimits | None = None,
        protocol: Route | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._router, self._authenticator, self._settings, self._protocol = router, authenticator, settings, protocol
        self._tracer = tracer
        self._usage = usage or UsageCounters()
        self._admission = Admission(settings.limits, caller_limits)
        self._log = RequestLog()
        self._counters_by_tenant = self._usage.by_tenant
        self.draining = asyncio.Event()
        self._sockets = OpenSockets()
        self._cors_headers: list[tuple[bytes, bytes]] = []
        if settings.cors_origin:
            self._cors_headers.append((b"access-control-allow-origin", settings.cors_origin.encode()))
            self._cors_headers.append((b"access-control-expose-headers", b"*"))
            if settings.cors_origin != "*":
                self._cors_headers.append((b"vary", b"Origin"))
        self.has_callbacks = True  # tests run over both paths
        self._metrics = RequestMetrics()

    def drain(self) -> None:
        self.draining.set()
        self._sockets.drain()

    def is_websocket(self, path: str) -> bool:
        """True for a path whose handshakes the server must not serve as plain HTTP."""
        return self._router.is_websocket(path)

    @property
    def open_requests(self) -> int:
        return self._usage.open_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request; the server is configured for HTTP only."""
        started = time.perf_counter()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        request_id = _request_id(headers)
        method = scope["method"]
        route: Route | None = None
        request: Request | None = None
        counters: TenantCounters | None = None
        status = 0
        self._usage.open_requests += 1
        try:
            try:
                if method == "OPTIONS":
                    self._check_origin(headers)
                    response = self._preflight(scope["path"])
                else:
                    route, request = self._find(scope, headers, request_id, receive)
                    if request.span is not None:
                        current_span.set(request.span)
                    if not route.is_unlimited:
                        request.slot = self._admission.open()
                    response = await self._handle(route, request, scope)
            except ClientDisconnected:
                status = 499
                return
            except Exception as error:
                sections = self._router.sections if route is None and isinstance(error, RouteNotFound) else []
                if sections and method == "GET" and prefers_html(headers):
                    response = page_response(missing_page(scope["path"], sections), 404)
                else:
                    response = self._error_response(error, request_id, route, request)
            status = response.status
            counters = self._counters_of(request, route)
            if response.socket is not None and request is not None:
                self._sockets.open(response, request_id, request, scope)
                return
            try:
                await self._send(response, request_id, method, request, counters, receive, send)
            except Exception:  # the headers are sent: closing the connection is the only way to signal the error
                self._log.abort(request_id, request)
                raise
        finally:
            counters = counters or self._counters_of(request, route)
            self._end(counters, request, route, method, status, time.perf_counter() - started, request_id)

    def _end(
        self,
        counters: TenantCounters,
        request: Request | None,
        route: Route | None,
        method: str,
        status: int,
        seconds: float,
        request_id: str,
    ) -> None:
        """Release what the request holds, and count it."""
        self._usage.open_requests -= 1
        if request is not None and request.slot is not None:
            request.slot.close()
        counters.requests += 1
        if request is not None and request.body_bytes:
            counters.bytes_in += request.body_bytes
        if status >= 400:
            counters.client_errors += status < 500
            counters.server_errors += status >= 500
        operation = request.operation if request is not None else ""
        self._observe(method, operation or (route.path if route else ""), status, seconds, request_id, request)
        if request is not None and request.span is not None:
            end_span(request.span, request, route, status)

    def _error_response(self, error: Exception, request_id: str, route: Route | None, request: Request | None) -> Response:
        if isinstance(error, PostroadError):
            if error.status >= 500:
                self._log.failure(error, request_id, request)
            return error_response(error, route, request, request_id)
        # A bug: the response reveals the request id only.
        self._log.crash(error, request_id, request)
        return error_response(PostroadError("see the logs for this request id"), route, request, request_id)

    # Requests without a task

    def has_callback(self, scope: Scope, bytes_max: int) -> bool:
        """True if `start_callback` may serve the request once its body has arrived, of at most `bytes_max` as declared."""
        length = scope["headers"].get(b"content-length", b"0")
        if not self.has_callbacks or not length.isdigit() or int(length) > bytes_max:
            return False
        try:
            return self._route(scope)[0].prepare is not None
        except PostroadError:
            return False

    def start_callback(self, scope: Scope, body: bytes, cycle: ResponseCycle) -> bool:
        """Serve a request with callbacks, if its route can prepare it (`Route.prepare`). `body` is complete.

        False before any effect if the request is unusual or invalid: then `__call__` must serve it, and makes the error.
        """
        started = time.perf_counter()
        headers: dict[bytes, bytes] = scope["headers"]
        try:
            prepare = self._route(scope)[0].prepare
            is_plain = b"content-encoding" not in headers and len(body) <= self._settings.body_bytes_max
            if prepare is None or not self.has_callbacks or not is_plain or self._admission.is_full:
                return False
            route, request = self._find(scope, headers, _request_id(headers), cycle.receive)
            self._set_origin(request, scope)
            if route.scope is not None:
                request._caller = self._authenticator.authenticate_now(request, route)
                if request._caller is None:
                    return False
            decode_body(request, route, body)
            start = prepare(request)
            if start is None or request._caller is None:
                return False
            request.slot = self._admission.open()
        except PostroadError:
            return False
        self._usage.open_requests += 1
        respond = partial(self._respond, request, route, cycle, started)
        try:
            self._admit_caller(request, route)
            request.slot.add_body(len(body))
            start(respond)
        except Exception as error:  # not at once: the connection may have to start its next request after the response
            asyncio.get_running_loop().call_soon(respond, error)
        return True

    def _respond(
        self, request: Request, route: Route, cycle: ResponseCycle, started: float, outcome: Response | Exception
    ) -> None:
        """Send the response of a request that was started with callbacks. Does not raise."""
        response = outcome if isinstance(outcome, Response) else self._error_response(outcome, request.request_id, route, request)
        counters = self._counters_of(request, route)
        try:
            body = response.encoded()
            if len(body) > SLICE_BYTES_MAX or not cycle.is_writable:
                cycle.start_task(self._respond_in_task(request, route, cycle, started, response))
                return
            cycle.send_whole(response.status, self._headers_of(response, request.request_id, len(body)), body)
            counters.bytes_out += len(body)
        except Exception:
            self._log.abort(request.request_id, request)
            cycle.abort()
        seconds = time.perf_counter() - started
        self._end(counters, request, route, request.method, response.status, seconds, request.request_id)

    async def _respond_in_task(
        self, request: Request, route: Route, cycle: ResponseCycle, started: float, response: Response
    ) -> None:
        """Send a response that is large, or has to wait until the client reads."""
        counters = self._counters_of(request, route)
        try:
            await self._send(response, request.request_id, request.method, request, counters, cycle.receive, cycle.send)
        except Exception:
            self._log.abort(request.request_id, request)
            cycle.abort()
        finally:
            seconds = time.perf_counter() - started
            self._end(counters, request, route, request.method, response.status, seconds, request.request_id)

    def _check_origin(self, headers: dict[bytes, bytes]) -> None:
        """Raises MisdirectedRequest, Forbidden."""
        if self._settings.is_open:
            check_loopback(headers, self._settings.cors_origin.encode())

    def _route(self, scope: Scope) -> tuple[Route, dict[str, str]]:
        """Raises RouteNotFound, MethodNotAllowed, InvalidParameter."""
        if self._protocol is not None and is_protocol_request(scope["method"], scope["path"], scope["query_string"]):
            return self._protocol, {}
        return self._router.find(scope["method"], scope["path"])

    def _find(self, scope: Scope, headers: dict[bytes, bytes], request_id: str, receive: Receive) -> tuple[Route, Request]:
        """Raises RouteNotFound, MethodNotAllowed, InvalidParameter, MisdirectedRequest, Forbidden."""
        self._check_origin(headers)
        route, parameters = self._route(scope)
        if "project" in parameters:
            project_name(parameters["project"])
        request = Request(scope["method"], scope["path"], request_id, headers, parameters, receive, self.draining)
        if self._tracer is not None:
            request.span = begin_span(self._tracer, request, route)
        return route, request

    async def _handle(self, route: Route, request: Request, scope: Scope) -> Response:
        self._set_origin(request, scope)
        if route.body_ids:
            limit = min(self._settings.anonymous_body_bytes_max, self._settings.body_bytes_max)
            request.read_body = partial(self._receive_body, request, route, limit)
        if route.scope is not None:
            request._caller = await self._authenticator.authenticate(request, route)
            request._watch = self._authenticator.watch
        if route.is_websocket:
            check_origin(request.headers, self._settings.cors_origin, request.scheme)
            accept = check_handshake(request.headers if scope.get("switch") is not None else {})
            request.reauthenticate = renewal(self._authenticator.authenticate, request, route)
        body_bytes_max = self._admit_caller(request, route)
        if route.query is not None:
            request.query = parse_query(scope["query_string"], route.query, has_bearer=route.resource is not None)
        if request.body_bytes is None and (route.body is not None or route.raw_body):
            await self._receive_body(request, route, body_bytes_max)
        response = await route.handler(request)
        if (isinstance(response.body, AsyncIterator) or response.socket is not None) and request.slot is not None:
            request.slot.begin_live()
        if response.socket is not None:
            response.headers.append((b"sec-websocket-accept", accept))
        return response

    def _set_origin(self, request: Request, scope: Scope) -> None:
        client = scope.get("client")
        request.client = client[0] if client else ""
        request.server = scope.get("server") or request.server
        request.scheme = scope.get("scheme") or request.scheme
        if self._settings.trusted_proxies:
            forwarded = request.header(b"x-forwarded-for")
            request.client = client_address(request.client, forwarded, self._settings.trusted_proxies)
        request.query_string = scope["query_string"]

    async def _receive_body(self, request: Request, route: Route, limit: int) -> None:
        """Read the body and decode it to the route's type."""
        if route.body is not None and route.empty_body is None:
            check_body_media(request, route)
        decode_body(request, route, await read_body(request, limit))

    def _admit_caller(self, request: Request, route: Route) -> int:
        """Apply the limits that depend on the caller, and return that of the body, which is not read yet. Raises RateLimited."""
        slot, caller, settings = request.slot, request._caller, self._settings
        if slot is None:
            return settings.anonymous_body_bytes_max
        if caller is not None:
            if caller.credential is _ANONYMOUS:
                slot.assign_address(request.client)
            if not caller.is_platform:
                slot.assign_caller(caller)
            return settings.body_bytes_max
        tenant = route.token_tenant(request) if route.token_tenant is not None else None
        if tenant is not None:
            slot.assign_tenant(tenant)
            return settings.body_bytes_max
        slot.assign_address(request.client)
        if route.accepts_large_body is not None and route.accepts_large_body(request):
            return settings.body_bytes_max
        return min(settings.anonymous_body_bytes_max, settings.body_bytes_max)

    def _counters_of(self, request: Request | None, route: Route | None) -> TenantCounters:
        """The counters of the caller's tenant, or of `ANONYMOUS`."""
        if request is None or request._caller is None or route is None or route.scope is _PLATFORM:
            return self._counters_by_tenant[ANONYMOUS]
        return self._counters_by_tenant[request._caller.tenant]

    def _preflight(self, path: str) -> Response:
        if self._protocol is not None and is_protocol_path(path):
            methods = b"GET, HEAD, OPTIONS, POST"
        else:
            methods = ", ".join(self._router.methods(path)).encode()
        if not methods:
            raise RouteNotFound(f"there is no route {path[:200]}")
        response = Response(status=204, headers=[(b"allow", methods)])
        if self._settings.cors_origin:
            response.headers += [
                (b"access-control-allow-methods", methods),
                (b"access-control-allow-headers", _CORS_HEADERS),
                (b"access-control-max-age", b"86400"),
            ]
        return response

    def rejection(self, problem: PostroadError, scope: Scope | None = None) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Headers and body of an error that no handler sees, such as bytes that are not HTTP.

        `scope`: of the request whose body is the cause; the error has the form of its protocol.
        """
        request_id = new_request_id() if scope is None else _request_id(scope["headers"])
        route, request = None, None
        if scope is not None and self._protocol is not None:
            method, path, query = scope["method"], scope["path"], scope["query_string"]
            if is_protocol_request(method, path, query):
                route, request = self._protocol, Request(method, path, request_id, scope["headers"], {}, no_body, self.draining)
        response = error_response(problem, route, request, request_id)
        body = response.encoded()
        headers = [*API, *self._cors_headers, (b"x-request-id", request_id.encode()), *response.headers]
        return [*headers, (b"content-type", response.media), (b"content-length", str(len(body)).encode())], body

    async def _send(
        self,
        response: Response,
        request_id: str,
        method: str,
        request: Request | None,
        counters: TenantCounters,
        receive: Receive,
        send: Send,
    ) -> None:
        if isinstance(response.body, AsyncIterator):
            if request is None:
                raise TypeError("only a handler can return a stream")
            headers = self._headers_of(response, request_id, None)
            await send_stream(response, headers, request, counters, receive, send)
            return
        slices = await response.slices()
        size = len(slices[0]) if len(slices) == 1 else sum(map(len, slices))
        headers = self._headers_of(response, request_id, size)
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        if method == "HEAD":
            slices, size = [b""], 0
        counters.bytes_out += size
        if len(slices) > 1:
            await self._send_slices(slices, size, request, send)
        else:
            await send({"type": "http.response.body", "body": slices[0]})

    def _headers_of(self, response: Response, request_id: str, size: int | None) -> list[tuple[bytes, bytes]]:
        """`size`: of the body; None if it is not known."""
        security = response.security or default_headers(response.media)
        headers = [*security, *self._cors_headers, (b"x-request-id", request_id.encode()), *response.headers]
        if size is None:
            headers.append((b"content-type", response.media))
        elif size or response.status not in (204, 304):
            headers += [(b"content-type", response.media), (b"content-length", b"%d" % size)]
        return headers

    async def _send_slices(self, slices: list[bytes], size: int, request: Request | None, send: Send) -> None:
        """Send a large body at the client's pace; other requests go on after each slice."""
        if request is not None and request.slot is not None:
            request.slot.add_response(size)
        slices.reverse()
        while slices:
            part = slices.pop()
            await send({"type": "http.response.body", "body": part, "more_body": bool(slices)})
            await asyncio.sleep(0)

    def _observe(self, method: str, path: str, status: int, seconds: float, request_id: str, request: Request | None) -> None:
        self._metrics.observe(method, path, status, seconds)
        if self._settings.access_log:
            self._log.access(method, path, status, seconds, request_id, request)


def _request_id(headers: dict[bytes, bytes]) -> str:
    """That of the client, if it is valid, else a new one."""
    given = headers.get(b"x-request-id")
    return given.decode() if given and _REQUEST_ID.fullmatch(given) else new_request_id()
