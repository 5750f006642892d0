import struct
from pathlib import Path

import pytest

from postroad.runtime.block_files import BlockRecord, changed_blocks, last_record, last_records, record_blocks

NAME = "jetstream/$G/streams/ORDERS/msgs/1.blk"


def _record(sequence: int, payload: bytes = b"payload") -> bytes:
    length = 22 + 1 + len(payload) + 8
    return struct.pack("<IQqH", length, sequence, 0, 1) + b"a" + payload + b"checksum"


@pytest.fixture
def block(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(_record(1) + _record(2))
    return path


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", (0, 0, 0)),
        (_record(7), (7, 7, 38)),
        (_record(7) + _record(8), (8, 8, 76)),
        (_record(7) + _record(8)[:-1], (7, 7, 38)),
        (_record(7) + _record(5 | 1 << 62), (7, 7, 76)),  # a tombstone of message 5
        (_record(7) + _record(9 | 1 << 63), (7, 9, 76)),  # an erased message
        (_record(7) + bytes(38), (7, 7, 38)),
        (b"cmp" + _record(7), (0, 0, 0)),
        (b"\xff" * 100, (0, 0, 0)),
    ],
)
def test_the_last_complete_record_of_a_block(content: bytes, expected: tuple[int, int, int]) -> None:
    assert last_record(content) == expected


def test_only_the_last_block_of_a_stream_is_read(tmp_path: Path, block: Path) -> None:
    block.with_name("10.blk").write_bytes(_record(20))
    block.with_name("9.blk").write_bytes(_record(10))

    [found] = last_records(tmp_path, 0, 10).values()

    assert found is not None and (found.stream, found.message) == ("ORDERS", 20)
    assert not last_records(tmp_path, 2**63, 10), "none changed since then"
    assert list(last_records(tmp_path, 0, 0).values()) == [None], "no time to read it"


def test_a_change_of_a_block_is_found(tmp_path: Path, block: Path) -> None:
    records = record_blocks(tmp_path, {}, 10)
    assert changed_blocks(tmp_path, records, 10, is_clean=True) == {}

    content = bytearray(block.read_bytes())
    content[30] ^= 1
    block.write_bytes(content)

    assert "content" in changed_blocks(tmp_path, records, 10, is_clean=True)["ORDERS"]
    assert changed_blocks(tmp_path, records, 10, is_clean=False) == {}, "the server may have written to it"


def test_checksums_of_unchanged_blocks_are_kept(tmp_path: Path, block: Path) -> None:
    status = block.stat()
    earlier = {NAME: BlockRecord(status.st_size, status.st_mtime_ns, 4711)}

    assert record_blocks(tmp_path, earlier, 10) == earlier
    assert "content" in changed_blocks(tmp_path, earlier, 10, is_clean=False)["ORDERS"]


def test_without_time_a_block_has_no_checksum(tmp_path: Path, block: Path) -> None:
    records = record_blocks(tmp_path, {}, 0)

    assert records[NAME].crc is None
    assert changed_blocks(tmp_path, records, 10, is_clean=True) == {}
