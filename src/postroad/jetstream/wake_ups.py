"""Wake-ups: learn that a consumer has a message, without receiving it.

A pull request with `max_bytes: 1` is refused as soon as a message is ready, because no message is that small. The server delivers
nothing, and does not count a delivery.
"""

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec

from postroad.jetstream.connection import Connection
from postroad.jetstream.incoming_message import IncomingMessage
from postroad.kernel.ids import new_id

_SECONDS = 5.0  # of a request; its leader may be gone without an answer
_REQUEST = msgspec.json.encode({"batch": 1, "max_bytes": 1, "expires": int(_SECONDS * 1e9)})


class WakeUps:
    """Keeps one request open at each of several consumers of a stream, between `open` and `close`."""

    def __init__(self, connection: Connection, stream: str, consumers: Sequence[str]) -> None:
        self._connection = connection
        self._subjects = {one: f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{one}" for one in consumers}
        self._open_until: dict[str, float] = {}  # by consumer
        self._answered = asyncio.Event()

    async def open(self) -> None:
        self._inbox = f"_INBOX.{new_id()}"
        self._unsubscribe = self._connection.subscribe(f"{self._inbox}.*", self._on_answer)
        self._remove_callback = self._connection.on_reconnect(self._on_reconnect)

    async def close(self) -> None:
        self._remove_callback()
        self._open_until.clear()
        await self._unsubscribe()

    async def wait(self) -> None:
        """Return when a consumer may have a message: at once if it has one now. Also returns after some seconds without one.

        Raises ConnectionLost.
        """
        now = asyncio.get_running_loop().time()
        self._answered.clear()
        for consumer, subject in self._subjects.items():
            if self._open_until.get(consumer, 0) <= now:
                self._open_until[consumer] = now + _SECONDS
                self._connection.publish(subject, _REQUEST, f"{self._inbox}.{consumer}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(min(self._open_until.values())):
                await self._answered.wait()

    def _on_answer(self, message: IncomingMessage) -> None:
        """The answer is an error in any case: a message is ready, the request has ended, or there is no leader."""
        self._open_until.pop(message.subject.rpartition(".")[2], None)
        self._answered.set()

    def _on_reconnect(self) -> None:
        """Requests from before the connection was lost will not be answered."""
        self._open_until.clear()
        self._answered.set()
