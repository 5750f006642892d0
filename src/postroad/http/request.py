"""A request as handlers see it."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from postroad.kernel.context import RequestContext
from postroad.kernel.errors import Draining, Unauthenticated
from postroad.kernel.identity import Caller

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Asgi = Callable[[Scope, Receive, Send], Awaitable[None]]
T = TypeVar("T")

_TRACEPARENT = re.compile(rb"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class RevocationWatch(Protocol):
    """What `Request.watching` needs of whoever lets callers in."""

    ended: "asyncio.Future[None]"

    def close(self) -> None: ...


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


@dataclass(slots=True)
class Request:
    """`body` and `query` are of the types that the route declares; `caller` is set on routes that have a scope."""

    method: str
    path: str
    request_id: str
    headers: dict[bytes, bytes]
    parameters: dict[str, str]
    receive: Receive
    draining: asyncio.Event
    client: str = ""
    query_string: bytes = b""
    body: Any = None
    query: Any = None
    _caller: Caller | None = None
    _watch: "Callable[[Caller], RevocationWatch] | None" = None

    @property
    def caller(self) -> Caller:
        if self._caller is None:
            raise RuntimeError("the route has no scope, so nobody was authenticated")
        return self._caller

    @property
    def context(self) -> RequestContext:
        return RequestContext(self.caller, self.request_id, self.client, self.traceparent)

    def header(self, name: bytes) -> str | None:
        """A header by its lower-case name."""
        value = self.headers.get(name)
        return value.decode("latin-1") if value is not None else None

    def base_url(self, public_url: str | None) -> str:
        """How the client reaches this installation: as the operator says, or else by the host that it named."""
        return (public_url or f"http://{self.header(b'host') or 'localhost'}").rstrip("/")

    @property
    def traceparent(self) -> str | None:
        """The W3C trace that the request belongs to, if it names one in the right form."""
        value = self.headers.get(b"traceparent")
        return value.decode() if value is not None and _TRACEPARENT.fullmatch(value) else None

    @contextmanager
    def watching(self) -> "Iterator[asyncio.Future[None]]":
        """What is done once the caller's right to the answer has ended: its key was revoked or its time is over."""
        if self._watch is None or self._caller is None:
            yield asyncio.get_running_loop().create_future()
            return
        watch = self._watch(self._caller)
        try:
            yield watch.ended
        finally:
            watch.close()

    async def cancel_on_disconnect(self, work: Coroutine[Any, Any, T]) -> T:
        """The work's result. If the client hangs up first, its key is revoked, or the process is asked to stop, the work is
        cancelled: ClientGone, Unauthenticated or Draining is raised."""
        working = asyncio.ensure_future(work)
        ends: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(self._disconnected()),
            asyncio.ensure_future(self.draining.wait()),
        ]
        try:
            with self.watching() as ended:
                await asyncio.wait({working, *ends, ended}, return_when=asyncio.FIRST_COMPLETED)
                is_ended = ended.done()
            if working.done():
                return working.result()
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            if ends[0].done():
                raise ClientGone
            if is_ended:
                raise Unauthenticated("the key was revoked meanwhile")
            raise Draining("the process is stopping", retry_after=1)
        finally:
            for end in ends:
                end.cancel()
            working.cancel()

    async def _disconnected(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass
