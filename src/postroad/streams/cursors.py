"""Cursors of live reads. They keep a cache from answering a reader's next request with its previous response: a cursor changes
every 20 seconds, and a reader that returns one always gets a later one."""

import random
import time

from postroad.kernel.errors import InvalidParameter
from postroad.streams.offsets import offset_text

_EPOCH = 1_728_432_000  # 2024-10-09T00:00:00Z
_INTERVAL = 20
_JUMP_SECONDS = 3600
_DIGITS_MAX = 18


def cursor_now() -> int:
    return int(time.time() - _EPOCH) // _INTERVAL


def cursor_after(given: int | None) -> int:
    """The current cursor, or a later one if the reader has the current one already."""
    current = cursor_now()
    if given is None or given < current:
        return current
    return given + max(1, random.randint(1, _JUMP_SECONDS) // _INTERVAL)  # noqa: S311  # spreads readers, no secret


def parse_cursor(text: str | None) -> int | None:
    """Raises InvalidParameter."""
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > _DIGITS_MAX:
        raise InvalidParameter("cursor must be the number from the previous response")
    return int(text)


def control_event(position: int, cursor: int | None, *, is_up_to_date: bool, is_closed: bool = False) -> bytes:
    """Server-sent event with the reader's position. Its id lets a browser's EventSource reconnect at this position."""
    offset = offset_text(position)
    fields = f'"streamNextOffset":"{offset}"'
    if cursor is not None and not is_closed:
        fields += f',"streamCursor":"{cursor}"'
    if is_up_to_date:
        fields += ',"upToDate":true'
    if is_closed:
        fields += ',"streamClosed":true'
    return f"id: {offset}\nevent: control\ndata:{{{fields}}}\n\n".encode()
