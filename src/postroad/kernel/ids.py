"""Identifiers: sortable UUIDs for what is stored, short ones for requests."""

import itertools
import os
import time
from binascii import hexlify

_pool = b""
_used = 0


def _random(count: int) -> bytes:
    """Bytes from the system's generator, fetched 4 KiB at a time: a system call per id would cost more than the id."""
    global _pool, _used
    if _used + count > len(_pool):
        _pool, _used = os.urandom(4096), 0
    _used += count
    return _pool[_used - count : _used]


def _forget_pool() -> None:
    global _pool
    _pool = b""


os.register_at_fork(after_in_child=_forget_pool)


def new_id() -> str:
    """A UUID version 7: its order is the order of time, to the millisecond."""
    noise = bytearray(_random(10))
    noise[0] = 0x70 | (noise[0] & 0x0F)
    noise[2] = 0x80 | (noise[2] & 0x3F)
    text = f"{time.time_ns() // 1_000_000:012x}" + hexlify(noise).decode()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class ShortIds:
    """Ids unique across processes by their prefix and within one by a counter; for requests and batches."""

    def __init__(self) -> None:
        self._prefix = os.urandom(6).hex()
        self._next = itertools.count(1).__next__

    def __call__(self) -> str:
        return f"{self._prefix}{self._next():x}"
