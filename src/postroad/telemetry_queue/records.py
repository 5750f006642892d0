"""Stored formats of the telemetry queue. Pure."""

import msgspec

READS_BUCKET = "postroad_telemetry_reads"
DROPS_BUCKET = "postroad_telemetry_drops"
STREAM = "COMMANDS"


class ReadRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Format 1, under `<tenant>`: when events were last received, to the minute."""

    v: int = 1
    at_ms: int


class DropRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Format 1, under `<tenant>`: the events that were dropped on `day`, and why the last ones were. `counted` are the sequences
    of the frames of the last batch, which may still be in the queue if the process was killed."""

    v: int = 1
    day: str = ""
    dropped: int = 0
    oldest_at_ms: int = 0
    counted: tuple[int, ...] = ()
    reason: str = "queue_unconsumed"


def consumer_name(tenant: str) -> str:
    return f"telemetry_{tenant}"
