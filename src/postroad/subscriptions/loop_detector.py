"""Suspected loops: a receiver that changes the key whose change it is being delivered, again and again. Pure.

For receivers that do not send `X-MQ-Hops` back. A change of a bucket has the time of the write; if that lies within the delivery
of the previous change of the same key to the same subscription, the receiver is likely to have made it.
"""

from dataclasses import dataclass

from postroad.topics import rules
from postroad.topics.records import StoredTopicMessage

REPEATS = 10  # in a row
_KEYS_MAX = 1000


@dataclass(slots=True)
class _Key:
    started_ms: int
    ended_ms: int
    repeats: int = 0


class LoopDetector:
    """`suspected`: the key that was changed during its own delivery at least `REPEATS` times in a row, the last time at least."""

    __slots__ = ("_keys", "suspected")

    def __init__(self) -> None:
        self.suspected: str | None = None
        self._keys: dict[str, _Key] | None = None  # the oldest first; None before the first change of a bucket

    def add(self, message: StoredTopicMessage, started_ms: int, ended_ms: int) -> bool:
        """Count a delivery; return whether it raises the suspicion. Messages that are no changes of a bucket do not count."""
        changed_at = message.headers.get(rules.CHANGED_AT, "")
        if not changed_at.isdecimal() or len(changed_at) > 15:
            return False
        if self._keys is None:
            self._keys = {}
        key = self._keys.pop(message.subject, None)
        is_response = key is not None and key.started_ms <= int(changed_at) <= key.ended_ms
        repeats = key.repeats + 1 if key is not None and is_response else 0
        self._keys[message.subject] = _Key(started_ms, ended_ms, repeats)
        if len(self._keys) > _KEYS_MAX:
            del self._keys[next(iter(self._keys))]
        if repeats >= REPEATS:
            is_new, self.suspected = self.suspected != message.subject, message.subject
            return is_new
        if self.suspected == message.subject:
            self.suspected = None
        return False
