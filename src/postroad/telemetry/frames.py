"""Frames: many events in one stored message.

Format 1. Subject `job.<tenant>`, `telemetry.<tenant>` or `command.<tenant>`; headers `Postroad-Frame: 1` and
`Postroad-Events: <count>`; the body has the events as JSON lines, in the order in which they happened in the sending process. The
position of an event is the sequence of its frame and its line; `event_id` identifies it.

The line after an event may be an archived one: the payload of the command or message that the event is about, as
`command.archived` or `message.archived`. It may be large. `Postroad-Events` does not count it, and readers of events skip it
by its first bytes, without decoding it.
"""

from collections.abc import Iterator, Sequence

import msgspec

from postroad.jetstream.management import StreamSpec
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.tail import republish

FRAME_VERSION = "1"
STREAMS = {"JOBS": "job", "TELEMETRY": "telemetry", "COMMANDS": "command"}  # new ones last: positions are in this order

_ARCHIVED = (b'{"event":"command.archived"', b'{"event":"message.archived"')


def frame_subject(stream: str, tenant: str) -> str:
    return f"{STREAMS[stream]}.{tenant}"


def frame_headers(count: int) -> str:
    return header_lines([("Postroad-Frame", FRAME_VERSION), ("Postroad-Events", str(count))])


def pack(lines: Sequence[bytes]) -> bytes:
    return b"\n".join(lines)


def is_archived(line: bytes) -> bool:
    """True for a line with the payload of a command or message. The type is always the first field."""
    return line.startswith(_ARCHIVED)


def unpack(payload: bytes) -> Iterator[bytes]:
    """The JSON texts of the events of a frame, without archived lines."""
    return (line for line in payload.split(b"\n") if line and not line.startswith(_ARCHIVED))


def unpack_archived(payload: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """The JSON texts of the events of a frame, each with its archived line if it has one."""
    event: bytes | None = None
    for line in payload.split(b"\n"):
        if event is not None and line.startswith(_ARCHIVED):
            yield event, line
            event = None
        elif line and not line.startswith(_ARCHIVED):
            if event is not None:
                yield event, None
            event = line
    if event is not None:
        yield event, None


def frame_streams(
    replicas: int, *, job_bytes_max: int = -1, telemetry_bytes_max: int = -1, command_bytes_max: int = -1
) -> list[StreamSpec]:
    """The streams of frames. Frames that the pipeline has read are trimmed (`jobs/frame_trimmer.py`); if no pipeline runs, the
    engine drops the oldest frames by age and size, so that the events of a busy tenant cannot fill the store. Room on `COMMANDS`
    is made before that (`telemetry_queue/evictor.py`)."""
    bytes_max = {"JOBS": job_bytes_max, "TELEMETRY": telemetry_bytes_max, "COMMANDS": command_bytes_max}
    return [
        StreamSpec(
            stream,
            (f"{word}.>",),
            {
                "allow_atomic": True,
                "num_replicas": replicas,
                "max_age": 14 * 86_400 * 1_000_000_000,
                "max_bytes": bytes_max[stream],
                "duplicate_window": 60_000_000_000,
                "republish": republish(f"{word}.>"),
            },
        )
        for stream, word in STREAMS.items()
    ]


encode_event = msgspec.json.Encoder().encode
