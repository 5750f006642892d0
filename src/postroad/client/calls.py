"""Decorators that define an operation once for both clients.

A method of a namespace builds a `Call`: the request, and the type of the response. `@operation` turns it into a method that
executes the call: on `Postroad` it returns the result, on `AsyncPostroad` an awaitable of it. `@pages` returns an iterator over
the items of a list, `@poll` repeats a call until it is done, and `@live` follows a stream. Type checkers see `Published` on one
client and `Awaitable[Published]` on the other.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import httpx
import msgspec

if TYPE_CHECKING:
    from postroad.client.follower import LiveReader
    from postroad.client.transport import AsyncTransport, SyncTransport

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


OWN_TENANT = "{tenant}"  # in the path of a call: the client's tenant, which the transport fills in


class Content(msgspec.Struct, frozen=True):
    """A body that is sent unchanged. Without `media` the request has no content type."""

    data: bytes
    media: str | None


class Call(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One request. `is_repeatable`: sending it twice has the effect of once, so it can be retried without a response.

    The result is the JSON of the response as the type `response`, or the result of `read`. A `body` is sent as JSON, unless it is
    `Content`. `codes` maps statuses of responses without a body, as of HEAD, to error codes. The deadline counts from
    `started_at`, by `time.monotonic`, for a call that repeats one with other content.
    """

    method: str
    path: str
    response: Any = None
    read: Callable[[httpx.Response], T] | None = None
    codes: Mapping[int, str] = {}
    body: object = None
    query: Mapping[str, object] = {}
    headers: Mapping[str, str] = {}
    is_repeatable: bool = True
    wait_seconds: float = 0.0
    started_at: float | None = None


class Pages(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A list in pages: the call for the first page, whose response is a `Page`."""

    call: Call[Any]
    items: Callable[[Any], list[T]] = attrgetter("items")
    cursor: Callable[[Any], str | None] = attrgetter("next_cursor")
    cursor_name: str = "cursor"

    def next_call(self, cursor: str) -> "Call[Any]":
        return msgspec.structs.replace(self.call, query={**self.call.query, self.cursor_name: cursor})


class Poll(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A call to repeat until `is_done` of its result. `on_result` is called with each result. `timeout` None: no limit."""

    call: Call[T]
    is_done: Callable[[T], bool]
    timeout: float | None = None
    on_result: Callable[[T], None] | None = None


class SyncNamespace:
    def __init__(self, transport: "SyncTransport") -> None:
        self._transport = transport


class AsyncNamespace:
    def __init__(self, transport: "AsyncTransport") -> None:
        self._transport = transport


class operation(Generic[S, P, T]):  # noqa: N801  # used as a decorator
    def __init__(self, build: Callable[Concatenate[S, P], Call[T]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, namespace: None, owner: type) -> "operation[S, P, T]": ...
    @overload
    def __get__(self, namespace: SyncNamespace, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, namespace: AsyncNamespace, owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, namespace: Any, owner: type) -> Any:
        if namespace is None:
            return self

        def execute(*args: Any, **kwargs: Any) -> Any:
            return namespace._transport.execute(self._build(namespace, *args, **kwargs))

        execute.__doc__ = self.__doc__
        return execute


class pages(Generic[S, P, T]):  # noqa: N801
    def __init__(self, build: Callable[Concatenate[S, P], Pages[T]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, namespace: None, owner: type) -> "pages[S, P, T]": ...
    @overload
    def __get__(self, namespace: SyncNamespace, owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, namespace: AsyncNamespace, owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, namespace: Any, owner: type) -> Any:
        if namespace is None:
            return self

        def iterate(*args: Any, **kwargs: Any) -> Any:
            return namespace._transport.iterate(self._build(namespace, *args, **kwargs))

        iterate.__doc__ = self.__doc__
        return iterate


class poll(Generic[S, P, T]):  # noqa: N801
    def __init__(self, build: Callable[Concatenate[S, P], Poll[T]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, namespace: None, owner: type) -> "poll[S, P, T]": ...
    @overload
    def __get__(self, namespace: SyncNamespace, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, namespace: AsyncNamespace, owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, namespace: Any, owner: type) -> Any:
        if namespace is None:
            return self

        def poll_until_done(*args: Any, **kwargs: Any) -> Any:
            return namespace._transport.poll(self._build(namespace, *args, **kwargs))

        poll_until_done.__doc__ = self.__doc__
        return poll_until_done


class live(Generic[S, P, T]):  # noqa: N801
    """The result is a generator, which `contextlib.closing` and `aclosing` can close early."""

    def __init__(self, build: "Callable[Concatenate[S, P], LiveReader[T]]") -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, namespace: None, owner: type) -> "live[S, P, T]": ...
    @overload
    def __get__(self, namespace: SyncNamespace, owner: type) -> "Callable[P, Generator[T, None, None]]": ...
    @overload
    def __get__(self, namespace: AsyncNamespace, owner: type) -> "Callable[P, AsyncGenerator[T, None]]": ...
    def __get__(self, namespace: Any, owner: type) -> Any:
        if namespace is None:
            return self

        def follow(*args: Any, **kwargs: Any) -> Any:
            return namespace._transport.follow(self._build(namespace, *args, **kwargs))

        follow.__doc__ = self.__doc__
        return follow
