"""Settings of telemetry."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings(Section):
    sample_seconds: float = setting(
        10.0, "Interval in seconds of the samples of processes and queues: traffic, backlog, load (docs/events.md).", positive
    )
