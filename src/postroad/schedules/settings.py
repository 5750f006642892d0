"""Settings of schedules."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulesSettings(Section):
    schedules_max: int = setting(1000, "Maximum number of schedules of a tenant.", positive)
    schedule_payload_bytes_max: int = setting(
        64 * 1024, "Maximum size of the payload of a schedule, which every worker has in memory.", positive
    )
    schedule_interval_ms_min: int = setting(1000, "Shortest interval of a schedule (`everyMs`).", positive)
    schedule_grace_seconds: int = setting(
        60, "Seconds after which a tick that did not fire is missed, and the catch-up policy decides.", positive
    )
    schedule_catch_up_seconds: int = setting(
        86_400, "With the catch-up policy `all`, missed ticks of so many last seconds are published.", positive
    )
