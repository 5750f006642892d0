"""How one definition of an operation serves both clients.

A namespace's method builds a `Call`: what to send, and what comes back. `@operation` turns it into a method that carries the call
out: on `Postroad` it returns the result, on `AsyncPostroad` an awaitable of it. `@pages` does the same for lists, as an iterator,
`@watch` for what is asked again and again until it is over, and `@live` for what is followed as it comes.
Types follow: a type checker sees `Published` on one and `Awaitable[Published]` on the other.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import httpx
import msgspec

if TYPE_CHECKING:
    from postroad.api.streams import StreamMessage
    from postroad.client.follower import Follower
    from postroad.client.transport import AsyncTransport, SyncTransport

S = TypeVar("S")
P = ParamSpec("P")
T = TypeVar("T")


OWN_TENANT = "{tenant}"  # in a call's path: the tenant that the client acts for, which the transport knows or asks for


class Content(msgspec.Struct, frozen=True):
    """A body that goes out as it is. Without a `media` type it is said to be nothing."""

    data: bytes
    media: str | None


class Call(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One request. `is_repeatable`: sending it twice is the same as once, so it may be tried again when no answer came.

    The result is the answer's JSON as the type `answer`, or what `read` makes of an answer whose headers count, too. A `body` is
    sent as JSON, unless it is `Content`. `codes` says what a status means that comes without a body, as HEAD's do.
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


class Pages(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A list in pages: the call for the first one, whose response is a `Page`."""

    call: Call[Any]
    items: Callable[[Any], list[T]] = attrgetter("items")
    cursor: Callable[[Any], str | None] = attrgetter("next_cursor")
    cursor_name: str = "cursor"

    def following(self, cursor: str) -> "Call[Any]":
        return msgspec.structs.replace(self.call, query={**self.call.query, self.cursor_name: cursor})


class Watch(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A call to repeat until its answer says that it is over. `timeout` None is for as long as it takes; `told` hears each."""

    call: Call[T]
    is_over: Callable[[T], bool]
    timeout: float | None = None
    told: Callable[[T], None] | None = None


class SyncNamespace:
    def __init__(self, transport: "SyncTransport") -> None:
        self._transport = transport


class AsyncNamespace:
    def __init__(self, transport: "AsyncTransport") -> None:
        self._transport = transport


class operation(Generic[S, P, T]):  # noqa: N801  # a decorator, and spelled like one
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


class watch(Generic[S, P, T]):  # noqa: N801
    def __init__(self, build: Callable[Concatenate[S, P], Watch[T]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, namespace: None, owner: type) -> "watch[S, P, T]": ...
    @overload
    def __get__(self, namespace: SyncNamespace, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, namespace: AsyncNamespace, owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, namespace: Any, owner: type) -> Any:
        if namespace is None:
            return self

        def poll_until_done(*args: Any, **kwargs: Any) -> Any:
            return namespace._transport.watch(self._build(namespace, *args, **kwargs))

        poll_until_done.__doc__ = self.__doc__
        return poll_until_done


class live(Generic[S, P]):  # noqa: N801
    """What comes is a generator, so that `contextlib.closing` and `aclosing` can end it where it stands."""

    def __init__(self, build: "Callable[Concatenate[S, P], Follower]") -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, namespace: None, owner: type) -> "live[S, P]": ...
    @overload
    def __get__(self, namespace: SyncNamespace, owner: type) -> "Callable[P, Generator[StreamMessage, None, None]]": ...
    @overload
    def __get__(self, namespace: AsyncNamespace, owner: type) -> "Callable[P, AsyncGenerator[StreamMessage, None]]": ...
    def __get__(self, namespace: Any, owner: type) -> Any:
        if namespace is None:
            return self

        def follow(*args: Any, **kwargs: Any) -> Any:
            return namespace._transport.follow(self._build(namespace, *args, **kwargs))

        follow.__doc__ = self.__doc__
        return follow
