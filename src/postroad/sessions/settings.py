"""Settings of sessions."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionsSettings(Section):
    session_ttl_seconds: int = setting(1800, "Seconds that a session lives after its last activity.", positive)
    fanout_queue: bool = setting(
        True, "Queue large fan-outs for the delivery role; if off, they are skipped and completed later."
    )
    fanout_queue_threshold: int = setting(200, "Subscribers above which a fan-out is queued.", lambda value: value >= 0)
    fanout_inline_max: int = setting(1000, "Subscribers above which a fan-out without a queue is skipped.", positive)
    fanout_complete_seconds: float = setting(15.0, "Interval in seconds of the search for unfinished fan-outs.", positive)
    session_clean_seconds: float = setting(300.0, "Interval in seconds of the clean-up of expired sessions.", positive)
