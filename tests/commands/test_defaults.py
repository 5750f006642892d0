"""What an installation, a route and a grant have without a choice: the numbers that senders and receivers are promised."""

import msgspec
import pytest

from postroad.api.command_limits import Fairness, NewBan, RateLimit
from postroad.api.commands import EMIT_SECONDS_MAX, POLL_SECONDS, NewEmitToken, RouteDefinition
from postroad.commands import rules
from postroad.commands.capability import CommandsCapability, cache_policy
from postroad.commands.rules import Ages
from postroad.commands.settings import CommandsSettings
from postroad.commands.token_blocks import TOKEN_MS_MAX
from postroad.kernel.clock import rfc3339
from tests.commands.senders import grant, register_sender, register_target
from tests.gateway import Gateway, gateway_settings, running_gateway
from tests.servers import Server

SETTINGS = CommandsSettings()


def test_ages_of_the_caches() -> None:
    """Requirements 54, 56, 65, 66, 67: with no jitter yet, which is up to a tenth (57)."""
    policy = cache_policy(SETTINGS)
    assert policy.routes == policy.grants == policy.secrets == Ages(60, 180, 180)
    assert policy.profiles == {"critical": Ages(2, 4, 5), "moderate": Ages(10, 20, 30), "low": Ages(30, 90, 120)}
    assert rules.JITTER == 0.1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("commands_window_seconds", 60),
        ("commands_bytes_max", 262_144),
        ("commands_secret_days", 30),
        ("commands_secret_overlap_days", 7),
        ("commands_prefetch_workers", 5),
        ("commands_ban_count", 3),
        ("commands_ban_minutes", 10),
        ("commands_ban_seconds", 600),
        ("snapshots", True),
        ("snapshot_seconds", 45),
        ("snapshot_path", "snavio/registry/snapshot"),
        ("commands_without_telemetry", "refuse"),
    ],
)
def test_settings(name: str, value: object) -> None:
    """Requirements 10, 24, 76, 80, 102, 103, 109, 149, 151"""
    assert getattr(SETTINGS, name) == value


def test_each_cache_of_a_worker_has_a_jitter_of_its_own(gateway: Gateway) -> None:
    """Requirements 57: of up to a tenth, so that workers do not refresh at once. The bound does not move."""
    found, base = gateway.node.platform.use(CommandsCapability).cache.policy, cache_policy(SETTINGS)
    factors = [found.routes.fresh / base.routes.fresh, found.grants.fresh / base.grants.fresh]
    factors.append(found.secrets.fresh / base.secrets.fresh)
    assert len(set(factors)) == 3 and all(0.9 <= one <= 1.1 for one in factors)
    assert {name: ages.bound for name, ages in found.profiles.items()} == {"critical": 5, "moderate": 30, "low": 120}


async def test_settings_reach_the_dispatcher(own_server: Server) -> None:
    """Requirements 24, 56, 112"""
    chosen = {"commands_window_seconds": 5, "snavio_dispatch_mode": "cold-only", "commands_without_telemetry": "degrade"}
    async with running_gateway(gateway_settings(own_server.url, **chosen)) as gateway:
        tenant = await gateway.tenant()
        await register_target(tenant)
        await grant(tenant, "billing")
        sender = await register_sender(tenant)
        gateway.clock.frozen_ms = gateway.clock()
        assert (await sender.send(timestamp=rfc3339(gateway.clock() - 5000))).ok(202)["path"] == "slow"
        late = await sender.send(timestamp=rfc3339(gateway.clock() - 5001))
        assert late.problem(400, "command-invalid")["reason"] == "timestamp-expired"
        assert (await tenant.client.get("/v1/tenant-config")).ok()["windowSeconds"] == 5
        assert not gateway.node.platform.use(CommandsCapability).dispatcher.outcomes.needs_telemetry


def test_routes_bans_and_tokens() -> None:
    """Requirements 94, 98, 100, 115, 117, 129, 138, 152, 161"""
    route = RouteDefinition(queue="q")
    assert (route.dedupe_mode, route.dedupe_ttl_seconds, route.acl_check, route.signature) == ("none", 300, "cached", "optional")
    assert route.archive and route.rate_limit is None
    assert msgspec.structs.asdict(Fairness()) == {
        "enabled": True,
        "dominant_share": 0.8,
        "meaningful_share": 0.1,
        "competing_sources": 3,
        "dispatches_min": 20,
        "window_seconds": 30,
        "ban_seconds": 30,
    }
    limit = RateLimit(max=1)
    assert (limit.interval_seconds, limit.burst, limit.cooldown_seconds) == (1, 0, 0)
    assert (limit.mode, limit.overflow, limit.prefetch_workers) == ("enforce", "reject", None)
    assert NewBan(source="a", kind="hard", reason="r").duration_seconds == 600
    assert (NewEmitToken().expires_in_seconds, EMIT_SECONDS_MAX, POLL_SECONDS) == (900, 3600, 43_200)
    assert TOKEN_MS_MAX == 30_000 and rules.SKEW_NEAR_SHARE == 0.8
