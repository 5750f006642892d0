"""Settings of durable streams."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsSettings(Section):
    stream_long_poll_seconds: float = setting(20.0, "Longest long poll of a stream.", lambda value: 0 < value <= 60)
    stream_retention_seconds: float = setting(60.0, "Interval in seconds in which streams with retention are trimmed.", positive)
    stream_sse_seconds: float = setting(
        300.0, "Seconds after which a live read over SSE ends; the client reconnects at its position.", positive
    )
