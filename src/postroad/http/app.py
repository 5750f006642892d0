"""The ASGI application: routing, authentication, decoding, response. Raw ASGI for throughput (decision 0005)."""

import asyncio
import re
import time
import traceback
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import structlog

from postroad.http import metrics
from postroad.http.admission import Admission, AdmissionLimits, CallerLimits
from postroad.http.client_ip import Network, client_address
from postroad.http.loopback import check_loopback
from postroad.http.open_sockets import OpenSockets
from postroad.http.problems import problem_response
from postroad.http.query import parse_query
from postroad.http.request import ClientDisconnected, Receive, Request, RevocationWatch, Scope, Send
from postroad.http.response import Response
from postroad.http.routing import Route, Router
from postroad.http.security_headers import API, default_headers
from postroad.http.websocket_frames import check_handshake, check_origin
from postroad.kernel import json
from postroad.kernel.errors import (
    MalformedJson,
    Overloaded,
    PostroadError,
    RouteNotFound,
    TooLarge,
    Unauthenticated,
    UnsupportedMediaType,
)
from postroad.kernel.identity import Caller, Credential, RouteRequirement
from postroad.kernel.ids import new_request_id
from postroad.kernel.json_keys import JsonShape, duplicate_key
from postroad.kernel.log_limit import LogLimit
from postroad.kernel.names import project_name
from postroad.kernel.usage_counters import ANONYMOUS, TenantCounters, UsageCounters

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_CORS_HEADERS = b"*, Authorization, Content-Type, Idempotency-Key, X-Request-Id, X-Postroad-Tenant, Last-Event-ID, traceparent"
_PLATFORM = RouteRequirement.PLATFORM  # an attribute lookup in the enum would cost more than the rest of counting
_ANONYMOUS = Credential.NONE
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

log = structlog.get_logger("postroad.http")


