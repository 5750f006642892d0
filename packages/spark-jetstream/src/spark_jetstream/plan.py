"""Read planning: offsets, sequence ranges, partitions, pushed filters and detection of data loss. Pure."""

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
    """Progress of a streaming query: the next sequence to read. `created` distinguishes a recreated stream of the same name."""

    stream: str
    created: str
    next: int

    def to_json(self) -> dict[str, Any]:
        return {"v": 1, "stream": self.stream, "created": self.created, "next": self.next}


def parse_offset(stream: str, value: dict[str, Any]) -> Offset:
    """Parse an offset of a checkpoint. Raises JetStreamError if its version or its stream is a different one."""
    if value.get("v") != 1:
        raise JetStreamError(f"the checkpoint contains an offset that this version cannot read: {value}")
    if value["stream"] != stream:
        raise JetStreamError(f"the checkpoint belongs to stream {value['stream']!r}, but the query reads {stream!r}")
    return Offset(stream, value["created"], value["next"])


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """Sequences from `first` to `last`, both included."""

    first: int
    last: int

    def __len__(self) -> int:
        return max(self.last - self.first + 1, 0)

    def split(self, count: int) -> "list[SequenceRange]":
        """Split into at most `count` ranges of nearly equal length, in order, none empty."""
        count = min(max(count, 1), len(self))
        edges = [self.first + len(self) * index // count for index in range(count + 1)] if count else []
        return [SequenceRange(first, after - 1) for first, after in pairwise(edges)]


def partition_count(sequences: SequenceRange, options: ReadOptions, messages: int | None = None) -> int:
    """Number of partitions: `partitions` if set, else by `messagesPerPartition`.

    With the stream's message count, deleted messages do not count. Without it the result depends on the range alone, as a
    repeated micro-batch requires.
    """
    if options.partitions is not None:
        return options.partitions
    count = len(sequences) if messages is None else min(len(sequences), max(messages, 1))
    return min(-(-count // options.messages_per_partition), _PARTITIONS_MAX)


def retention_loss(next_sequence: int, info: StreamInfo) -> str | None:
    """Description of the data loss if a reader cannot continue at `next_sequence`; None without loss."""
    if next_sequence < info.first:
        return (
            f"stream {info.name!r} now begins at sequence {info.first}, but sequence {next_sequence} is to be read next: "
            "it was removed"
        )
    if next_sequence > info.last + 1:
        return (
            f"stream {info.name!r} ends at sequence {info.last}, but sequence {next_sequence} is to be read next: "
            "the end of the stream was removed"
        )
    return None


def recreation_loss(created: str, info: StreamInfo) -> str | None:
    """Description of the data loss if the stream is not the one created at `created`; None without loss."""
    if created == info.created:
        return None
    return (
        f"stream {info.name!r} was recreated at {info.created} and begins at sequence {info.first}; "
        f"the messages to read belong to the stream created at {created}"
    )


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """Restrictions that the server applies. Without `subjects` all subjects match; if `is_empty`, no message can match."""

    subjects: tuple[str, ...] = ()
    first: int = 1
    last: int = 2**63 - 1
    is_empty: bool = False

    def at_least(self, sequence: int) -> "PushedFilters":
        return replace(self, first=max(self.first, sequence))

    def at_most(self, sequence: int) -> "PushedFilters":
        return replace(self, last=min(self.last, sequence))

    def one_of(self, subjects: Iterable[str]) -> "PushedFilters":
        """Restrict to these literal subjects."""
        left = tuple(one for one in dict.fromkeys(subjects) if not self.subjects or any(matches(f, one) for f in self.subjects))
        return replace(self, subjects=left, is_empty=self.is_empty or not left)


def are_literal_subjects(values: Iterable[object]) -> bool:
    """True if the server would match exactly these values: in a subject filter, `*` and `>` are wildcards."""
    return all(isinstance(value, str) and is_subject(value) for value in values)
