"""Store monitor: records the state of the embedded server's streams and block files, and reports damage at the next start."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from postroad.jetstream.connection import Connection, ConnectionLost
from postroad.jetstream.integrity import DAMAGE_FILE, Damage, StreamRecord, check_stream, compare, read_damage, stream_records
from postroad.kernel.clock import now_ms
from postroad.kernel.errors import PostroadError
from postroad.runtime.block_files import BlockRecord, LastRecord, blocks, changed_blocks, last_records, record_blocks
from postroad.runtime.private_files import write_private

log = structlog.get_logger("postroad.store")

_BLOCK_SECONDS = 2.0  # to read block files at a start or stop: a bound for large stores
_VERIFY_BYTES = 32 * 1024 * 1024  # a second or two of work
_CLOCK_SLACK_MS = 2_000
_FINAL_SECONDS = 5.0
T = TypeVar("T")


class StoreRecord(msgspec.Struct, frozen=True):
    """The states of all streams. `is_clean`: the server was stopped afterwards, and no client was connected."""

    at_ms: int = 0
    is_clean: bool = False
    streams: dict[str, StreamRecord] = {}


class _Connections(msgspec.Struct):
    num_connections: int


class _ConnzResponse(msgspec.Struct):
    data: _Connections


class StoreMonitor:
    """Call `check_blocks` before the first start of the server, `scan` before each, `record_stop` after its end."""

    def __init__(self, data_dir: Path, *, interval_seconds: float, is_encrypted: bool) -> None:
        self._data_dir, self._interval_seconds, self._is_encrypted = data_dir, interval_seconds, is_encrypted
        self._store = data_dir / "nats" / "jetstream"
        self._record_file, self._blocks_file = data_dir / "nats" / "streams.json", data_dir / "nats" / "blocks.json"
        self._record = _load(self._record_file, StoreRecord, StoreRecord())
        self._changed: dict[str, str] = {}
        self._sizes: dict[str, int] = {}
        self._last_records: dict[str, LastRecord] = {}
        self._listed: StoreRecord | None = None
        self._starts = 0
        self._is_stopped = False

    def check_blocks(self) -> None:
        """Compare the block files with those of the last stop."""
        earlier = self._block_records()
        self._changed = changed_blocks(self._store, earlier, _BLOCK_SECONDS, is_clean=self._record.is_clean)
        if not self._is_encrypted:
            self._sizes = {name: block.size for name, block in blocks(self._store).items()}
        self._report(Damage(stream, detail, now_ms()) for stream, detail in self._changed.items())

    def scan(self) -> None:
        """Read the last sequences from the block files that have changed since the last record, unless they are encrypted."""
        self._starts, self._listed = self._starts + 1, None
        if self._is_encrypted:
            return
        since_ns = (self._record.at_ms - _CLOCK_SLACK_MS) * 1_000_000
        found = last_records(self._store, since_ns, _BLOCK_SECONDS)
        self._last_records = {record.stream: record for record in found.values() if record is not None}
        self._sizes |= {name: record.end if record is not None else 0 for name, record in found.items() if name in self._sizes}

    @asynccontextmanager
    async def running(self, connection: Connection, on_damage: Callable[[int], None]) -> AsyncIterator[None]:
        """Compare the states with the last record, then record them periodically and after each reconnect, during the block.

        `on_damage` gets the number of damage reports that are not accepted yet.
        """
        await connection.open()
        try:
            was_clean = self._record.is_clean
            await self._refresh(connection, is_first=True)
            reconnected = asyncio.Event()
            connection.on_reconnect(reconnected.set)
            refreshing = asyncio.create_task(
                self._refresh_periodically(connection, reconnected, on_damage, verifies=not was_clean)
            )
            try:
                yield
            finally:
                refreshing.cancel()
                await asyncio.gather(refreshing, return_exceptions=True)
                await self._refresh_finally(connection)
        finally:
            await connection.close()

    async def _refresh_periodically(
        self, connection: Connection, reconnected: asyncio.Event, on_damage: Callable[[int], None], *, verifies: bool
    ) -> None:
        if verifies:
            with contextlib.suppress(PostroadError):
                await self._verify(connection)
        while True:
            on_damage(len(read_damage(self._data_dir)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._interval_seconds):
                    await reconnected.wait()
            reconnected.clear()
            with contextlib.suppress(PostroadError):  # the engine is down: the next reconnect continues
                await self._refresh(connection)

    async def _verify(self, connection: Connection) -> None:
        """Read the messages of the smallest streams. After a crash the checksums of the block files are not known."""
        total = 0
        for name, stream in sorted(self._record.streams.items(), key=lambda item: item[1].bytes):
            total += stream.bytes
            if total > _VERIFY_BYTES:
                return
            checked = await check_stream(connection, name) if stream.messages else None
            if checked is not None and checked.unreadable:
                detail = f"{len(checked.unreadable)} messages are unreadable, the first at sequence {checked.unreadable[0]}"
                self._report([Damage(name, detail, now_ms())])

    async def _refresh_finally(self, connection: Connection) -> None:
        """The last record, for the comparison at the next start. Other clients could still change the streams after it."""
        if not connection.is_up:
            return
        with contextlib.suppress(PostroadError, ConnectionLost, TimeoutError):
            async with asyncio.timeout(_FINAL_SECONDS):
                await self._refresh(connection, is_last=True)
                response = await connection.request("$SYS.REQ.ACCOUNT.PING.CONNZ", b"{}")
                self._is_stopped = msgspec.json.decode(response.data, type=_ConnzResponse).data.num_connections == 1

    async def _refresh(self, connection: Connection, *, is_first: bool = False, is_last: bool = False) -> None:
        """Compare the states of the streams with the record, and update it.

        A state can contain writes that are not in the files yet. So the record is the state of the refresh before, if the same
        server still runs; all of it before clients connect (`is_first`), when the server is about to stop (`is_last`), and after
        a report, which is not repeated.
        """
        # The values of now: `scan` may set those of a later start while the states are read.
        last_records, sizes, starts = self._last_records, self._sizes, self._starts
        at_ms = now_ms()
        streams = await stream_records(connection)
        await connection.store_sync.wait_filesystem()
        damages = {one.stream: one for one in self._truncated(sizes, streams, at_ms)}
        damages |= {one.stream: one for one in _discarded(last_records, self._record.streams, streams, at_ms)}
        is_clean = is_first and self._record.is_clean
        damages |= {one.stream: one for one in compare(self._record.streams, streams, at_ms, is_clean=is_clean)}
        self._report(one for one in damages.values() if one.stream not in self._changed)  # those are reported already
        self._sizes, self._changed = {}, {}
        if self._last_records is last_records:
            self._last_records = {}
        listed, earlier = StoreRecord(at_ms, False, streams), self._listed
        record = listed if is_first or is_last or damages else earlier
        if record is not None and starts == self._starts:
            await asyncio.to_thread(self._save, record)
        self._listed = listed if starts == self._starts else None

    def _truncated(self, sizes: Mapping[str, int], streams: Mapping[str, StreamRecord], at_ms: int) -> Iterable[Damage]:
        """Blocks that the server truncated when it started. It also rewrites blocks whose messages have expired."""
        if not sizes:
            return
        for name, block in blocks(self._store).items():
            stream, size = streams.get(block.stream), sizes.get(name, 0)
            if stream is not None and block.size < size and not (stream.has_ttl or stream.expires_ns):
                yield Damage(block.stream, f"block file {name} was truncated at start, from {size} to {block.size} bytes", at_ms)

    def record_stop(self) -> None:
        """Record the block files after the end of the server, if the streams were recorded before it."""
        if self._is_stopped:
            records = record_blocks(self._store, self._block_records(), _BLOCK_SECONDS)
            _write(self._blocks_file, records)
            self._save(StoreRecord(now_ms(), True, self._record.streams))

    def _block_records(self) -> dict[str, BlockRecord]:
        return _load(self._blocks_file, dict[str, BlockRecord], {})

    def _save(self, record: StoreRecord) -> None:
        self._record = record
        _write(self._record_file, record)

    def _report(self, damages: Iterable[Damage]) -> None:
        found = list(damages)
        for damage in found:
            log.error("store_damaged", stream=damage.stream, detail=damage.detail, remedy="run `postroad check`")
        if found:
            known = [*read_damage(self._data_dir), *found]
            _write(self._data_dir / DAMAGE_FILE, known)


def _discarded(
    last_records: Mapping[str, LastRecord], before: Mapping[str, StreamRecord], now: Mapping[str, StreamRecord], at_ms: int
) -> Iterable[Damage]:
    """Messages that were in the last block and are not in the stream, or were recorded and are not in the last block."""
    for name, record in last_records.items():
        old, new = before.get(name), now.get(name)
        if new is None:
            continue
        if record.message > new.last_seq:
            detail = f"the messages after sequence {new.last_seq} were discarded at start; the store had {record.message}"
            yield Damage(name, detail, at_ms)
        elif old is not None and old.created == new.created and record.end and record.highest < old.last_seq:
            yield Damage(name, f"the last block file ended at sequence {record.highest}; the stream had {old.last_seq}", at_ms)


def _write(path: Path, content: object) -> None:
    """Write a file, or log why it cannot be written: a full disk must not prevent a start."""
    try:
        write_private(path, msgspec.json.encode(content).decode())
    except OSError as exc:
        log.warning("store_not_recorded", path=str(path), problem=str(exc))


def _load(path: Path, kind: type[T], default: T) -> T:
    """The content of a file; `default` if it does not exist or cannot be decoded."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return default
    except msgspec.MsgspecError as exc:
        log.warning("record_ignored", path=str(path), problem=str(exc))
        return default