class Authenticator(Protocol):
    """Authenticates and authorizes requests."""

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
    """Serves the routes of a `Router`. `drain` ends long responses; new requests are served until the socket closes."""

    def __init__(
        self,
        router: Router,
        authenticator: Authenticator,
        settings: AppSettings,
        usage: UsageCounters | None = None,
        caller_limits: CallerLimits | None = None,
    ) -> None:
        self._router, self._authenticator, self._settings = router, authenticator, settings
        self._usage = usage or UsageCounters()
        self._admission = Admission(settings.limits, caller_limits)
        self._overload_log_limit = LogLimit()
        self._counters_by_tenant = self._usage.by_tenant
        self.draining = asyncio.Event()
        self._sockets = OpenSockets()
        self._cors_headers: list[tuple[bytes, bytes]] = []
        if settings.cors_origin:
            self._cors_headers.append((b"access-control-allow-origin", settings.cors_origin.encode()))
            self._cors_headers.append((b"access-control-expose-headers", b"*"))
            if settings.cors_origin != "*":
                self._cors_headers.append((b"vary", b"Origin"))
        self._request_metrics: dict[tuple[str, str, int], Any] = {}
        self._duration_metrics: dict[tuple[str, str], Any] = {}

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
        given_id = headers.get(b"x-request-id")
        request_id = given_id.decode() if given_id and _REQUEST_ID.fullmatch(given_id) else new_request_id()
        method = scope["method"]
        route: Route | None = None
        request: Request | None = None
        counters: TenantCounters | None = None
        status = 0
        self._usage.open_requests += 1
        try:
            try:
                if self._settings.is_open:
                    check_loopback(headers, self._settings.cors_origin.encode())
                if method == "OPTIONS":
                    response = self._preflight(scope["path"])
                else:
                    route, parameters = self._router.find(method, scope["path"])
                    if "project" in parameters:
                        project_name(parameters["project"])
                    request = Request(method, scope["path"], request_id, headers, parameters, receive, self.draining)
                    if not route.is_unlimited:
                        request.slot = self._admission.open()
                    response = await self._handle(route, request, scope)
            except PostroadError as problem:
                if problem.status >= 500:
                    self._log_failure(problem, request_id)
                response = problem_response(problem, request_id)
            except ClientDisconnected:
                status = 499
                return
            except Exception:  # a bug: the response reveals the request id only
                log.error("request_crashed", request_id=request_id, error=traceback.format_exc())
                response = problem_response(PostroadError("see the logs for this request id"), request_id)
            status = response.status
            counters = self._counters_of(request, route)
            if response.socket is not None and request is not None:
                self._sockets.open(response, request_id, request, scope)
                return
            try:
                await self._send(response, request_id, method, request, counters, receive, send)
            except Exception:  # the headers are sent: closing the connection is the only way to signal the error
                log.error("response_aborted", request_id=request_id, error=traceback.format_exc())
                raise
        finally:
            self._usage.open_requests -= 1
            if request is not None and request.slot is not None:
                request.slot.close()
            counters = counters or self._counters_of(request, route)
            counters.requests += 1
            if request is not None and request.body_bytes:
                counters.bytes_in += request.body_bytes
            if status >= 400:
                counters.client_errors += status < 500
                counters.server_errors += status >= 500
            self._observe(method, route.path if route else "", status, time.perf_counter() - started, request_id)

    async def _handle(self, route: Route, request: Request, scope: Scope) -> Response:
        client = scope.get("client")
        request.client = client[0] if client else ""
        request.server = scope.get("server") or request.server
        request.scheme = scope.get("scheme") or request.scheme
        if self._settings.trusted_proxies:
            forwarded = request.header(b"x-forwarded-for")
            request.client = client_address(request.client, forwarded, self._settings.trusted_proxies)
        request.query_string = scope["query_string"]
        if route.body_ids:
            limit = min(self._settings.anonymous_body_bytes_max, self._settings.body_bytes_max)
            request.read_body = partial(self._receive_body, request, route, limit)
        if route.scope is not None:
            request._caller = await self._authenticator.authenticate(request, route)
            request._watch = self._authenticator.watch
        if route.is_websocket:
            check_origin(request.headers, self._settings.cors_origin, request.scheme)
            accept = check_handshake(request.headers if scope.get("switch") is not None else {})
            request.reauthenticate = partial(self._reauthenticate, request, route)
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

    async def _reauthenticate(self, request: Request, route: Route, credential: str) -> Caller:
        """The caller of another credential for the same route and tenant."""
        headers = {**request.headers, b"authorization": b"Bearer " + credential.encode()}
        caller = await self._authenticator.authenticate(replace(request, headers=headers, query_string=b""), route)
        if caller.tenant != request.caller.tenant:
            raise Unauthenticated("the credential is of another tenant")
        return caller

    async def _receive_body(self, request: Request, route: Route, limit: int) -> None:
        """Read the body and decode it to the route's type."""
        is_optional = route.empty_body is not None
        if route.body is not None and not is_optional:
            _check_json(request)
        body = await self._read_body(request, limit)
        request.body_bytes = len(body)
        if route.body is None or route.raw_body:
            request.body = body
            return
        if is_optional and body:
            _check_json(request)  # clients add a content type of their own to an empty body
        if is_optional and not body:
            request.body = route.empty_body
            return
        request.body = json.decode(route.body_decoder, body)
        if route.body_shape is not None:
            _check_unique_keys(body, route.body_shape)

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
        return min(settings.anonymous_body_bytes_max, settings.body_bytes_max)

    def _log_failure(self, problem: PostroadError, request_id: str) -> None:
        suppressed = self._overload_log_limit.admit() if isinstance(problem, Overloaded) else 0
        if suppressed is not None:
            more = {"suppressed": suppressed} if suppressed else {}
            log.warning("request_failed", request_id=request_id, code=problem.code, detail=problem.detail, **more)

    def _counters_of(self, request: Request | None, route: Route | None) -> TenantCounters:
        """The counters of the caller's tenant, or of `ANONYMOUS`."""
        if request is None or request._caller is None or route is None or route.scope is _PLATFORM:
            return self._counters_by_tenant[ANONYMOUS]
        return self._counters_by_tenant[request._caller.tenant]

    async def _read_body(self, request: Request, limit: int) -> bytes:
        """The body, which nearly always is one chunk. The server enforces the time limit. Raises UnsupportedMediaType, TooLarge,
        Overloaded, RateLimited."""
        coding = request.headers.get(b"content-encoding")
        if coding is not None and coding.strip().lower() != b"identity":
            raise UnsupportedMediaType(f"send the body without Content-Encoding, not {coding[:100].decode('latin-1')}")
        length = request.headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length) > limit:
            raise TooLarge(f"the body has {int(length)} bytes; {limit} is the limit")
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnected
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise TooLarge(f"the body exceeds {limit} bytes")
            if request.slot is not None:
                request.slot.add_body(len(chunk))
            if not message.get("more_body"):
                return b"".join([*chunks, chunk]) if chunks else chunk
            chunks.append(chunk)

    def _preflight(self, path: str) -> Response:
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

    def rejection(self, problem: PostroadError) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """Headers and body of an error that precedes a request, such as bytes that are not HTTP."""
        request_id = new_request_id()
        response = problem_response(problem, request_id)
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
        security = response.security or default_headers(response.media)
        headers = [*security, *self._cors_headers, (b"x-request-id", request_id.encode()), *response.headers]
        if isinstance(response.body, AsyncIterator):
            headers.append((b"content-type", response.media))
            if request is None:
                raise TypeError("only a handler can return a stream")
            await self._send_stream(response, headers, request, counters, receive, send)
            return
        slices = await response.slices()
        size = len(slices[0]) if len(slices) == 1 else sum(map(len, slices))
        if size or response.status not in (204, 304):
            headers += [(b"content-type", response.media), (b"content-length", str(size).encode())]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        if method == "HEAD":
            slices, size = [b""], 0
        counters.bytes_out += size
        if len(slices) > 1:
            await self._send_slices(slices, size, request, send)
        else:
            await send({"type": "http.response.body", "body": slices[0]})

    async def _send_slices(self, slices: list[bytes], size: int, request: Request | None, send: Send) -> None:
        """Send a large body at the client's pace; other requests go on after each slice."""
        if request is not None and request.slot is not None:
            request.slot.add_response(size)
        slices.reverse()
        while slices:
            part = slices.pop()
            await send({"type": "http.response.body", "body": part, "more_body": bool(slices)})
            await asyncio.sleep(0)

    async def _send_stream(
        self,
        response: Response,
        headers: list[tuple[bytes, bytes]],
        request: Request,
        counters: TenantCounters,
        receive: Receive,
        send: Send,
    ) -> None:
        """Send chunks until the source ends, the client disconnects, or the caller's credential is revoked."""
        chunks = response.body
        if not isinstance(chunks, AsyncIterator):
            raise TypeError("not a stream")
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        metrics.live_readers.inc()

        async def send_chunks() -> None:
            if request.method != "HEAD":
                async for chunk in chunks:
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    counters.bytes_out += len(chunk)
            await send({"type": "http.response.body", "body": b""})

        async def wait_for_disconnect() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        sending, disconnected = asyncio.ensure_future(send_chunks()), asyncio.ensure_future(wait_for_disconnect())
        try:
            with request.watch_revocation() as revoked:
                await asyncio.wait({sending, disconnected, revoked}, return_when=asyncio.FIRST_COMPLETED)
                is_revoked = revoked.done()
            if sending.done():
                sending.result()
            elif is_revoked:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
                await send({"type": "http.response.body", "body": b""})
        finally:
            metrics.live_readers.dec()
            disconnected.cancel()
            sending.cancel()
            await asyncio.gather(sending, disconnected, return_exceptions=True)
            close = getattr(chunks, "aclose", None)
            if close is not None:
                await close()

    def _observe(self, method: str, path: str, status: int, seconds: float, request_id: str) -> None:
        if method not in _METHODS:
            method = "other"
        key = (method, path, status)
        counter = self._request_metrics.get(key)
        if counter is None:
            counter = self._request_metrics[key] = metrics.requests.labels(method, path or "none", str(status))
        counter.inc()
        duration = self._duration_metrics.get((method, path))
        if duration is None and path:
            duration = self._duration_metrics[method, path] = metrics.request_seconds.labels(method, path)
        if duration is not None:
            duration.observe(seconds)
        if self._settings.access_log:
            log.info("request", request_id=request_id, method=method, route=path, status=status, ms=round(seconds * 1000, 2))


def _check_unique_keys(body: bytes, shape: JsonShape) -> None:
    """Raises MalformedJson. The body was decoded, so it is valid JSON of this shape."""
    key = duplicate_key(body, shape)
    if key is not None:
        raise MalformedJson(f"the key {key[:100]!r} is given twice in one object")


def _check_json(request: Request) -> None:
    """Raises UnsupportedMediaType."""
    media = request.headers.get(b"content-type")
    if media is not None and not _is_json(media):
        raise UnsupportedMediaType(f"send application/json, not {media[:100].decode('latin-1')}")


def _is_json(media: bytes) -> bool:
    kind = media.partition(b";")[0].strip().lower()
    return kind == b"application/json" or kind.endswith(b"+json")
