"""What is stored of a durable stream: the record of what it is, and what is known of its producers up to some point.

A record may be the first of its stream, and then its own sequence is what `born` should say; so it says 0, and who reads it
fills that in (`resolved`). The same holds for `guarded_from`.
"""

from enum import StrEnum
from functools import lru_cache

import msgspec

VERSION = 1


class State(StrEnum):
    LIVE = "live"
    HIDDEN = "hidden"  # deleted, but forks still read from it
    DELETED = "deleted"


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Data that a fork has from another stream: those of its incarnation `born`, up to and with the sequence `until`."""

    stream: str
    born: int
    until: int


class Origin(msgspec.Struct, frozen=True):
    """What a fork was made of. `segments` are in order, the oldest first."""

    source: str
    source_born: int
    until: int
    sub_offset: int
    segments: tuple[Segment, ...]


class ClosedBy(msgspec.Struct, frozen=True, array_like=True):
    producer: str
    epoch: int
    sequence: int


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a stream is. A change of it stops every append that was made in ignorance of it."""

    v: int = VERSION
    id: str
    content_type: str
    created_at_ms: int
    born: int = 0
    state: State = State.LIVE
    ttl_seconds: int | None = None
    expires_at_ms: int | None = None
    expires_at: str | None = None  # as it was given
    is_public: bool = False
    is_session_stream: bool = msgspec.field(
        default=False, name="is_fed"
    )  # others write to it without knowing this record, so it cannot be closed
    is_closed: bool = False
    closed_by: ClosedBy | None = None
    guarded_from: int | None = None  # since when appends with a producer or Stream-Seq have been made
    origin: Origin | None = None
    forks: int = 0

    @property
    def is_json(self) -> bool:
        return media_type(self.content_type) == "application/json"

    @property
    def base(self) -> int:
        """Where its own data begin: the end of what it has from its source."""
        return self.origin.until if self.origin is not None else 0


class Producer(msgspec.Struct, frozen=True, array_like=True):
    epoch: int
    sequence: int


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of producers and Stream-Seq from all data up to `at`."""

    v: int = VERSION
    born: int
    at: int
    producers: dict[str, Producer]
    last_seq: str | None


@lru_cache(maxsize=1024)
def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def resolved(record: StreamRecord, sequence: int) -> StreamRecord:
    """The record as it was meant, now that its own sequence is known."""
    if record.born and record.guarded_from != 0:
        return record
    return msgspec.structs.replace(
        record,
        born=record.born or sequence,
        guarded_from=sequence if record.guarded_from == 0 else record.guarded_from,
    )


encode_record = msgspec.json.Encoder().encode
decode_record = msgspec.json.Decoder(StreamRecord).decode
decode_checkpoint = msgspec.json.Decoder(Checkpoint).decode
