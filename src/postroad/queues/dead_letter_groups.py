"""Groups of dead letters by cause, header or field, and their distribution over time. Pure."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from postroad.api.dead_letters import DeadGroup, Histogram
from postroad.kernel.clock import rfc3339
from postroad.queues.filters import field_of
from postroad.queues.records import DeadLetter, StoredMessage

_ID = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"  # a UUID
    r"|\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"  # another hexadecimal id
    r"|\b(?=\w*[0-9])(?=\w*[A-Za-z])\w{16,}\b"  # a random id
    r"|[0-9]+(?:[.,:][0-9]+)*"  # a number, a time, an address
)
_GROUP_CHARS_MAX = 200
_GROUPS_MAX = 200
_BUCKETS_MAX = 60
_BUCKETS_MS = (1_000, 5_000, 15_000, 60_000, 300_000, 900_000, 3_600_000, 21_600_000, 86_400_000, 604_800_000)


def error_group(text: str) -> str:
    """The error without what differs between its occurrences: digits and ids are `#`."""
    return _ID.sub("#", text)[:_GROUP_CHARS_MAX]


def group_of_letter(letter: DeadLetter) -> str:
    """By the last error, which is the cause; the reason alone, such as `maxAttempts reached`, explains nothing."""
    return error_group(letter.last_error or letter.reason)


GroupKey = Callable[[DeadLetter, StoredMessage], str | None]


def group_key(group_by: str) -> GroupKey:
    """The group of a dead letter; None if it lacks the header or field."""
    kind, _, name = group_by.partition(":")
    if kind == "header":
        return lambda _letter, message: message.headers.get(name)
    if kind == "field":
        return lambda _letter, message: _text(field_of(message, name.split(".")))
    if kind == "error":
        return lambda letter, _message: group_of_letter(letter)
    return lambda letter, _message: letter.reason


def _text(value: Any) -> str | None:
    """The value as it is in a filter `field=value`. Objects and lists make no groups."""
    if isinstance(value, str):
        return value[:_GROUP_CHARS_MAX]
    if isinstance(value, bool | int | float):
        return msgspec.json.encode(value).decode()
    return None


@dataclass(frozen=True, slots=True)
class GroupedLetter:
    """What a group needs of a dead letter."""

    group: str | None
    dead_at: int
    message_id: str
    error: str


@dataclass(frozen=True, slots=True)
class _Scale:
    """Intervals of time: the first one, in units of their length, the length and the number."""

    first: int
    width_ms: int
    size: int

    def counts(self, times: Iterable[int]) -> list[int]:
        counts = [0] * self.size
        for at in times:
            counts[at // self.width_ms - self.first] += 1
        return counts


def groups_of(letters: Sequence[GroupedLetter]) -> tuple[list[DeadGroup], int, Histogram]:
    """The largest groups, the number of dead letters in the others, and the time scale of all of them."""
    scale = _scale([one.dead_at for one in letters])
    by_group: dict[str | None, list[GroupedLetter]] = {}
    for one in letters:
        by_group.setdefault(one.group, []).append(one)
    ordered = sorted(by_group.items(), key=lambda item: (-len(item[1]), item[0] or ""))
    groups = []
    for group, some in ordered[:_GROUPS_MAX]:
        newest = max(some, key=lambda one: one.dead_at)
        groups.append(
            DeadGroup(
                group=group,
                reason=group or "",
                count=len(some),
                first_at=rfc3339(min(one.dead_at for one in some)),
                last_at=rfc3339(newest.dead_at),
                sample_id=newest.message_id,
                sample=newest.error,
                counts=scale.counts(one.dead_at for one in some),
            )
        )
    return groups, sum(len(some) for _, some in ordered[_GROUPS_MAX:]), _histogram(scale, [one.dead_at for one in letters])


def histogram_of(times: Sequence[int]) -> Histogram:
    """Counts over time in at most 60 intervals of a round length."""
    return _histogram(_scale(times), times)


def _histogram(scale: _Scale, times: Sequence[int]) -> Histogram:
    start = rfc3339(scale.first * scale.width_ms) if times else None
    return Histogram(start=start, bucket_ms=scale.width_ms, counts=scale.counts(times))


def _scale(times: Sequence[int]) -> _Scale:
    if not times:
        return _Scale(0, _BUCKETS_MS[0], 0)
    first, last = min(times), max(times)
    week = _BUCKETS_MS[-1]
    many_weeks = week * -(-(last - first + week) // (week * (_BUCKETS_MAX - 1)))  # for decades
    width = next((one for one in _BUCKETS_MS if last // one - first // one < _BUCKETS_MAX), many_weeks)
    return _Scale(first // width, width, last // width - first // width + 1)
