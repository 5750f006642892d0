"""`client.live_state`: the state of the tenant, or of the installation, as it changes. Needs the scope `read`."""

import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping

import msgspec

from postroad.api.live_state import LiveMessage
from postroad.client.calls import AsyncNamespace, Call, SyncNamespace
from postroad.client.follower import EventParser, LiveReader
from postroad.client.generated.live_state import LiveStateCalls
from postroad.kernel.errors import Unreachable

_decode = msgspec.json.Decoder(LiveMessage).decode


class LiveUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is `snapshot`, the first one after each connection, or `changes`."""

    kind: str
    message: LiveMessage


class LiveStateReader(LiveReader[LiveUpdate]):
    """One stream of live state. After a reconnect comes another snapshot. For `follow` of the transports."""

    def __init__(self, call: Call[None], clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self._call, self._parser = call, EventParser()

    def next_call(self) -> Call[None]:
        self._begin_request()
        return self._call

    def on_open(self, headers: Mapping[str, str]) -> None:
        self._parser = EventParser()

    def on_data(self, piece: bytes) -> list[LiveUpdate]:
        """The messages that this piece completes. Raises Unreachable if it violates the protocol."""
        try:
            found = [LiveUpdate(kind=event.kind, message=_decode(event.data)) for event in self._parser.feed(piece)]
        except ValueError as exc:
            raise Unreachable(f"the response is not a stream of live state: {exc}") from exc
        self._on_success(has_moved=bool(found))
        return found


def _reader(watch: tuple[str, ...], *, is_platform: bool) -> LiveStateReader:
    path = "/api/control/live" if is_platform else "/v1/live"
    return LiveStateReader(Call(method="GET", path=path, query={"watch": ",".join(watch)}))


class LiveState(LiveStateCalls, SyncNamespace):
    def follow(self, *watch: str, platform: bool = False) -> Generator[LiveUpdate, None, None]:
        """The state of sections such as `queues`, `queues:orders;emails` or `tasks`, then what changes, without end.

        `platform`: that of the installation, with a platform key. Reconnects. Raises Forbidden and other permanent errors.
        """
        return self._transport.follow(_reader(watch, is_platform=platform))


class AsyncLiveState(LiveStateCalls, AsyncNamespace):
    def follow(self, *watch: str, platform: bool = False) -> AsyncGenerator[LiveUpdate, None]:
        """Like `LiveState.follow`."""
        return self._transport.follow(_reader(watch, is_platform=platform))
