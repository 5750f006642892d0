"""Settings of telemetry."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings(Section):
    storage_sample_seconds: float = setting(
        10.0, "Interval in seconds in which the storage of each tenant is compared with its quota.", positive
    )
    sample_seconds: float = setting(
        10.0, "Interval in seconds of the samples of processes and queues: traffic, backlog, load (docs/events.md).", positive
    )
