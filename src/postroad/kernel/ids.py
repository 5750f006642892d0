"""Identifiers: sortable UUIDs for stored records, short ids for requests."""

import hashlib
import itertools
import os
import re
import time
from binascii import hexlify

_pool = b""
_used = 0
_VARIANT = {digit: "89ab"[index % 4] for index, digit in enumerate("0123456789abcdef")}  # the variant bits of RFC 9562
_ID = re.compile("[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def _random(count: int) -> bytes:
    """Random bytes of the system, fetched 4 KiB at a time: a system call per id would cost more than the id."""
    global _pool, _used
    if _used + count > len(_pool):
        _pool, _used = os.urandom(4096), 0
    _used += count
    return _pool[_used - count : _used]


def _clear_pool() -> None:
    """Child processes must not share the random bytes of their parent."""
    global _pool
    _pool = b""


os.register_at_fork(after_in_child=_clear_pool)


def new_id() -> str:
    """A UUID version 7, which sorts by time to the millisecond."""
    stamp = f"{time.time_ns() // 1_000_000:012x}"
    noise = hexlify(_random(10)).decode()
    return f"{stamp[:8]}-{stamp[8:]}-7{noise[:3]}-{_VARIANT[noise[3]]}{noise[4:7]}-{noise[7:19]}"


def derived_id(at_ms: int, *parts: object) -> str:
    """A UUID version 8 that depends on its arguments only: the time, which it sorts by, and a hash of the parts."""
    return derived_ids(1, at_ms, *parts)[0]


def derived_ids(count: int, at_ms: int, *parts: object) -> list[str]:
    """Up to six different ids like `derived_id`, at the cost of one hash."""
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=10 * count).hexdigest()
    stamp = f"{at_ms:012x}"
    head = f"{stamp[:8]}-{stamp[8:]}-8"
    return [
        f"{head}{digest[at : at + 3]}-{_VARIANT[digest[at + 3]]}{digest[at + 4 : at + 7]}-{digest[at + 7 : at + 19]}"
        for at in range(0, 20 * count, 20)
    ]


def id_bytes(text: str) -> bytes:
    """The 16 bytes of a UUID. Raises ValueError. A third of the cost of an object of the library's class."""
    check_id(text)
    return bytes.fromhex(text.replace("-", ""))


def id_text(raw: bytes) -> str:
    """The UUID of these 16 bytes."""
    digits = raw.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def id_time_ms(text: str) -> int | None:
    """The time that an id begins with; None if it is no id of ours."""
    return int(text[:8] + text[9:13], 16) if _ID.fullmatch(text) is not None and text[14] in "78" else None


def check_id(text: str) -> None:
    """Raises ValueError if the text is not a UUID."""
    if _ID.fullmatch(text) is None:
        raise ValueError("not a UUID")


def new_request_id() -> str:
    """A random id. Clients see it: a counter would reveal how many requests others send."""
    return hexlify(_random(9)).decode()


class ShortIds:
    """Generates ids for batches: a random prefix per process, and a counter."""

    def __init__(self) -> None:
        self._prefix = os.urandom(6).hex()
        self._next = itertools.count(1).__next__

    def __call__(self) -> str:
        return f"{self._prefix}{self._next():x}"
