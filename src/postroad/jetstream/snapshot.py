"""Snapshots of streams with their consumers, in the server's own format, and their restoration."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from postroad.jetstream.api_errors import STREAM_NOT_FOUND, ApiError, translate
from postroad.jetstream.connection import Connection, ConnectionLost, Reply
from postroad.jetstream.incoming_message import IncomingMessage
from postroad.jetstream.management import StreamState
from postroad.jetstream.protocol import encode_plain
from postroad.kernel.errors import EngineRefused, EngineUnavailable
from postroad.kernel.ids import new_id

CHUNK_BYTES = 256 * 1024
_SILENCE_SECONDS = 60.0  # without a chunk; the server reads the next one from its disk meanwhile
_START_SECONDS = 60.0
_FINISH_SECONDS = 600.0  # the server reads and indexes the whole stream
_CHUNKS_IN_FLIGHT = 16
_LISTEN_SECONDS = 4.0  # until all servers know who receives a restore; it ends itself after five seconds without a chunk
_LISTEN_RETRY_SECONDS = 0.02
_CLOSED_PIPE = "closed pipe"  # the server's watchdog has ended the restore


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Configuration and state of the stream at the time of the snapshot, as the server writes them."""

    config: Mapping[str, Any]
    state: Mapping[str, Any]

    @property
    def counts(self) -> StreamState:
        return msgspec.convert(self.state, StreamState)


class _SnapshotResponse(msgspec.Struct):
    error: ApiError | None = None
    config: dict[str, Any] = {}
    state: dict[str, Any] = {}


_decode_snapshot = msgspec.json.Decoder(_SnapshotResponse).decode


class _Transfer:
    """Receives the chunks of one snapshot. The server waits for a reply to some of them before it sends more."""

    def __init__(self, connection: Connection, write: Callable[[bytes], None]) -> None:
        self._connection, self._write = connection, write
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._received_at = self._loop.time()

    def on_message(self, message: IncomingMessage) -> None:
        if self._ended.done():
            return
        self._received_at = self._loop.time()
        try:
            if message.data:
                self._write(message.data)
                if message.reply:
                    self._connection.publish(message.reply, b"")
                return
            headers = message.headers
            if headers.get("Status", "204") not in ("200", "204"):
                raise EngineUnavailable(f"the snapshot failed: {headers.get('Description') or headers['Status']}")
            self._ended.set_result(None)
        except Exception as problem:
            self._ended.set_exception(problem)

    async def wait(self) -> None:
        """Raises EngineUnavailable, and the exceptions of `write`."""
        while not self._ended.done():
            left = self._received_at + _SILENCE_SECONDS - self._loop.time()
            if left <= 0 or not self._connection.is_up:
                raise EngineUnavailable("the engine stopped sending the snapshot", retry_after=1)
            await asyncio.wait({self._ended}, timeout=min(left, 1.0))
        self._ended.result()


async def snapshot_stream(connection: Connection, stream: str, write: Callable[[bytes], None]) -> Snapshot | None:
    """Pass the snapshot to `write` in chunks; None if the stream does not exist. Raises EngineUnavailable."""
    inbox = f"_INBOX.{new_id()}"
    transfer = _Transfer(connection, write)
    stop: Callable[[], Awaitable[None]] = connection.subscribe(inbox, transfer.on_message)
    try:
        request = {"deliver_subject": inbox, "chunk_size": CHUNK_BYTES, "no_consumers": False}
        found = _decode_snapshot(await _request(connection, f"STREAM.SNAPSHOT.{stream}", request))
        if found.error is not None:
            if found.error.err_code == STREAM_NOT_FOUND:
                return None
            raise translate(found.error)
        await transfer.wait()
    finally:
        await stop()
    return Snapshot(found.config, found.state)


