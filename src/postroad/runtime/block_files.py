"""Block files of nats-server's store: sizes, checksums, and the last sequence of a stream, read while no server runs."""

import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

_RECORD = struct.Struct("<IQqH")  # length, sequence, time, length of the subject
_CHECKSUM_BYTES = 8
_HAS_HEADERS = 1 << 31  # of the length
_ERASED, _TOMBSTONE = 1 << 63, 1 << 62  # of the sequence
_COMPRESSED = b"cmp"
_READ_BYTES = 1024 * 1024


class BlockRecord(msgspec.Struct, frozen=True, array_like=True):
    """A block file at one time. Without a checksum if there was no time to compute it."""

    size: int
    mtime_ns: int
    crc: int | None = None


@dataclass(frozen=True, slots=True)
class Block:
    stream: str
    path: Path
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class LastRecord:
    """The complete records in the last block of a stream: the last message, the highest sequence of messages and of tombstones,
    and the end of the last record."""

    stream: str
    message: int
    highest: int
    end: int


def blocks(store: Path) -> dict[str, Block]:
    """All block files below the store's directory, by their path in it."""
    return {str(block.path.relative_to(store)): block for block in _blocks(store)}


def _blocks(store: Path) -> Iterator[Block]:
    for path in store.glob("jetstream/*/streams/*/msgs/*.blk"):
        status = path.stat()
        yield Block(path.parts[-3], path, status.st_size, status.st_mtime_ns)


def record_blocks(store: Path, earlier: Mapping[str, BlockRecord], seconds: float) -> dict[str, BlockRecord]:
    """Records of all blocks. Unchanged blocks have the checksums of the earlier records; others are computed for `seconds`."""
    deadline = time.monotonic() + seconds
    records = {}
    for name, block in blocks(store).items():
        known = earlier.get(name)
        if known is None or (known.size, known.mtime_ns) != (block.size, block.mtime_ns) or known.crc is None:
            known = BlockRecord(block.size, block.mtime_ns, _crc(block.path) if time.monotonic() < deadline else None)
        records[name] = known
    return records


def changed_blocks(store: Path, earlier: Mapping[str, BlockRecord], seconds: float, *, is_clean: bool) -> dict[str, str]:
    """Streams with a block that is not as it was recorded, and the difference.

    After a clean stop (`is_clean`) every block must be the same. Otherwise only blocks with the recorded time of change must be.
    Checksums are compared for `seconds`.
    """
    deadline = time.monotonic() + seconds
    found, changed = blocks(store), dict[str, str]()
    for name, record in earlier.items():
        block = found.get(name)
        if block is None:
            if is_clean:
                changed[Path(name).parts[-3]] = f"block file {name} is missing"
        elif not is_clean and block.mtime_ns != record.mtime_ns:
            continue
        elif block.size != record.size:
            changed[block.stream] = f"block file {name} had {record.size} bytes and has {block.size}"
        elif record.crc is not None and time.monotonic() < deadline and _crc(block.path) != record.crc:
            changed[block.stream] = f"the content of block file {name} has changed"
    return changed


def last_records(store: Path, since_ns: int, seconds: float) -> dict[str, LastRecord | None]:
    """The last records of the streams whose last block changed after `since_ns`, by the path of the block.

    None for blocks that could not be read within `seconds`.
    """
    deadline = time.monotonic() + seconds
    newest: dict[str, tuple[str, Block]] = {}
    for name, block in blocks(store).items():
        known = newest.get(block.stream)
        if known is None or int(block.path.stem) > int(known[1].path.stem):
            newest[block.stream] = (name, block)
    recent = [(name, block) for name, block in newest.values() if block.mtime_ns >= since_ns]
    recent.sort(key=lambda one: -one[1].mtime_ns)
    return {
        name: LastRecord(block.stream, *last_record(block.path.read_bytes())) if time.monotonic() < deadline else None
        for name, block in recent
    }


def last_record(content: bytes) -> tuple[int, int, int]:
    """The values of `LastRecord`; sequences are 0 without a record.

    A record at the end may be incomplete, if the server was killed while it wrote. Compressed blocks have no readable records.
    """
    message, highest, position = 0, 0, 0
    while not content.startswith(_COMPRESSED) and position + _RECORD.size <= len(content):
        length, sequence, _, subject = _RECORD.unpack_from(content, position)
        length &= ~_HAS_HEADERS
        if length < _RECORD.size + subject + _CHECKSUM_BYTES or position + length > len(content):
            break
        if not sequence & (_ERASED | _TOMBSTONE):
            message = max(message, sequence)
        highest = max(highest, sequence & ~(_ERASED | _TOMBSTONE))
        position += length
    return message, highest, position


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb", buffering=0) as file:
        while chunk := file.read(_READ_BYTES):
            crc = zlib.crc32(chunk, crc)
    return crc
