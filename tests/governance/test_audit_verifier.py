"""Tamper evidence of the audit log: removal and changes in the engine are found, whatever the engine's administrator does."""

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from tests.access.control import AUDIT, actor_of
from tests.gateway import Gateway, Tenant, events_of, gateway_settings, running_gateway
from tests.servers import Server, restart
from tests.waiting import eventually

from postroad.api.governance import AuditFinding
from postroad.crypto.signing import Signer
from postroad.governance.audit import AUDIT_STREAM, CHECKPOINT_SUBJECT, audit_stream
from postroad.governance.audit_verifier import AUDIT_BUCKET, AuditVerifier
from postroad.governance.capability import GovernanceCapability
from postroad.governance.rules import DAY_MS, Checkpoint, LogState, SegmentHash, linked, next_checkpoint, state_findings
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import delete_stream, ensure_stream, stream_info

VERIFICATION = f"{AUDIT}/verification"


@pytest.fixture
async def alone(own_server: Server) -> AsyncIterator[Gateway]:
    """A gateway with an audit log of its own, which the test damages."""
    async with running_gateway(gateway_settings(own_server.url)) as running:
        yield running


@pytest.fixture
async def logged(alone: Gateway) -> Gateway:
    """With twenty entries in two checkpoints, and a verifier that has compared them."""
    for _ in range(2):
        await record(alone, 10)
        await verifier_of(alone).extend()
    return alone


def verifier_of(gateway: Gateway) -> AuditVerifier:
    return gateway.node.platform.use(GovernanceCapability).verifier


def new_leader(gateway: Gateway, signer: Signer | None = None) -> AuditVerifier:
    """A verifier that has compared nothing yet."""
    platform = gateway.node.platform
    report = platform.use(GovernanceCapability)._report
    signer = signer or platform.signer("audit checkpoint")
    return AuditVerifier(platform.connection, platform.audit, platform.bucket(AUDIT_BUCKET), signer, platform.clock, 0, report)


def engine(gateway: Gateway) -> Connection:
    return gateway.node.platform.connection


async def record(gateway: Gateway, count: int) -> Tenant:
    tenant = await gateway.tenant()
    for number in range(count):
        await gateway.node.platform.audit.record(actor_of(tenant), "test", str(number))
    return tenant


async def verify(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = (await gateway.admin.get(VERIFICATION)).ok()
    assert found["intact"] == (not found["findings"])
    return found


async def kinds(gateway: Gateway) -> set[str]:
    return {one["kind"] for one in (await verify(gateway))["findings"]}


async def update(gateway: Gateway, **options: object) -> None:
    """Change the stream as the engine's administrator can."""
    info = await stream_info(engine(gateway), AUDIT_STREAM)
    assert info is not None
    await engine(gateway).call(f"STREAM.UPDATE.{AUDIT_STREAM}", {**info.config, **options})


async def test_an_intact_log_is_verified_up_to_the_newest_checkpoint(logged: Gateway) -> None:
    await record(logged, 3)
    found = await verify(logged)
    assert found["intact"] and found["verified"] >= 20
    assert found["unverified"] == 4, "three entries and the newest checkpoint"
    assert found["checkpoint"]["number"] == 2 and len(found["checkpoint"]["hash"]) == 64


async def test_a_log_without_checkpoints_is_intact_and_not_verified(alone: Gateway) -> None:
    await record(alone, 1)
    found = await verify(alone)
    assert (found["intact"], found["verified"], found["checkpoint"]) == (True, 0, None)


async def test_a_checkpoint_of_an_empty_log_is_continued(alone: Gateway) -> None:
    await verifier_of(alone).extend()
    await record(alone, 3)
    await verifier_of(alone).extend()
    assert await kinds(alone) == set()
    assert (await verify(alone))["verified"] == 4, "three entries and the first checkpoint"


async def test_a_checkpoint_is_added_only_for_new_entries(logged: Gateway) -> None:
    before = await verify(logged)
    for _ in range(3):
        await verifier_of(logged).extend()
    assert await verify(logged) == before


async def test_checkpoints_are_not_listed_among_the_changes(logged: Gateway) -> None:
    listed = (await logged.admin.get(f"{AUDIT}?limit=1000")).ok()["entries"]
    assert listed and not any(entry["action"] == "audit.checkpoint" for entry in listed)


async def test_the_verification_needs_a_platform_key(logged: Gateway) -> None:
    tenant = await logged.tenant()
    (await tenant.client.get(VERIFICATION)).problem(403, "forbidden")


# What the engine's administrator can do


async def purge_by_update(gateway: Gateway) -> None:
    """A purge is refused; a limit has the same effect."""
    await update(gateway, max_msgs=1)
    await update(gateway, max_msgs=-1)


async def keep_one_of_each_tenant(gateway: Gateway) -> None:
    await update(gateway, max_msgs_per_subject=1)
    await update(gateway, max_msgs_per_subject=-1)


async def create_again(gateway: Gateway) -> None:
    await delete_stream(engine(gateway), AUDIT_STREAM)
    await ensure_stream(engine(gateway), audit_stream(1))
    await record(gateway, 30)


async def leave_a_limit(gateway: Gateway) -> None:
    await update(gateway, max_age=3600 * 10**9)


async def delete_the_checkpoint(gateway: Gateway) -> None:
    await gateway.node.platform.bucket(AUDIT_BUCKET).delete("head")


async def replace_the_checkpoint(gateway: Gateway) -> None:
    bucket = gateway.node.platform.bucket(AUDIT_BUCKET)
    stored = await bucket.get("head")
    assert stored is not None and stored.value is not None
    await bucket.put("head", b"A" + stored.value[1:-4] + b"AAAA")


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (purge_by_update, "removed"),
        (keep_one_of_each_tenant, "altered"),
        (create_again, "recreated"),
        (leave_a_limit, "reconfigured"),
        (delete_the_checkpoint, "altered"),
        (replace_the_checkpoint, "altered"),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)
