"""Carrying calls out: retries, deadlines and errors, written once and driven by a synchronous or an asynchronous loop.

`_conversation` is a generator that says what to do next (send, or pause) and is told what came of it. It holds every decision;
the two transports below it only do the sending and the pausing.
"""

import asyncio
import functools
import random
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.request import getproxies

import httpx
import msgspec

from postroad import __version__
from postroad.api.access import WhoAmI
from postroad.api.streams import StreamMessage
from postroad.client.calls import OWN_TENANT, Call, Content, Pages, Watch
from postroad.client.encoding import segment
from postroad.client.follower import SILENCE_SECONDS, Follower
from postroad.kernel.errors import (
    ERRORS,
    AuthError,
    ConflictError,
    InvalidRequest,
    NotFound,
    PostroadError,
    Unavailable,
    Unreachable,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """`deadline` bounds a call with all its tries; a long poll's own waiting comes on top. Without a key nobody is calling."""

    url: str
    key: str | None
    tenant: str | None = None
    deadline: float = 30.0
    try_timeout: float = 10.0
    pause_first: float = 0.1
    pause_max: float = 2.0

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


Conversation = Generator[Send | Pause, tuple[Outcome, float], T]


def _conversation(call: Call[T], settings: ClientSettings, started: float) -> "Conversation[T]":
    """One call from its first try to its result. Raises what the last answer says, or Unreachable when none came in time."""
    give_up_at = started + settings.deadline + call.wait_seconds
    now, pause = started, settings.pause_first
    while True:
        outcome, now = yield Send(call, min(settings.try_timeout + call.wait_seconds, max(0.001, give_up_at - now)))
        if isinstance(outcome, httpx.Response):
            problem = _problem(call, outcome)
            if problem is None:
                return _result(call, outcome)
            # A refusal that says "later" was not carried out, except one that does not know.
            may_repeat = problem.retryable and (call.is_repeatable or problem.code in _NOT_DONE)
        else:
            problem = _unreachable(settings, outcome)
            may_repeat = call.is_repeatable or isinstance(outcome, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
        wait = max(problem.retry_after or 0.0, pause * random.uniform(0.5, 1.0))  # noqa: S311  # spreads clients, guards nothing
        if not may_repeat or now + wait >= give_up_at:
            raise problem
        _, now = yield Pause(wait)
        pause = min(pause * 2, settings.pause_max)


_NOT_DONE = frozenset({"overloaded", "draining", "storage-full", "rate-limited", "registry-stale"})


_WATCH_PAUSES = (0.1, 1.0)


def _watching(watch: Watch[T], started: float) -> "Generator[Call[T] | Pause, tuple[Any, float], T]":
    """Ask, and pause, until it is over. Raises TimeoutError; the last look is taken when the time is up."""
    give_up_at = float("inf") if watch.timeout is None else started + watch.timeout
    pause, pause_max = _WATCH_PAUSES
    while True:
        answer, now = yield watch.call
        if watch.told is not None:
            watch.told(answer)
        if watch.is_over(answer):
            return answer  # type: ignore[no-any-return]
        if now >= give_up_at:
            raise TimeoutError(f"it was not over after {watch.timeout} s; it may go on")
        yield Pause(min(pause, give_up_at - now))
        pause = min(pause * 1.5, pause_max)


Script = Generator[Call[Any], Any, T]  # several calls in a row, each made with what came of those before


class _OwnTenant:
    """The tenant that the client acts for: the one it was told, else its credential's own, which does not change."""

    def __init__(self, settings: ClientSettings) -> None:
        self._tenant = settings.tenant

    def placing(self, call: Call[T]) -> "Script[T]":
        """The call, with the tenant in its path; before that, if it is not known, the question who is calling."""
        if self._tenant is None:
            me: WhoAmI = yield Call(method="GET", path="/v1/whoami", response=WhoAmI)
            self._tenant = me.tenant
        path = call.path.replace(OWN_TENANT, segment(self._tenant))
        return (yield msgspec.structs.replace(call, path=path))  # type: ignore[no-any-return]


_STATUS_CODES = {401: "unauthenticated", 403: "forbidden", 429: "rate-limited"}
_TOLD_IN_HEADERS = {
    "producer-epoch": "epoch",
    "producer-expected-seq": "expected",
    "producer-received-seq": "received",
    "stream-next-offset": "offset",
}


def _problem(call: Call[Any], response: httpx.Response) -> PostroadError | None:
    if response.status_code < 400:
        return None
    try:
        body = msgspec.json.decode(response.content)
        kind = ERRORS.get(body["code"]) or _unknown_kind(
            body["code"], response.status_code, body.get("title", ""), body.get("retryable")
        )
        detail, extra = body.get("detail", ""), {"errors": body.get("errors")}
    except (msgspec.DecodeError, KeyError, TypeError):  # to HEAD, which has no body; or a proxy answered, not Postroad
        code = (_STATUS_CODES | dict(call.codes)).get(response.status_code, "") if call.method == "HEAD" else ""
        kind = ERRORS.get(code, Unreachable if response.status_code >= 500 else PostroadError)
        detail, extra = "" if code else f"HTTP {response.status_code}", {}
    told = {name: response.headers[header] for header, name in _TOLD_IN_HEADERS.items() if header in response.headers}
    extra |= {name: int(value) if value.isdigit() else value for name, value in told.items()}
    after = response.headers.get("retry-after", "")
    problem = kind(detail, retry_after=float(after) if after.isdigit() else None, extra=extra)
    problem.request_id = response.headers.get("x-request-id", "")
    return problem


_FAMILIES: dict[int, type[PostroadError]] = {
    **dict.fromkeys((400, 413, 415, 422), InvalidRequest),
    **dict.fromkeys((401, 403), AuthError),
    **dict.fromkeys((404, 410), NotFound),
    409: ConflictError,
    **dict.fromkeys((502, 503, 504, 507), Unavailable),
}


@functools.lru_cache(maxsize=100)
def _unknown_kind(code: str, status: int, title: str, is_retryable: bool | None) -> type[PostroadError]:
    """An error that this client does not know, as a newer server may have: of the family that its status tells."""
    family = _FAMILIES.get(status)
    if family is None:
        return PostroadError
    said = {"code": code, "status": status, "title": title or code, "retryable": bool(is_retryable)}
    return type(family.__name__, (family,), said)


def _unreachable(settings: ClientSettings, failure: httpx.HTTPError | None) -> Unreachable:
    return Unreachable(f"{settings.url} did not answer: {type(failure).__name__}")


def _result(call: Call[T], response: httpx.Response) -> T:
    if call.read is not None:
        return call.read(response)
    if call.response is None:
        return None  # type: ignore[return-value]
    return msgspec.json.decode(response.content, type=call.response)  # type: ignore[no-any-return]


def _request(client: httpx.Client | httpx.AsyncClient, send: Send) -> httpx.Request:
    call = send.call
    content, media = None if call.body is None else msgspec.json.encode(call.body), "application/json"
    if isinstance(call.body, Content):
        content, media = call.body.data, call.body.media or ""
    headers = dict(call.headers) | ({"Content-Type": media} if content is not None and media else {})
    query = {name: _text(value) for name, value in call.query.items() if value is not None}
    return client.build_request(call.method, call.path, params=query, content=content, headers=headers, timeout=send.timeout)


def _line(client: httpx.Client | httpx.AsyncClient, call: Call[Any], settings: ClientSettings) -> httpx.Request:
    """The request for a line of events: it may take as long as it likes, if only something is heard now and then."""
    return _request(client, Send(call, httpx.Timeout(settings.try_timeout, read=SILENCE_SECONDS)))


def _text(value: object) -> str:
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
        # Nothing will be encrypted: to load the authorities all the same takes 45 ms. This one trusts nobody.
        arguments["verify"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return arguments


class SyncTransport:
    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        self._own_tenant = _OwnTenant(settings)
        self._client = httpx.Client(**_client_arguments(settings))

    def execute(self, call: Call[T]) -> T:
        if OWN_TENANT in call.path:
            return self.play(self._own_tenant.placing(call))
        conversation = _conversation(call, self.settings, time.monotonic())
        step = next(conversation)
        while True:
            outcome: Outcome = None
            if isinstance(step, Pause):
                time.sleep(step.seconds)
            else:
                try:
                    outcome = self._client.send(_request(self._client, step))
                except httpx.HTTPError as exc:
                    outcome = exc
            try:
                step = conversation.send((outcome, time.monotonic()))
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]

    def iterate(self, listed: Pages[T]) -> Iterator[T]:
        answer = self.execute(listed.call)
        while True:
            yield from listed.items(answer)
            cursor = listed.cursor(answer)
            if cursor is None:
                return
            answer = self.execute(listed.following(cursor))

    def watch(self, watched: Watch[T]) -> T:
        watching = _watching(watched, time.monotonic())
        step = next(watching)
        while True:
            answer = None
            if isinstance(step, Pause):
                time.sleep(step.seconds)
            else:
                answer = self.execute(step)
            try:
                step = watching.send((answer, time.monotonic()))
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]

    def play(self, script: Script[T]) -> T:
        try:
            call = next(script)
            while True:
                try:
                    answer = self.execute(call)
                except PostroadError as problem:
                    call = script.throw(problem)
                else:
                    call = script.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    def follow(self, follower: Follower) -> Generator[StreamMessage, None, None]:
        while not follower.has_ended():
            try:
                if follower.reads_events:
                    with self._line(follower) as pieces:
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
    def _line(self, follower: Follower) -> Iterator[Iterator[bytes]]:
        call = follower.next_call()
        try:
            response = self._client.send(_line(self._client, call, self.settings), stream=True)
            try:
                if response.status_code >= 400:
                    response.read()
                problem = _problem(call, response)
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
        self.settings = settings
        self._own_tenant = _OwnTenant(settings)
        self._client = httpx.AsyncClient(**_client_arguments(settings))

    async def execute(self, call: Call[T]) -> T:
        if OWN_TENANT in call.path:
            return await self.play(self._own_tenant.placing(call))
        conversation = _conversation(call, self.settings, time.monotonic())
        step = next(conversation)
        while True:
            outcome: Outcome = None
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            else:
                try:
                    outcome = await self._client.send(_request(self._client, step))
                except httpx.HTTPError as exc:
                    outcome = exc
            try:
                step = conversation.send((outcome, time.monotonic()))
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]

    async def iterate(self, listed: Pages[T]) -> AsyncIterator[T]:
        answer = await self.execute(listed.call)
        while True:
            for item in listed.items(answer):
                yield item
            cursor = listed.cursor(answer)
            if cursor is None:
                return
            answer = await self.execute(listed.following(cursor))

    async def watch(self, watched: Watch[T]) -> T:
        watching = _watching(watched, time.monotonic())
        step = next(watching)
        while True:
            answer = None
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            else:
                answer = await self.execute(step)
            try:
                step = watching.send((answer, time.monotonic()))
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]

    async def play(self, script: Script[T]) -> T:
        try:
            call = next(script)
            while True:
                try:
                    answer = await self.execute(call)
                except PostroadError as problem:
                    call = script.throw(problem)
                else:
                    call = script.send(answer)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]

    async def follow(self, follower: Follower) -> AsyncGenerator[StreamMessage, None]:
        while not follower.has_ended():
            try:
                if follower.reads_events:
                    async with self._line(follower) as pieces:
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
            await asyncio.sleep(pause)

    @asynccontextmanager
    async def _line(self, follower: Follower) -> AsyncIterator[AsyncIterator[bytes]]:
        call = follower.next_call()
        try:
            response = await self._client.send(_line(self._client, call, self.settings), stream=True)
            try:
                if response.status_code >= 400:
                    await response.aread()
                problem = _problem(call, response)
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
