"""Execution of calls: retries, deadlines and errors, shared by a synchronous and an asynchronous transport.

The generator `_attempts` yields the next step (send or pause) and receives its outcome. It makes all decisions; the transports
only send and pause.
"""

import random
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.request import getproxies

import httpx
import msgspec

from postroad import __version__
from postroad.client.calls import OWN_TENANT, Call, Content, Pages, Poll
from postroad.client.decoding import decode
from postroad.client.encoding import segment
from postroad.client.problems import problem_of
from postroad.kernel.errors import PostroadError, Unreachable

if TYPE_CHECKING:
    from postroad.client.follower import LiveReader

T = TypeVar("T")

SLOW_SECONDS = 2.0  # `on_wait` is called if an attempt takes longer


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """`deadline` limits a call with all its attempts, plus the wait time of a long poll. Without a key calls are anonymous.

    `on_wait` is called with the cause before an attempt is repeated, and when a synchronous one takes long. `ca_file` has the
    certificates to verify the server with, in place of the usual ones.
    """

    url: str
    key: str | None
    tenant: str | None = None
    deadline: float = 30.0
    attempt_timeout: float = 10.0
    pause_first: float = 0.1
    pause_max: float = 2.0
    on_wait: Callable[[str], None] | None = None
    ca_file: str | None = None

    def __repr__(self) -> str:
        return f"ClientSettings(url={self.url!r}, key='***', tenant={self.tenant!r})"


@dataclass(frozen=True, slots=True)
class Send:
    call: Call[Any]
    timeout: float | httpx.Timeout


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


Outcome = httpx.Response | httpx.HTTPError | None
Attempts = Generator[Send | Pause, tuple[Outcome, float], T]
CallSequence = Generator[Call[Any], Any, T]  # calls in a row, each of which may depend on the results before it


