"""The text of a payload as archived lines have it. Pure."""

import hashlib
from typing import NamedTuple

ARCHIVED_BYTES_MAX = 256 * 1024


class ArchivedText(NamedTuple):
    """`text` is the payload as it was sent, else `digest` is the hex of its SHA-256."""

    text: str | None
    digest: str | None
    size: int


def archived_text(payload: bytes, *, is_hash_only: bool = False) -> ArchivedText:
    """The text of a payload; its hash if that is wanted, or the payload is too large or not UTF-8."""
    if not is_hash_only and len(payload) <= ARCHIVED_BYTES_MAX:
        try:
            return ArchivedText(payload.decode(), None, len(payload))
        except UnicodeDecodeError:
            pass
    return ArchivedText(None, hashlib.sha256(payload).hexdigest(), len(payload))
