"""Stored formats of durable streams: the record with a stream's properties, and checkpoints of its producers.

The first record of a stream contains its own sequence as `incarnation`. The sequence is unknown when the record is written, so
the stored value is 0, and `resolve` replaces it when the record is read. The same holds for `guarded_from`.
"""

from enum import StrEnum

import msgspec

from postroad.api.streams import is_json

VERSION = 1


class State(StrEnum):
    LIVE = "live"
    SOFT_DELETED = "hidden"  # forks still read from it
    DELETED = "deleted"


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """Data that a fork reads from another stream: one incarnation of it, up to and including the sequence `until`."""

    stream: str
    incarnation: int
    until: int


class Origin(msgspec.Struct, frozen=True):
    """Source of a fork. `segments` are in order, the oldest first."""

    source: str
    source_incarnation: int = msgspec.field(name="source_born")
    until: int
    sub_offset: int
    segments: tuple[Segment, ...]


class ClosedBy(msgspec.Struct, frozen=True, array_like=True):
    """Producer, epoch and sequence of the append that closed a stream."""

    producer: str
    epoch: int
    sequence: int


class Retention(msgspec.Struct, frozen=True, omit_defaults=True):
    """Limits of a stream: older appends, and those beyond the limits, are dropped."""

    max_age_seconds: int | None = None
    max_bytes: int | None = None
    max_count: int | None = None


class RetentionProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Bytes of the appends after the sequence `start`, up to and including `at`."""

    v: int = VERSION
    incarnation: int = 0
    start: int = 0
    at: int = 0
    bytes: int = 0


class StreamRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Properties of a stream. Every append depends on the last record: a new one refuses appends decided from an older one.

    `incarnation` is the sequence of the first record: a stream that is deleted and created again has another.
    `is_session_stream`: the fan-out writes to it without reading this record, so it cannot be closed. `guarded_from` is the
    sequence from which on appends have producers or `Stream-Seq`. `trimmed_to` is the last sequence that retention has dropped, 0
    if none. `used_at_ms` is the time of the last use in a record that trimming has written, which is no use.
    """

    v: int = VERSION
    id: str
    content_type: str
    created_at_ms: int
    incarnation: int = msgspec.field(default=0, name="born")
    state: State = State.LIVE
    ttl_seconds: int | None = None
    expires_at_ms: int | None = None
    expires_at: str | None = None  # the text of the request
    is_public: bool = False
    is_session_stream: bool = msgspec.field(default=False, name="is_fed")
    is_closed: bool = False
    closed_by: ClosedBy | None = None
    guarded_from: int | None = None
    origin: Origin | None = None
    forks: int = 0
    retention: Retention | None = None
    trimmed_to: int = 0
    used_at_ms: int = 0

    @property
    def is_json(self) -> bool:
        return is_json(self.content_type)

    @property
    def base(self) -> int:
        """Position at which its own data begins: the end of the data from its source."""
        return self.origin.until if self.origin is not None else 0


class Producer(msgspec.Struct, frozen=True, array_like=True):
    """Epoch and last sequence of a producer."""

    epoch: int
    sequence: int


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Producers and last `Stream-Seq` of all data up to the sequence `at`."""

    v: int = VERSION
    incarnation: int = msgspec.field(name="born")
    at: int
    producers: dict[str, Producer]
    last_seq: str | None


def resolve(record: StreamRecord, sequence: int) -> StreamRecord:
    """The record with its own sequence in place of the zeros."""
    if record.incarnation and record.guarded_from != 0:
        return record
    return msgspec.structs.replace(
        record,
        incarnation=record.incarnation or sequence,
        guarded_from=sequence if record.guarded_from == 0 else record.guarded_from,
    )


encode_record = msgspec.json.Encoder().encode
decode_record = msgspec.json.Decoder(StreamRecord).decode
decode_progress = msgspec.json.Decoder(RetentionProgress).decode
decode_checkpoint = msgspec.json.Decoder(Checkpoint).decode
