"""Integrity of stored streams: comparison with an earlier state, and a read of every message.

nats-server truncates a block at a damaged record when it recovers after a crash, and skips an unreadable record otherwise. It
logs neither, so the loss shows only in a comparison.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from postroad.jetstream import stream_reader
from postroad.jetstream.api_errors import STREAM_NOT_FOUND, ApiFailure, translate
from postroad.jetstream.connection import Connection
from postroad.kernel.errors import EngineUnavailable

DAMAGE_FILE = Path("nats", "damage.json")  # in the data directory
_PAGE = 1000


class StreamRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a stream at one time. `expires_ns` is the age at which messages expire, 0 for never."""

    created: str
    messages: int
    first_seq: int
    last_seq: int
    first_ts: str = ""
    expires_ns: int = 0
    has_ttl: bool = False  # of single messages
    is_file: bool = True
    bytes: int = 0


class Damage(msgspec.Struct, frozen=True):
    """Something lost or unreadable in a stream."""

    stream: str
    detail: str
    found_at_ms: int = 0


def compare(before: Mapping[str, StreamRecord], now: Mapping[str, StreamRecord], now_ms: int, *, is_clean: bool) -> list[Damage]:
    """What was lost between two states.

    A sequence that goes back is always a loss. A missing stream or message is one only if no client was connected in between
    (`is_clean`): otherwise messages were acknowledged, purged or expired.
    """
    damages = []
    for name, old in before.items():
        new = now.get(name)
        if not old.is_file:
            continue
        if new is None or new.created != old.created:
            if is_clean:
                damages.append(Damage(name, f"the stream is missing; it had {old.messages} messages", now_ms))
        elif new.last_seq < old.last_seq:
            damages.append(Damage(name, f"the last sequence went back from {old.last_seq} to {new.last_seq}", now_ms))
        elif is_clean and (missing := _missing(old, new, now_ms)):
            damages.append(Damage(name, f"{missing} of {old.messages} messages are missing", now_ms))
    return damages


def _missing(old: StreamRecord, new: StreamRecord, now_ms: int) -> int:
    """Messages that are missing although they cannot have expired, and no schedule has replaced them."""
    if old.has_ttl:
        return 0
    fewer = old.messages - new.messages - (new.last_seq - old.last_seq)
    may_expire = old.expires_ns and old.first_ts and _ms(old.first_ts) + old.expires_ns // 1_000_000 <= now_ms
    if may_expire:
        fewer -= new.first_seq - old.first_seq
    return max(0, fewer)


def _ms(timestamp: str) -> int:
    return int(datetime.fromisoformat(timestamp[:19] + "+00:00").timestamp() * 1000)


class _Config(msgspec.Struct):
    name: str
    storage: str = "file"
    max_age: int = 0
    allow_msg_ttl: bool = False
    allow_direct: bool = False


class _Lost(msgspec.Struct):
    msgs: list[int] | None = None


class _State(msgspec.Struct):
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    first_ts: str = ""
    deleted: list[int] | None = None
    lost: _Lost | None = None  # the server sets it for some kinds of damage only


class _Stream(msgspec.Struct):
    config: _Config
    state: _State
    created: str = ""


class _Streams(msgspec.Struct):
    streams: list[_Stream] | None = None
    total: int = 0


async def stream_records(connection: Connection) -> dict[str, StreamRecord]:
    """The present states of all streams."""
    records: dict[str, StreamRecord] = {}
    while True:
        response = msgspec.json.decode(await connection.call("STREAM.LIST", {"offset": len(records)}), type=_Streams)
        records |= {one.config.name: _record(one) for one in response.streams or ()}
        if not response.streams or len(records) >= response.total:
            return records


def _record(stream: _Stream) -> StreamRecord:
    config, state = stream.config, stream.state
    return StreamRecord(
        created=stream.created,
        messages=state.messages,
        first_seq=state.first_seq,
        last_seq=state.last_seq,
        first_ts=state.first_ts,
        expires_ns=config.max_age,
        has_ttl=config.allow_msg_ttl,
        is_file=config.storage == "file",
        bytes=state.bytes,
    )


@dataclass(frozen=True, slots=True)
class StreamCheck:
    """The result of reading a stream. `unreadable`: messages that the stream counts, and cannot be read."""

    stream: str
    messages: int
    first: int
    last: int
    read: int
    unreadable: tuple[int, ...] = ()
    problem: str = ""

    @property
    def is_intact(self) -> bool:
        return not self.unreadable and not self.problem


async def check_stream(connection: Connection, name: str) -> StreamCheck | None:
    """Read every message of a stream, which may be in use meanwhile. None if it does not exist."""
    try:
        return await _check_stream(connection, name)
    except ApiFailure as failure:
        if failure.error.err_code == STREAM_NOT_FOUND:
            return None
        raise translate(failure.error) from failure


async def _check_stream(connection: Connection, name: str) -> StreamCheck:
    before = await _stream(connection, name)
    first, last, count = before.state.first_seq, before.state.last_seq, before.state.messages
    if not before.config.allow_direct:
        return StreamCheck(name, count, first, last, 0, problem="not readable: the stream does not allow direct gets")
    sequences: set[int] = set()
    position = first
    try:
        while position <= last:
            page = await stream_reader.read(connection, name, ">", position, _PAGE)
            sequences.update(entry.sequence for entry in page.entries if entry.sequence <= last)
            position = page.next_sequence
            if not page.entries:
                break
    except EngineUnavailable as exc:
        return StreamCheck(name, count, first, last, len(sequences), problem=f"from sequence {position}: {exc.detail}")
    unreadable = () if len(sequences) >= count else await _unreadable(connection, name, sequences, last)
    lost = len(before.state.lost.msgs or ()) if before.state.lost else 0
    problem = f"nats-server reports {lost} lost messages" if lost else ""
    return StreamCheck(name, count, first, last, len(sequences), unreadable, problem)


async def _unreadable(connection: Connection, name: str, read: set[int], last: int) -> tuple[int, ...]:
    """Sequences that were not read and are not deleted: those deleted meanwhile are in the present state."""
    now = (await _stream(connection, name, {"deleted_details": True})).state
    deleted = set(now.deleted or ())
    return tuple(number for number in range(now.first_seq, last + 1) if number not in read and number not in deleted)


async def _stream(connection: Connection, name: str, body: object = None) -> _Stream:
    return msgspec.json.decode(await connection.api(f"STREAM.INFO.{name}", body, timeout=30), type=_Stream)


def read_damage(data_dir: Path) -> Sequence[Damage]:
    """The damage found at earlier starts and not accepted yet."""
    try:
        return msgspec.json.decode((data_dir / DAMAGE_FILE).read_bytes(), type=list[Damage])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.MsgspecError) as exc:
        return [Damage("", f"{data_dir / DAMAGE_FILE} cannot be read: {type(exc).__name__}")]