def _attempts(call: Call[T], settings: ClientSettings, started: float) -> "Attempts[T]":
    """Send a call until it succeeds. Raises the error of the last response, or Unreachable if none came in time."""
    deadline = (started if call.started_at is None else call.started_at) + settings.deadline + call.wait_seconds
    now, pause = started, settings.pause_first
    while True:
        outcome, now = yield Send(call, min(settings.attempt_timeout + call.wait_seconds, max(0.001, deadline - now)))
        if isinstance(outcome, httpx.Response):
            problem = problem_of(call, outcome)
            if problem is None:
                return _result(call, outcome)
            may_repeat = problem.retryable and (call.is_repeatable or problem.code in _NOT_EXECUTED)
        else:
            problem = _unreachable(settings, outcome)
            is_unsent = isinstance(outcome, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
            may_repeat = (call.is_repeatable or is_unsent) and _tls_fault(outcome) is None
        wait = max(problem.retry_after or 0.0, pause * random.uniform(0.5, 1.0))  # noqa: S311  # jitter
        if not may_repeat or now + wait >= deadline:
            raise problem
        if settings.on_wait is not None:
            settings.on_wait(f"{problem.title}: {problem.detail or problem.code}")
        _, now = yield Pause(wait)
        pause = min(pause * 2, settings.pause_max)


# Retryable errors that guarantee that the request had no effect; after others, an unsafe call could be executed twice.
_NOT_EXECUTED = frozenset({"overloaded", "draining", "storage-full", "storage-quota-exceeded", "rate-limited", "registry-stale"})
_POLL_PAUSES = (0.1, 1.0)


def _polling(poll: Poll[T], started: float) -> "Generator[Call[T] | Pause, tuple[Any, float], T]":
    """Repeat a call until it is done. Raises TimeoutError after a last attempt at the deadline."""
    deadline = float("inf") if poll.timeout is None else started + poll.timeout
    pause, pause_max = _POLL_PAUSES
    while True:
        result, now = yield poll.call
        if poll.on_result is not None:
            poll.on_result(result)
        if poll.is_done(result):
            return result  # type: ignore[no-any-return]
        if now >= deadline:
            raise TimeoutError(f"not done after {poll.timeout} s; the operation may continue on the server")
        yield Pause(min(pause, deadline - now))
        pause = min(pause * 1.5, pause_max)


class _OwnTenant:
    """The tenant of the client: as configured, else the tenant of its credential, which does not change."""

    def __init__(self, settings: ClientSettings) -> None:
        self._tenant = settings.tenant

    def fill_in(self, call: Call[T]) -> "CallSequence[T]":
        """Execute the call with the tenant in its path, which `whoami` returns if it is unknown."""
        if self._tenant is None:
            from postroad.api.access import WhoAmI

            me: WhoAmI = yield Call(method="GET", path="/v1/whoami", response=WhoAmI)
            self._tenant = me.tenant
        path = call.path.replace(OWN_TENANT, segment(self._tenant))
        return (yield msgspec.structs.replace(call, path=path))  # type: ignore[no-any-return]


def _tls_fault(failure: httpx.HTTPError | None) -> str | None:
    """The error of a TLS handshake that would fail again, such as for a certificate that is not trusted."""
    text = str(failure or "")
    return text.partition("] ")[2].partition(" (_ssl")[0] or text if text.startswith("[SSL: ") else None


def _unreachable(settings: ClientSettings, failure: httpx.HTTPError | None) -> Unreachable:
    fault = _tls_fault(failure)
    if fault is not None:
        return Unreachable(f"no TLS connection to {settings.url}: {fault}; check the URL, and ca_file or POSTROAD_CA_FILE")
    return Unreachable(f"{settings.url} did not respond: {type(failure).__name__}")


def _result(call: Call[T], response: httpx.Response) -> T:
    if call.read is not None:
        return call.read(response)
    if call.response is None:
        return None  # type: ignore[return-value]
    return decode(response.content, call.response)  # type: ignore[no-any-return]


def _request(client: httpx.Client | httpx.AsyncClient, send: Send) -> httpx.Request:
    call = send.call
    content, media = None if call.body is None else msgspec.json.encode(call.body), "application/json"
    if isinstance(call.body, Content):
        content, media = call.body.data, call.body.media or ""
    headers = dict(call.headers) | ({"Content-Type": media} if content is not None and media else {})
    query = {name: _text(value) for name, value in call.query.items() if value is not None}
    return client.build_request(call.method, call.path, params=query, content=content, headers=headers, timeout=send.timeout)


def _stream_request(client: httpx.Client | httpx.AsyncClient, call: Call[Any], settings: ClientSettings) -> httpx.Request:
    """The request for server-sent events: the response has no time limit, but must not be silent for too long."""
    from postroad.client.follower import SILENCE_SECONDS

    return _request(client, Send(call, httpx.Timeout(settings.attempt_timeout, read=SILENCE_SECONDS)))


def _text(value: object) -> str | list[str]:
    """The text of a query parameter; of a sequence, one for each item."""
    if isinstance(value, list | tuple):
        return [str(one) for one in value]
    return str(value).lower() if isinstance(value, bool) else str(value)


def _client_arguments(settings: ClientSettings) -> dict[str, Any]:
    headers = {"User-Agent": f"postroad-python/{__version__}"}
    if settings.key is not None:
        headers["Authorization"] = f"Bearer {settings.key}"
    if settings.tenant is not None:
        headers["X-Postroad-Tenant"] = settings.tenant
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=100)
    arguments = {"base_url": settings.url, "headers": headers, "limits": limits}
    if settings.url.startswith("http://") and not getproxies():
        # Without TLS, loading the certificate authorities would waste 45 ms. This context trusts none.
        arguments["verify"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    elif settings.ca_file is not None:
        arguments["verify"] = _context_of(settings.ca_file)
    return arguments


def _context_of(ca_file: str) -> ssl.SSLContext:
    """Raises ValueError."""
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as exc:  # ssl.SSLError is one
        raise ValueError(f"cannot read certificates from {ca_file}: {exc.strerror or exc}") from exc


@contextmanager
def _slow_attempt(send: Send, settings: ClientSettings) -> Iterator[None]:
    """Call `on_wait` from a thread if the block takes long."""
    if settings.on_wait is None:
        yield
        return
    import threading

    timer = threading.Timer(SLOW_SECONDS + send.call.wait_seconds, settings.on_wait, [f"{settings.url} has not responded yet"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class SyncTransport:
    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._own_tenant = _OwnTenant(settings)
        self._client = httpx.Client(**_client_arguments(settings))

    def execute(self, call: Call[T]) -> T:
        if OWN_TENANT in call.path:
            return self.run_sequence(self._own_tenant.fill_in(call))
        attempts = _attempts(call, self.settings, time.monotonic())
        step = next(attempts)
        while True:
            outcome: Outcome = None
            if isinstance(step, Pause):
                time.sleep(step.seconds)
            else:
                try:
                    with _slow_attempt(step, self.settings):
                        outcome = self._client.send(_request(self._client, step))
                except httpx.HTTPError as exc:
                    outcome = exc
            try:
                step = attempts.send((outcome, time.monotonic()))
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]

    def iterate(self, pages: Pages[T]) -> Iterator[T]:
        page = self.execute(pages.call)
        while True:
            yield from pages.items(page)
            cursor = pages.cursor(page)
            if cursor is None:
                return
            page = self.execute(pages.next_call(cursor))

    def poll(self, poll: Poll[T]) -> T:
        polling = _polling(poll, time.monotonic())
        step = next(polling)
        while True:
            result = None
            if isinstance(step, Pause):
                time.sleep(step.seconds)
            else:
                result = self.execute(step)
            try:
                step = polling.send((result, time.monotonic()))
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]

    def run_sequence(self, sequence: CallSequence[T]) -> T:
        try:
            call = next(sequence)
            while True:
                try:
                    result = self.execute(call)
                except PostroadError as problem:
                    call = sequence.throw(problem)
                else:
                    call = sequence.send(result)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def follow(self, follower: "LiveReader[T]") -> "Generator[T, None, None]":
        while not follower.has_ended():
            try:
                if follower.reads_events:
                    with self._event_stream(follower) as pieces:
                        for piece in pieces:
                            yield from follower.on_data(piece)
                            if follower.has_ended():
                                return
                else:
                    yield from follower.on_chunk(self.execute(follower.next_call()))
                pause = follower.pause_seconds()
            except PostroadError as problem:
                pause = follower.pause_after(problem)
            time.sleep(pause)

    @contextmanager
    def _event_stream(self, follower: "LiveReader[Any]") -> Iterator[Iterator[bytes]]:
        call = follower.next_call()
        try:
            response = self._client.send(_stream_request(self._client, call, self.settings), stream=True)
            try:
                if response.status_code >= 400:
                    response.read()
                problem = problem_of(call, response)
                if problem is not None:
                    raise problem
                follower.on_open(response.headers)
                yield response.iter_bytes()
            finally:
                response.close()
        except httpx.HTTPError as exc:
            raise _unreachable(self.settings, exc) from exc

    def close(self) -> None:
        self._client.close()


class AsyncTransport:
    def __init__(self, settings: ClientSettings) -> None:
        from asyncio import sleep  # slow to import, and synchronous programs do not need it

        self._sleep = sleep
        self.settings = settings
        self._own_tenant = _OwnTenant(settings)
        self._client = httpx.AsyncClient(**_client_arguments(settings))

    async def execute(self, call: Call[T]) -> T:
        if OWN_TENANT in call.path:
            return await self.run_sequence(self._own_tenant.fill_in(call))
        attempts = _attempts(call, self.settings, time.monotonic())
        step = next(attempts)
        while True:
            outcome: Outcome = None
            if isinstance(step, Pause):
                await self._sleep(step.seconds)
            else:
                try:
                    outcome = await self._client.send(_request(self._client, step))
                except httpx.HTTPError as exc:
                    outcome = exc
            try:
                step = attempts.send((outcome, time.monotonic()))
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]

    async def iterate(self, pages: Pages[T]) -> AsyncIterator[T]:
        page = await self.execute(pages.call)
        while True:
            for item in pages.items(page):
                yield item
            cursor = pages.cursor(page)
            if cursor is None:
                return
            page = await self.execute(pages.next_call(cursor))

    async def poll(self, poll: Poll[T]) -> T:
        polling = _polling(poll, time.monotonic())
        step = next(polling)
        while True:
            result = None
            if isinstance(step, Pause):
                await self._sleep(step.seconds)
            else:
                result = await self.execute(step)
            try:
                step = polling.send((result, time.monotonic()))
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]

    async def run_sequence(self, sequence: CallSequence[T]) -> T:
        try:
            call = next(sequence)
            while True:
                try:
                    result = await self.execute(call)
                except PostroadError as problem:
                    call = sequence.throw(problem)
                else:
                    call = sequence.send(result)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    async def follow(self, follower: "LiveReader[T]") -> "AsyncGenerator[T, None]":
        while not follower.has_ended():
            try:
                if follower.reads_events:
                    async with self._event_stream(follower) as pieces:
                        async for piece in pieces:
                            for message in follower.on_data(piece):
                                yield message
                            if follower.has_ended():
                                return
                else:
                    for message in follower.on_chunk(await self.execute(follower.next_call())):
                        yield message
                pause = follower.pause_seconds()
            except PostroadError as problem:
                pause = follower.pause_after(problem)
            await self._sleep(pause)

    @asynccontextmanager
    async def _event_stream(self, follower: "LiveReader[Any]") -> AsyncIterator[AsyncIterator[bytes]]:
        call = follower.next_call()
        try:
            response = await self._client.send(_stream_request(self._client, call, self.settings), stream=True)
            try:
                if response.status_code >= 400:
                    await response.aread()
                problem = problem_of(call, response)
                if problem is not None:
                    raise problem
                follower.on_open(response.headers)
                yield response.aiter_bytes()
            finally:
                await response.aclose()
        except httpx.HTTPError as exc:
            raise _unreachable(self.settings, exc) from exc

    async def close(self) -> None:
        await self._client.aclose()