async def _request(connection: Connection, call: str, body: object) -> bytes:
    """An API call that is not repeated, as a second one would begin a second transfer. Raises EngineUnavailable."""
    try:
        reply = await connection.request(f"$JS.API.{call}", msgspec.json.encode(body), timeout=_START_SECONDS)
    except (ConnectionLost, TimeoutError) as exc:
        raise EngineUnavailable(f"the engine did not answer {call.split('.')[1].lower()}", retry_after=1) from exc
    if reply.status == "503":
        raise EngineUnavailable("no server of the engine responds", retry_after=1)
    return reply.data


class _RestoreResponse(msgspec.Struct):
    error: ApiError | None = None
    deliver_subject: str = ""
    state: StreamState = StreamState()


_decode_restore = msgspec.json.Decoder(_RestoreResponse).decode


async def restore_stream(connection: Connection, snapshot: Snapshot, chunks: Iterable[bytes]) -> StreamState:
    """Create the stream from its snapshot; it exists once all chunks have arrived. Raises EngineRefused, EngineUnavailable.

    `max_bytes` is reserved in the store, and the platform's own streams have a share of it: they are restored without, as the
    share of a larger disk would be refused. `prepare_engine` sets that of the new store at the next start.
    """
    name = snapshot.config["name"]
    config = {**snapshot.config, "max_bytes": -1} if _is_platform(name) else snapshot.config
    body = {"config": config, "state": snapshot.state}
    begun = _decode_restore(await _request(connection, f"STREAM.RESTORE.{name}", body))
    if begun.error is not None:
        raise translate(begun.error)
    in_flight: deque[asyncio.Future[Reply]] = deque()
    left = iter(chunks)
    try:
        if first := next(left, b""):
            await _send_first(connection, name, begun.deliver_subject, first)
        for chunk in left:
            reply_subject, replied = connection.expect()
            connection.send(encode_plain(begun.deliver_subject, chunk, reply_subject))
            in_flight.append(replied)
            if len(in_flight) >= _CHUNKS_IN_FLIGHT:
                _check_received(name, await _reply(in_flight.popleft()))
        while in_flight:
            _check_received(name, await _reply(in_flight.popleft()))
        ended = _decode_restore((await connection.request(begun.deliver_subject, b"", timeout=_FINISH_SECONDS)).data)
    except (ConnectionLost, TimeoutError) as exc:
        raise EngineUnavailable(f"the engine stopped restoring {name}", retry_after=1) from exc
    if ended.error is not None:
        raise translate(ended.error)
    return ended.state


def _is_platform(stream: str) -> bool:
    """`JOBS`, for one. The names of streams of tenants, and of buckets, have a prefix."""
    return "_" not in stream


async def _send_first(connection: Connection, name: str, subject: str, chunk: bytes) -> None:
    """In a cluster another server may receive the restore, of which the one that we are connected to learns a moment later.
    Raises EngineRefused, ConnectionLost, TimeoutError."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _LISTEN_SECONDS
    while True:
        reply = await connection.request(subject, chunk, timeout=_SILENCE_SECONDS)
        if reply.status != "503" or loop.time() > deadline:
            return _check_received(name, reply)
        await asyncio.sleep(_LISTEN_RETRY_SECONDS)


async def _reply(replied: "asyncio.Future[Reply]") -> Reply:
    """Raises ConnectionLost, TimeoutError."""
    async with asyncio.timeout(_SILENCE_SECONDS):
        return await replied


def _check_received(name: str, reply: Reply) -> None:
    """Raises EngineRefused if the server has ended the restore."""
    error = _decode_restore(reply.data).error if reply.data else None
    if reply.status == "503" or (error is not None and _CLOSED_PIPE in error.description):
        raise EngineRefused(
            f"nats-server stopped restoring {name}: storing a part of it took more than five seconds. Let it sync less often "
            "(sync_interval: 2m; POSTROAD_SYNC=2m of an embedded one that runs) until the restore has ended, and repeat it"
        )
    if error is not None:
        raise translate(error)
