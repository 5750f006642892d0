"""Secrets of services: polls, rotation, overlap, notices."""

import uuid
from typing import Any

import pytest

from postroad.commands.capability import CommandsCapability
from postroad.commands.rules import is_sampled
from postroad.kernel.clock import rfc3339
from tests.commands.senders import Sender, grant, register_sender, register_target
from tests.gateway import Gateway, ShiftedClock, Tenant

DAY_MS = 86_400_000


@pytest.fixture
async def sender(tenant: Tenant) -> Sender:
    await register_target(tenant)
    await grant(tenant, "billing")
    return await register_sender(tenant)


async def config(tenant: Tenant, service: str = "billing") -> dict[str, Any]:
    found = (await tenant.client.get("/v1/tenant-config")).ok()
    return next(one for one in found["services"] if one["name"] == service)


async def maintain(gateway: Gateway) -> int:
    return await gateway.node.platform.use(CommandsCapability).services.maintain_secrets()


async def notices(tenant: Tenant) -> list[dict[str, Any]]:
    return [one for one in await tenant.events("COMMANDS") if one["event"].startswith("snavio.secret.")]


async def test_the_configuration_has_the_secrets_of_services_that_trust_the_key(tenant: Tenant, sender: Sender) -> None:
    """Requirements 152, 153"""
    answer = await tenant.client.get("/v1/tenant-config")
    found = answer.ok()
    assert answer.headers["cache-control"] == "no-store"
    assert (found["tenant"], found["pollSeconds"], found["windowSeconds"]) == (tenant.id, 43_200, 60)
    [service] = found["services"]
    [secret] = service["secrets"]
    assert len(bytes.fromhex(secret["secret"])) == 32
    assert (service["source"], secret["versionId"], secret["current"]) == (sender.source, "hmac-v1", True)
    stranger = await tenant.another_key()
    assert (await stranger.client.get("/v1/tenant-config")).ok()["services"] == []
    shown = (await tenant.client.get("/v1/services/billing")).ok()
    assert shown["lastConfigPoll"] is not None


async def test_a_rotation_keeps_the_previous_version_for_the_overlap(tenant: Tenant, sender: Sender, clock: ShiftedClock) -> None:
    """Requirements 149, 151, 156, 209"""
    rotated = (await tenant.client.post("/v1/services/billing/secrets/rotate")).ok()
    assert [one["versionId"] for one in rotated["secrets"]] == ["hmac-v2", "hmac-v1"]
    (await sender.send()).ok(202)
    current = (await config(tenant))["secrets"][0]
    newer = Sender(tenant, "billing", current["secret"], current["versionId"])
    (await newer.send()).ok(202)
    [legacy] = await notices(tenant)
    assert (legacy["event"], legacy["version_id"], legacy["source"]) == (
        "snavio.secret.legacy_key_used",
        "hmac-v1",
        sender.source,
    )
    assert legacy["time_of_last_config_poll"] is not None
    (await sender.send()).ok(202)
    assert len(await notices(tenant)) == 1  # once a minute
    (await tenant.client.post("/v1/services/billing/secrets/rotate")).ok()
    refused = (await sender.send()).problem(400, "command-invalid")
    assert refused["reason"] == "version-unknown"  # only the immediately previous version is kept
    (await newer.send()).ok(202)
    clock.ahead_ms = 7 * DAY_MS + 1000
    late = await newer.send(timestamp=rfc3339(clock()))
    assert late.problem(400, "command-invalid")["reason"] == "version-expired"


async def test_a_rotation_without_overlap_ends_the_previous_version_at_once(tenant: Tenant, sender: Sender) -> None:
    (await tenant.client.post("/v1/services/billing/secrets/rotate", {"overlapSeconds": 0})).ok()
    assert (await sender.send()).problem(400, "command-invalid")["reason"] == "version-unknown"


async def test_the_leader_rotates_after_thirty_days_and_drops_expired_versions(
    gateway: Gateway, tenant: Tenant, sender: Sender, clock: ShiftedClock
) -> None:
    """Requirements 149, 154, 155"""
    await maintain(gateway)
    assert len((await config(tenant))["secrets"]) == 1
    clock.ahead_ms = 30 * DAY_MS + 1000
    await maintain(gateway)
    assert [one["versionId"] for one in (await config(tenant))["secrets"]] == ["hmac-v2", "hmac-v1"]
    clock.ahead_ms += 8 * DAY_MS
    await maintain(gateway)
    shown = (await tenant.client.get("/v1/services/billing")).ok()
    assert [one["versionId"] for one in shown["secrets"]] == ["hmac-v2"]


async def test_a_sender_that_does_not_poll_is_warned_before_the_secret_ends(
    tenant: Tenant, sender: Sender, clock: ShiftedClock
) -> None:
    """Requirements 157, 210"""
    clock.ahead_ms = 120_000
    (await tenant.client.post("/v1/services/billing/secrets/rotate", {"overlapSeconds": 3 * 86_400})).ok()
    (await sender.send(timestamp=rfc3339(clock()))).ok(202)
    assert [one["event"] for one in await notices(tenant)] == ["snavio.secret.legacy_key_used"]
    clock.ahead_ms += DAY_MS + 60_000
    (await sender.send(timestamp=rfc3339(clock()))).ok(202)
    (await sender.send(timestamp=rfc3339(clock()))).ok(202)
    assert [one["event"] for one in await notices(tenant)] == [
        "snavio.secret.legacy_key_used",
        "snavio.secret.legacy_key_used",
        "snavio.secret.key_expiry_imminent",
    ]
    await config(tenant)
    clock.ahead_ms += DAY_MS
    (await sender.send(timestamp=rfc3339(clock()))).ok(202)
    assert [one["event"] for one in await notices(tenant)].count("snavio.secret.key_expiry_imminent") == 1


async def test_skew_near_the_limit_and_samples_are_reported(tenant: Tenant, sender: Sender, clock: ShiftedClock) -> None:
    """Requirements 161, 164, 211, 212"""
    sent = rfc3339(clock() - 50_000)
    command_id = next(filter(is_sampled, (str(uuid.UUID(int=number)) for number in range(1000))))
    (await sender.send(timestamp=sent, command_id=command_id)).ok(202)
    near, sample = [one for one in await tenant.events("COMMANDS") if one["event"].startswith("snavio.telemetry.skew_")]
    assert (near["event"], near["command_id"]) == ("snavio.telemetry.skew_near_limit", command_id)
    assert sample["event"] == "snavio.telemetry.skew_sample"
    for one in (near, sample):
        assert (one["source"], one["sent_at"]) == (sender.source, sent)
        assert 50 <= one["skew_seconds"] < 60 and one["received_at"] > sent


async def test_secrets_are_encrypted_in_the_registry(gateway: Gateway, tenant: Tenant, sender: Sender) -> None:
    """Requirements 148, 154"""
    commands = gateway.node.platform.use(CommandsCapability)
    record = commands.service_table.get(f"{tenant.id}.billing")
    assert record is not None and sender.secret not in repr(record)
    assert sender.secret not in repr(commands.view.sender(tenant.id, "billing"))
