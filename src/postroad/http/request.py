"""Requests, as handlers receive them."""

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from postroad.http.admission import RequestSlot
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Draining, PostroadError, Unauthenticated
from postroad.kernel.identity import MISSING_CREDENTIALS_HINT, Caller
from postroad.kernel.spans import Span, parse_traceparent

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
T = TypeVar("T")

_LOOPBACK_HOST = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?")


class RevocationWatch(Protocol):
    """Resolves `ended` when a caller's credential is revoked or expires. Must be closed."""

    ended: "asyncio.Future[None]"

    def close(self) -> None: ...


class ResponseCycle(Protocol):
    """The connection's part of a request (`request_cycle.py`)."""

    async def receive(self) -> Scope: ...
    async def send(self, message: Scope) -> None: ...

    @property
    def is_writable(self) -> bool:
        """False while the client does not read."""

    def send_whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a response at once. The client may have closed the connection."""

    def start_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the rest of the request in a task."""

    def abort(self) -> None:
        """Close the connection without a response."""


class ClientDisconnected(Exception):
    """The client closed its connection before the response."""


async def no_body() -> MutableMapping[str, Any]:
    """`receive` of a request whose connection has another use now."""
    return {"type": "http.disconnect"}


async def _no_body() -> None:
    """Of a route whose body has no ids."""


def _no_watch(_caller: Caller) -> None:
    """Of a caller whose credential cannot be revoked."""


def _missing_credentials() -> PostroadError:
    return Unauthenticated(MISSING_CREDENTIALS_HINT)


@dataclass(slots=True)
class Request:
    """One request. `body` and `query` have the types that the route declares; `caller` is set on routes with a scope.

    `refusal` makes the error for an anonymous caller that needs credentials, and counts it.
    """

    method: str
    path: str
    request_id: str
    headers: dict[bytes, bytes]
    parameters: dict[str, str]
    receive: Receive
    draining: asyncio.Event
    client: str = ""
    server: tuple[str, int | None] = ("127.0.0.1", None)
    scheme: str = "http"
    query_string: bytes = b""
    body: Any = None
    query: Any = None
    body_bytes: int | None = None  # length of the body; None until it is read
    slot: RequestSlot | None = None  # None on routes without limits
    refusal: Callable[[], PostroadError] = _missing_credentials
    read_body: "Callable[[], Awaitable[None]]" = _no_body  # for authentication that depends on the body
    reauthenticate: "Callable[[str], Awaitable[Caller]] | None" = None  # on a WebSocket, with the text of another credential
    operation: str = ""  # for metrics, where one route serves several operations
    span: Span | None = None  # None unless the request is traced
    _caller: Caller | None = None
    _watch: "Callable[[Caller], RevocationWatch] | None" = None

    @property
    def caller(self) -> Caller:
        if self._caller is None:
            raise RuntimeError("the route has no scope, so the request was not authenticated")
        return self._caller

    def identify(self, caller: Caller, watch: "Callable[[Caller], RevocationWatch]") -> None:
        """Set the caller, which a handler has authenticated itself, and apply its limits. Raises RateLimited."""
        self._caller, self._watch = caller, watch
        if self.slot is not None and not caller.is_platform:
            self.slot.identify(caller)

    @property
    def context(self) -> RequestContext:
        return RequestContext(self.caller, self.request_id, self.client, self.traceparent, self.span)

    def header(self, name: bytes) -> str | None:
        """The value of a header, given its lower-case name."""
        value = self.headers.get(name)
        return value.decode("latin-1") if value is not None else None

    def url(self, public_url: str | None) -> str:
        """The URL of the request as its client addressed it. For this client only: it chose the `Host` header."""
        return (public_url or f"{self.scheme}://{self.header(b'host') or 'localhost'}").rstrip("/") + self.path

    def base_url(self, public_url: str | None) -> str:
        """The URL of this installation for others than the client: `public_url`, else the address that the client connected to.

        The client chooses the `Host` header, so it counts only if both are on this machine and it names this machine.
        """
        if public_url:
            return public_url.rstrip("/")
        address, port = self.server
        host = self.header(b"host") or ""
        if _is_loopback(address) and _LOOPBACK_HOST.fullmatch(host):
            return f"{self.scheme}://{host}"
        named = f"[{address}]" if ":" in address else address
        default_port = 443 if self.scheme == "https" else 80
        return f"{self.scheme}://{named}" if port in (None, default_port) else f"{self.scheme}://{named}:{port}"

    @property
    def traceparent(self) -> str | None:
        """The W3C trace context that what the request does belongs to: its span if it is traced, else as the client sent it.

        None if that is missing or malformed.
        """
        if self.span is not None:
            return self.span.traceparent
        value = self.headers.get(b"traceparent")
        if value is None:
            return None
        text = value.decode("latin-1")
        return None if parse_traceparent(text) is None else text

    @property
    def watch(self) -> "Callable[[Caller], RevocationWatch | None]":
        """Watches a caller's credential for longer than the request lasts, and keeps nothing of the request. None if it cannot be
        revoked. Must be closed."""
        return _no_watch if self._watch is None else self._watch

    @contextmanager
    def watch_revocation(self) -> "Iterator[asyncio.Future[None]]":
        """A future that is done once the caller's credential is revoked or has expired."""
        if self._watch is None or self._caller is None:
            yield asyncio.get_running_loop().create_future()
            return
        watch = self._watch(self._caller)
        try:
            yield watch.ended
        finally:
            watch.close()

    async def cancel_on_disconnect(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work. Cancels it and raises ClientDisconnected, Unauthenticated or Draining if the client
        disconnects, its credential is revoked, or the process shuts down first.

        Meanwhile the request counts as a live connection. Raises Overloaded, RateLimited.
        """
        try:
            if self.slot is not None:
                self.slot.begin_live()
        except PostroadError:
            work.close()
            raise
        working = asyncio.ensure_future(work)
        ends: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._disconnected()),
            asyncio.ensure_future(self.draining.wait()),
        ]
        try:
            with self.watch_revocation() as revoked:
                await asyncio.wait({working, *ends, revoked}, return_when=asyncio.FIRST_COMPLETED)
                is_revoked = revoked.done()
            if working.done():
                return working.result()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            if ends[0].done():
                raise ClientDisconnected
            if is_revoked:
                raise Unauthenticated("the key was revoked during the request")
            raise Draining("the process is shutting down", retry_after=1)
        finally:
            for end in ends:
                end.cancel()
            working.cancel()
            if self.slot is not None:
                self.slot.end_live()

    async def _disconnected(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False
