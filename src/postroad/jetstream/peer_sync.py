"""Waits until the other processes have read a stream up to a sequence.

Processes announce themselves every two seconds. A process that does not confirm in a second is waited for again when it announces
itself next: it was killed, or it hangs.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec

from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.jetstream.incoming_message import IncomingMessage
from postroad.kernel.ids import new_id

_ANNOUNCE_SECONDS = 2.0
_EXPIRY_SECONDS = 5.0
_CONFIRM_SECONDS = 1.0


class _Notice(msgspec.Struct, frozen=True, array_like=True):
    """Sequence 0: the process announces itself; -1: it ends."""

    process: str
    sequence: int


_decode = msgspec.msgpack.Decoder(_Notice).decode


class PeerSync:
    """`reached` returns once this process has read the stream up to a sequence."""

    def __init__(self, connection: Connection, subject: str, reached: Callable[[int], Awaitable[None]]) -> None:
        self.process = new_id()
        self._connection, self._subject, self._reached = connection, subject, reached
        self._peers: dict[str, float] = {}
        self._confirming: set[asyncio.Task[None]] = set()

    async def confirm(self, sequence: int) -> None:
        """Return once all known processes have read up to the sequence, or after a second."""
        now = asyncio.get_running_loop().time()
        awaited = {process for process, at in self._peers.items() if now - at <= _EXPIRY_SECONDS}
        if not awaited:
            return
        with contextlib.suppress(ConnectionLost, TimeoutError):
            inbox, replies = self._connection.expect_many()
            try:
                self._connection.publish(self._subject, self._notice(sequence), inbox)
                async with asyncio.timeout(_CONFIRM_SECONDS):
                    while awaited and (reply := await replies.get()) is not None:
                        awaited.discard(reply.data.decode("ascii", "replace"))
            finally:
                self._connection.forget(inbox)
        for process in awaited:
            self._peers.pop(process, None)

    async def run(self) -> None:
        """Announce this process and answer others, until cancelled."""
        stop = self._connection.subscribe(self._subject, self._receive)
        try:
            while True:
                with contextlib.suppress(ConnectionLost):
                    self._connection.publish(self._subject, self._notice(0))
                await asyncio.sleep(_ANNOUNCE_SECONDS)
        finally:
            with contextlib.suppress(ConnectionLost):
                self._connection.publish(self._subject, self._notice(-1))
            await stop()

    def _notice(self, sequence: int) -> bytes:
        return msgspec.msgpack.encode(_Notice(self.process, sequence))

    def _receive(self, message: IncomingMessage) -> None:
        try:
            notice = _decode(message.data)
        except msgspec.DecodeError:
            return
        if notice.process == self.process:
            return
        if notice.sequence < 0:
            self._peers.pop(notice.process, None)
            return
        self._peers[notice.process] = asyncio.get_running_loop().time()
        if notice.sequence and message.reply:
            task = asyncio.create_task(self._confirm_to(message.reply, notice.sequence))
            self._confirming.add(task)
            task.add_done_callback(self._confirming.discard)

    async def _confirm_to(self, inbox: str, sequence: int) -> None:
        with contextlib.suppress(ConnectionLost, TimeoutError):
            async with asyncio.timeout(_CONFIRM_SECONDS):
                await self._reached(sequence)
                self._connection.publish(inbox, self.process.encode())