async def test_damage_is_found_and_reported(logged: Gateway, damage: Any, kind: str) -> None:
    await damage(logged)
    assert kind in await kinds(logged)
    leader = new_leader(logged)
    with capture_logs() as logs:
        await leader.extend()
        await leader.extend()
    reported = [one for one in logs if one["event"] == "audit_log_damaged"]
    assert [one["log_level"] for one in reported] == ["error"] * len(reported)
    assert kind in {one["kind"] for one in reported}
    assert len({(one["kind"], one["detail"]) for one in reported}) == len(reported), "each is reported once"
    assert kind in await kinds(logged), "a finding stays"

    async def is_sent() -> bool:
        events = await events_of(engine(logged), "TELEMETRY", "_platform")
        return any(one["event"] == "audit.damaged" and one["kind"] == kind for one in events)

    await eventually(is_sent)


async def test_a_restart_of_the_engine_is_no_damage(logged: Gateway, own_server: Server) -> None:
    await restart(own_server, engine(logged))
    await record(logged, 1)
    await new_leader(logged).extend()
    assert (await verify(logged))["intact"]


async def test_a_new_leader_signs_with_the_newest_platform_secret(logged: Gateway) -> None:
    secrets = logged.node.platform.platform_keys
    await new_leader(logged, Signer(("a newer platform secret", *secrets), "audit checkpoint")).extend()
    only_new = new_leader(logged, Signer(("a newer platform secret",), "audit checkpoint"))
    assert (await only_new.verify()).intact
    assert await kinds(logged) == {"altered"}, "the old secret alone no longer verifies it"


async def test_the_log_is_protected_again_after_damage(logged: Gateway) -> None:
    await purge_by_update(logged)
    await verifier_of(logged).extend()
    tenant = await record(logged, 5)
    await verifier_of(logged).extend()
    found = await verify(logged)
    assert [one["kind"] for one in found["findings"]] == ["removed"] and found["verified"] >= 5
    assert len((await tenant.client.get(AUDIT)).ok()["entries"]) == 5


async def test_a_concurrent_leader_does_no_harm(logged: Gateway) -> None:
    await record(logged, 3)
    stored = await logged.node.platform.bucket(AUDIT_BUCKET).get("head")
    assert stored is not None
    forgotten = Checkpoint(
        number=3, at_ms=1, first=1, last=1, entries=1, segment="", stream_created="", stream_first=1, findings=()
    )
    await logged.node.platform.audit.record_checkpoint(3, msgspec.to_builtins(forgotten))
    await verifier_of(logged).extend()
    assert (await verify(logged))["intact"]
    assert CHECKPOINT_SUBJECT == "audit._checkpoint", "no tenant can have this name"


# The rules

NOW = 1_800_000_000_000


