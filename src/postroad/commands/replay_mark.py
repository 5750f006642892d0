"""What a replay adds to the commands that it sends: fields of their events, headers, ids and a marker. Pure."""

import msgspec

from postroad.api.commands import REPLAY_ID_HEADER, REPLAY_REASON_HEADER, REPLAYED_HEADER
from postroad.kernel.ids import derived_id
from postroad.queues.message_writes import DeliveryMarker

REPLAY_DAYS = 30


class ReplayMark(msgspec.Struct, frozen=True, kw_only=True):
    """The replay that sends a command. `at_ms` is when the replay was created."""

    id: str
    reason: str
    at_ms: int

    @property
    def event_fields(self) -> dict[str, object]:
        return {"replay": True, "replay_reason": self.reason, "replay_id": self.id}

    @property
    def headers(self) -> dict[str, str]:
        return {REPLAYED_HEADER: "true", REPLAY_ID_HEADER: self.id, REPLAY_REASON_HEADER: self.reason}

    def marker(self, source: str, command_id: str) -> DeliveryMarker:
        """Kept as long as the replay: the same command of the same sender is delivered once for it."""
        return DeliveryMarker(owner=f"replay {self.id}", key=f"{source} {command_id}", ttl_ms=REPLAY_DAYS * 86_400_000)

    def derived_id(self, source: str, command_id: str, kind: str) -> str:
        """The same in every attempt of this replay, although each attempt has a timestamp and an HMAC of its own."""
        return derived_id(self.at_ms, "replay", self.id, source, command_id, kind)
