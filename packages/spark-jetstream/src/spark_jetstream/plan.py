"""Which sequences are read, and by how many at once. No network here: everything is decided from what a stream says of itself."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from spark_jetstream.api import StreamInfo
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options import ReadOptions
from spark_jetstream.subjects import is_subject, matches

_PARTITIONS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Offset:
    """How far a query has come: the first sequence it has not read. `created` tells a stream from another of the same name."""

    stream: str
    created: str
    next: int

    def to_json(self) -> dict[str, Any]:
        return {"v": 1, "stream": self.stream, "created": self.created, "next": self.next}


def offset_of(stream: str, value: dict[str, Any]) -> Offset:
    """An offset from a checkpoint. Raises JetStreamError when it is not one of this stream."""
    if value.get("v") != 1:
        raise JetStreamError(f"the checkpoint holds an offset that this version cannot read: {value}")
    if value["stream"] != stream:
        raise JetStreamError(f"the checkpoint belongs to the stream {value['stream']!r}, and {stream!r} is to be read")
    return Offset(stream, value["created"], value["next"])


@dataclass(frozen=True, slots=True)
class Span:
    """Sequences from `first` to `last`, both included."""

    first: int
    last: int

    def __len__(self) -> int:
        return max(self.last - self.first + 1, 0)


def split(span: Span, parts: int) -> list[Span]:
    """Spans of nearly the same length, in order, none empty."""
    count = min(max(parts, 1), len(span))
    edges = [span.first + len(span) * place // count for place in range(count + 1)] if count else []
    return [Span(first, after - 1) for first, after in pairwise(edges)]


def parts_for(span: Span, options: ReadOptions, messages: int | None = None) -> int:
    """How many partitions: as many as asked for, or by their size. With the number of messages in the stream, what was deleted
    does not count; without it the answer is the same whenever it is asked, as a batch that is done again needs it.
    """
    if options.partitions is not None:
        return options.partitions
    there = len(span) if messages is None else min(len(span), max(messages, 1))
    return min(-(-there // options.messages_per_partition), _PARTITIONS_MAX)


def retention_loss(wanted: int, info: StreamInfo) -> str | None:
    """What is missing if a reader wants to go on at `wanted`, in words; None if nothing is."""
    if wanted < info.first:
        return f"the stream {info.name!r} begins at sequence {info.first} now, and {wanted} was to be read next: it was removed"
    if wanted > info.last + 1:
        return f"the stream {info.name!r} ends at sequence {info.last}, and {wanted} was to be read next: its end is gone"
    return None


def recreation_loss(created: str, info: StreamInfo) -> str | None:
    if created == info.created:
        return None
    return (
        f"the stream {info.name!r} was made anew at {info.created} and begins at sequence {info.first}; "
        f"what was to be read is of the one made at {created}"
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the filters of a query leave to be read. `subjects` empty: all of them; `is_nothing`: no message can fit."""

    subjects: tuple[str, ...] = ()
    first: int = 1
    last: int = 2**63 - 1
    is_nothing: bool = False

    def at_least(self, sequence: int) -> "Wanted":
        return replace(self, first=max(self.first, sequence))

    def at_most(self, sequence: int) -> "Wanted":
        return replace(self, last=min(self.last, sequence))

    def only(self, subjects: Iterable[str]) -> "Wanted":
        """Only these exact subjects, of those that were wanted before."""
        left = tuple(one for one in dict.fromkeys(subjects) if not self.subjects or any(matches(p, one) for p in self.subjects))
        return replace(self, subjects=left, is_nothing=self.is_nothing or not left)


def are_subjects(values: Iterable[object]) -> bool:
    """Whether these can be asked of the server as they are: a literal `*` would mean something else there."""
    return all(isinstance(value, str) and is_subject(value) for value in values)
