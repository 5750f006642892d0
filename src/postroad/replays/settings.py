"""Settings of replays."""

from dataclasses import dataclass

from postroad.kernel.configuration import Section, positive, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaysSettings(Section):
    replay_limit_share: float = setting(
        0.5, "Share of a route's rate limit that replays may use; the rest is for live commands.", lambda share: 0 < share <= 1
    )
    replay_bytes_max: int = setting(256 * 1024 * 1024, "Maximum size of the payloads that one replay selects.", positive)
    replays_per_tenant_max: int = setting(20, "Maximum number of replays of a tenant that have not ended.", positive)
