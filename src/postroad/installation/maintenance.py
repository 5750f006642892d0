"""Maintenance: while its record exists, every process of the installation holds its writes, and says so when asked.

The record has a time to live, and the command that holds the writes renews it. If the command dies, the record expires.
"""

import asyncio
from typing import Protocol

import msgspec

from postroad.installation.records import MAINTENANCE, InstallationRecord
from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.jetstream.protocol import encode_plain
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.write_buffer_limit import WriteBufferLimit

SUBJECT = "postroad.processes"
RETRY_SECONDS = 2.0
_QUIET_SECONDS = 0.3  # without a further reply
_REPLIES_SECONDS = 1.0


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What a process replies. `writes` is the number that it has begun, `pending` whether some have not ended."""

    worker: str
    role: str
    version: str
    is_held: bool
    is_pending: bool
    writes: int


class _Request(Protocol):
    reply: str


class MaintenanceWatch:
    """Holds the writes of this process while the record exists, and replies to `processes`."""

    def __init__(
        self,
        connection: Connection,
        table: ReplicatedTable[InstallationRecord],
        buffer_limit: WriteBufferLimit,
        worker: str,
        role: str,
        version: str,
    ) -> None:
        self._connection, self._buffer_limit = connection, buffer_limit
        self._worker, self._role, self._version = worker, role, version
        table.on_change(self._on_change)

    def _on_change(self, key: str, record: InstallationRecord | None) -> None:
        if key != MAINTENANCE:
            return
        if record is None:
            self._connection.writes.release()
        else:
            self._connection.writes.hold(record.reason, RETRY_SECONDS)

    @property
    def status(self) -> ProcessStatus:
        gate = self._connection.writes
        return ProcessStatus(
            worker=self._worker,
            role=self._role,
            version=self._version,
            is_held=gate.is_held,
            is_pending=bool(gate.in_progress or self._buffer_limit.bytes),
            writes=gate.admitted,
        )

    async def run(self) -> None:
        stop = self._connection.subscribe(SUBJECT, self._reply)
        try:
            await asyncio.Event().wait()
        finally:
            await stop()

    def _reply(self, request: _Request) -> None:
        if request.reply:
            self._connection.publish(request.reply, msgspec.json.encode(self.status))


_decode = msgspec.json.Decoder(ProcessStatus).decode


async def processes(connection: Connection) -> dict[str, ProcessStatus]:
    """The processes of the installation that reply now, by name. Raises ConnectionLost."""
    reply_subject, replies = connection.expect_many()
    found: dict[str, ProcessStatus] = {}
    loop = asyncio.get_running_loop()
    ends = loop.time() + _REPLIES_SECONDS
    try:
        connection.send(encode_plain(SUBJECT, b"", reply_subject))
        while (now := loop.time()) < ends:
            try:
                async with asyncio.timeout(min(_QUIET_SECONDS, ends - now) if found else ends - now):
                    reply = await replies.get()
            except TimeoutError:
                break
            if reply is None:
                raise ConnectionLost
            if reply.status:  # 503: no process listens
                break
            status = _decode(reply.data)
            found[status.worker] = status
    finally:
        connection.forget(reply_subject)
    return found