def log_of(first: int = 1, last: int = 100, created: str = "c", keep_days: int = 0, **config: int) -> LogState:
    return LogState(created, first, last, config, audit_stream(1, keep_days).options, keep_days)


def head_of(**changes: Any) -> Checkpoint:
    given = {"number": 1, "at_ms": NOW, "first": 1, "last": 100, "entries": 100, "segment": "s", "stream_created": "c"}
    return Checkpoint(**{**given, "stream_first": 1, **changes})


@pytest.mark.parametrize(
    ("log", "found"),
    [
        (log_of(), []),
        (log_of(last=500), []),
        (log_of(last=99), ["truncated"]),
        (log_of(first=2), ["removed"]),
        (log_of(created="d"), ["recreated"]),
        (log_of(max_msgs=5), ["reconfigured"]),
        (log_of(max_msgs=-1, max_bytes=-1, max_age=0), []),
        (log_of(keep_days=1, max_age=86_400 * 10**9), []),
        (log_of(keep_days=2, max_age=86_400 * 10**9), ["reconfigured"]),
    ],
)
def test_the_state_of_the_log_shows_damage(log: LogState, found: list[str]) -> None:
    assert [one.kind for one in state_findings(head_of(), log, NOW)] == found


@pytest.mark.parametrize(("first", "is_damage"), [(1, False), (11, False), (20, False), (21, False), (22, True), (101, True)])
def test_entries_within_the_retention_may_not_be_removed(first: int, is_damage: bool) -> None:
    """Entries up to 20 are at least three days old and may be gone."""
    marks = ((10, NOW - 4 * DAY_MS), (20, NOW - 2 * DAY_MS), (40, NOW - DAY_MS))
    found = state_findings(head_of(marks=marks), log_of(first=first, keep_days=3), NOW)
    assert bool(found) is is_damage


def test_everything_may_expire_while_nothing_is_written() -> None:
    assert not state_findings(head_of(marks=((10, NOW),)), log_of(first=101, keep_days=3), NOW + 4 * DAY_MS)


def chain_of(count: int) -> list[Checkpoint]:
    chain: list[Checkpoint] = []
    for number in range(count):
        segment = SegmentHash()
        segment.add(number + 1, "audit.t", b"{}")
        head = chain[-1] if chain else None
        log = log_of(last=number + 1)
        chain.append(next_checkpoint(head, log, number + 1, segment, NOW + number * DAY_MS // 2, ()))
    return chain


def test_checkpoints_are_chained() -> None:
    chain = chain_of(4)
    assert linked(chain[-1], chain, 1, NOW) == (chain, [])
    assert linked(chain[-1], [*chain, head_of()], 1, NOW) == (chain, []), "those of another chain do not matter"
    assert [one.number for one in chain] == [1, 2, 3, 4]
    assert len(chain[-1].marks) == 2, "about one a day"


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_missing_checkpoint_is_found(missing: int) -> None:
    chain = chain_of(4)
    kept, found = linked(chain[-1], [one for one in chain if one is not chain[missing]], 1, NOW)
    assert [one.kind for one in found] == ["altered"]
    assert kept == chain[missing + 1 :]


def test_checkpoints_may_expire_with_the_entries_before_them() -> None:
    chain = chain_of(4)
    assert linked(chain[-1], chain[2:], 4, NOW) == (chain[2:], [])
    assert linked(chain[-1], [], 6, NOW) == ([], []), "all of them, while nothing is written"


def test_any_change_of_an_entry_changes_the_hash_of_its_segment() -> None:
    hashes = set()
    for entries in ([(1, "audit.a", b"x")], [(2, "audit.a", b"x")], [(1, "audit.b", b"x")], [(1, "audit.a", b"y")], []):
        segment = SegmentHash()
        for entry in entries:
            segment.add(*entry)
        hashes.add(segment.hex())
    assert len(hashes) == 5


def test_findings_are_reported_for_thirty_days() -> None:
    finding = AuditFinding(kind="removed", at="2027-01-15T08:00:00.000Z", detail="d")
    first = next_checkpoint(None, log_of(), 1, SegmentHash(), NOW, [finding])
    assert first.findings == (finding,)
    later = next_checkpoint(first, log_of(), 1, SegmentHash(), NOW + 29 * DAY_MS, [])
    assert later.findings == (finding,) and later.previous == first.hash
    assert next_checkpoint(later, log_of(), 1, SegmentHash(), NOW + 31 * DAY_MS, []).findings == ()
