"""Fields that the protocol promises for each event, apart from the types that declare them."""

import msgspec
import pytest

from postroad import registry
from postroad.kernel.event import event_name

COMMAND = {"command_id", "source", "target", "command.name"}
COMMON = {"event_id", "timestamp", "tenant", "version"}
REPLAY = {"replay", "replay_reason", "replay_id"}
HINTS = {"retry_after_ms", "throttle_until"}
PROMISED = {
    "snavio.command.delivered": COMMAND | REPLAY | {"path", "dispatch_latency_ms"},
    "snavio.command.invalid": COMMAND | {"reason"},
    "snavio.command.failed": COMMAND | REPLAY | HINTS | {"reason", "source_share", "competing_share", "dispatch_volume"},
    "snavio.command.duplicate": COMMAND | {"dedupe_mode"},
    "snavio.command.executed_after_acl_revoked": {
        *("source", "target", "command.name", "stale_duration_seconds", "acl_revocation_timestamp"),
    },
    "snavio.fairness.warm-path-ban": {"source", "target", "command.name", "source_share", "competing_share"} | HINTS,
    "snavio.fairness.abuse_detected": {"source", "affected_targets", "total_violations", "ban_applied_until"},
    "snavio.secret.legacy_key_used": {"version_id", "source", "time_of_last_config_poll"},
    "snavio.secret.key_expiry_imminent": {"version_id", "source", "time_of_last_config_poll"},
    "snavio.telemetry.skew_near_limit": {"command_id", "source", "sent_at", "received_at", "skew_seconds"},
    "snavio.telemetry.skew_sample": {"source", "sent_at", "received_at", "skew_seconds"},
    "snavio.telemetry.dropped": {"dropped_events", "reason", "queue_age_seconds", "last_received_at"},
    "snavio.snapshot.too_large": {"size_bytes", "max_bytes", "version_id"},
    "cache.refreshed": {"cache_type", "age_seconds", "fresh_ttl", "stale_ttl"},
}
OWN = {
    *("cache.refreshed", "command.archived", "route.unhealthy", "route.recovered", "alert.opened", "alert.resolved"),
    *("telemetry.sampled", "replay.requested"),
}
TYPES = {event_name(kind): kind for kind in registry.event_types()}


@pytest.mark.parametrize("name", PROMISED)
def test_an_event_has_the_promised_fields(name: str) -> None:
    """Requirements 71, 123, 126, 164, 202, 203, 204, 205, 206, 207, 208, 209, 210, 211, 212, 213, 214"""
    fields = {field.encode_name for field in msgspec.structs.fields(TYPES[name])}
    assert PROMISED[name] | COMMON <= fields


def test_every_event_of_the_protocol_is_listed() -> None:
    assert {name for name in TYPES if name.startswith("snavio.")} <= set(PROMISED)


@pytest.mark.parametrize("name", sorted(OWN))
def test_an_event_beyond_the_protocol_has_no_prefix_and_the_common_fields(name: str) -> None:
    """Requirement 215"""
    assert {field.encode_name for field in msgspec.structs.fields(TYPES[name])} >= COMMON
    assert f"snavio.{name}" not in TYPES
