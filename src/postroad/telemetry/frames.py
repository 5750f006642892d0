"""Frames: many events in one stored message.

Format 1. Subject `job.<tenant>`, `telemetry.<tenant>` or `command.<tenant>`; headers `Postroad-Frame: 1` and
`Postroad-Events: <count>`; the body has the events as JSON lines, in the order in which they happened in the sending process. The
position of an event is the sequence of its frame and its line; `event_id` identifies it.
"""

from collections.abc import Iterator, Sequence

import msgspec

from postroad.jetstream.management import StreamSpec
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.tail import republish

FRAME_VERSION = "1"
STREAMS = {"JOBS": "job", "TELEMETRY": "telemetry", "COMMANDS": "command"}  # new ones last: positions are in this order


def frame_subject(stream: str, tenant: str) -> str:
    return f"{STREAMS[stream]}.{tenant}"


def frame_headers(count: int) -> str:
    return header_lines([("Postroad-Frame", FRAME_VERSION), ("Postroad-Events", str(count))])


def pack(lines: Sequence[bytes]) -> bytes:
    return b"\n".join(lines)


def unpack(payload: bytes) -> Iterator[bytes]:
    """The JSON texts of the events of a frame."""
    return (line for line in payload.split(b"\n") if line)


def frame_streams(
    replicas: int, *, job_bytes_max: int = -1, telemetry_bytes_max: int = -1, command_bytes_max: int = -1
) -> list[StreamSpec]:
    """The streams of frames. Frames that the pipeline has read are trimmed (`jobs/frame_trimmer.py`); if no pipeline runs, the
    engine drops the oldest frames by age and size, so that the events of a busy tenant cannot fill the store."""
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
