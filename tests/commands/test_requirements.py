"""Every requirement of commands, telemetry, alerts and replays has a test that names it (`Requirements 12, 13` in docstrings)."""

import ast
import re
import uuid
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroad.api.problems import HINTS
from postroad.client import AsyncPostroad
from postroad.client.errors import RateLimitExceeded
from postroad.commands import metrics
from postroad.container import described_routes
from tests.commands.senders import Sender, envelope, grant, register_sender, register_target
from tests.gateway import Tenant

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"

REGISTRY_AND_DISPATCH = {
    *range(1, 18), 19, 20, *range(22, 26), 27, 28, 29, 30, 31, 32, 34, 37, 43, 44, 45, 46, 47, 48, 50, 51, 52,
    *range(54, 69), 70, 71, 128, 131, 137, 140, 141, *range(145, 177), 189, 202, 203, 204, 206, 209, 210, 211, 212, 215, 217,
    219, 221, 223, 226, 227, 228, 231, 232,
}  # fmt: skip
LIMITS_FAIRNESS_DEDUPE = {
    26, 36, 44, 51, *range(89, 119), 123, 124, 125, 126, 127, 129, 130, *range(132, 137), 138, 139, 140, 142, 143, 204, 205, 207,
    220, 229,
}  # fmt: skip
SNAPSHOTS = {49, 53, *range(72, 89), 214, 222, 224}
PIPELINE = {119, 120, 121, 122, 192, 208, 215, 230}
TELEMETRY_ALERTS_HEALTH = {
    18, 28, 35, *range(37, 43), 85, 144, 157, 177, *range(178, 189), *range(190, 202), 213, 225,
}  # fmt: skip
ARCHIVE_AND_REPLAY = {4, 21, *range(233, 241)}
ROWS = {
    "registry and dispatch": REGISTRY_AND_DISPATCH,
    "limits": LIMITS_FAIRNESS_DEDUPE,
    "snapshots": SNAPSHOTS,
    "pipeline": PIPELINE,
    "telemetry, alerts, health": TELEMETRY_ALERTS_HEALTH,
    "archive and replay": ARCHIVE_AND_REPLAY,
}


def named() -> set[int]:
    """The requirements that docstrings of tests name."""
    found: set[int] = set()
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text()
        if "Requirement" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                for numbers in re.findall(r"Requirements? ((?:\d+(?:, )?)+)", ast.get_docstring(node) or ""):
                    found |= {int(one) for one in re.findall(r"\d+", numbers)}
    return found


@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS)
def test_each_requirement_is_named_by_a_test(rows: set[int]) -> None:
    assert rows - named() == set()


@pytest.fixture
async def sender(tenant: Tenant) -> Sender:
    await register_target(tenant)
    await grant(tenant, "billing")
    return await register_sender(tenant)


def test_one_route_for_all_senders_and_no_policy_to_change() -> None:
    """Requirements 20, 173: only the routes that send commands accept emit tokens, whoever sends to whom."""
    found = {(route.method, route.path) for route in described_routes() if route.accepts_emit_token}
    assert found >= {("POST", "/v1/commands"), ("POST", "/v1/commands/batch")}
    assert not [one for one in found if one[0] in ("PUT", "DELETE", "PATCH")]


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ("commands.md", ["without order", "```mermaid", "NTP", "at least once"]),
        ("commands.md", ["How to choose a limit", "UUID version 4", "keep the id when you send again"]),
        ("commands.md", ["POSTROAD_COMMANDS_REQUIRE_ENCRYPTION", "They are information, not enforced"]),
        ("commands.md", ["How large the caches are", "Snavio.Snapshot.Generated", "Snavio.Snapshot.WriteDuration"]),
        ("telemetry.md", ["None is required", "a tenant that reads nothing\nhas no disadvantage", "Runbook for operators"]),
        ("replays.md", ["## Replay or redrive", "back into the same queue", "all, as for a new command"]),
        ("decisions/0065-rate-limits-and-strict-dedupe.md", ["**Alternatives.**", "JetStream counters"]),
    ],
)
def test_the_documentation_says(page: str, texts: list[str]) -> None:
    """Requirements 30, 31, 35, 43, 49, 84, 143, 160, 195, 198, 220, 240"""
    text = (ROOT / "docs" / page).read_text()
    assert [one for one in texts if one not in text] == []


async def test_metrics_have_outcomes_caches_and_deduplication(tenant: Tenant, sender: Sender) -> None:
    """Requirements 70, 142, 176"""
    await register_target(tenant, command="pay", dedupe_mode="strict")
    await grant(tenant, "billing", command="pay")
    counters = {
        "delivered": metrics.outcome("delivered"),
        "misrouted": metrics.outcome("failed", "route-missing"),
        "unauthorized": metrics.outcome("failed", "acl-deny"),
        "malformed": metrics.outcome("invalid", "missing-field"),
        "hmac": metrics.outcome("invalid", "hmac-invalid"),
        "grants": metrics.cache_use("grants", "fresh"),
        "secrets": metrics.cache_use("secrets", "fresh"),
        "escalations": metrics.escalation("dedupe_required"),
        "duplicates": metrics.duplicates.labels("fast"),
        "strict": metrics.strict_commands,
    }
    strict_seconds = metrics.strict_seconds._sum.get()

    def values() -> dict[str, float]:
        return {name: float(one._value.get()) for name, one in counters.items()}

    before, unsigned = values(), envelope(sender.secret)
    unsigned["metadata"]["hmac"] = "0" * 64
    (await sender.send()).ok(202)
    (await sender.send(name="none")).problem(404, "route-missing")
    await sender.send_raw(b"{}")
    await sender.send_raw(msgspec.json.encode(unsigned))
    command_id = str(uuid.uuid4())
    for status in (202, 200):
        (await sender.send(name="pay", command_id=command_id)).ok(status)
    (await tenant.client.delete("/v1/grants/bot/pay/billing")).ok(204)
    (await sender.send(name="pay")).problem(403, "acl-deny")
    counted = {name: value - before[name] for name, value in values().items()}
    expected = {"delivered": 2, "misrouted": 1, "unauthorized": 1, "malformed": 1, "hmac": 1, "secrets": 7}
    assert {name: counted[name] for name in expected} == expected
    assert counted["grants"] >= 3 and counted["escalations"] == counted["duplicates"] == 1 and counted["strict"] == 2
    assert metrics.strict_seconds._sum.get() > strict_seconds


def test_the_volume_of_the_first_routes_is_counted_by_target_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requirements 176: that of all later ones together, so that the number of series is bounded."""
    monkeypatch.setattr(metrics, "_ROUTES_MAX", 2)
    monkeypatch.setattr(metrics, "_route_adders", {})
    before = _volumes()
    for number in (1, 2, 2, 3, 4, 1):
        metrics.count_delivered("fast", 0.001, "acme/counted", f"c{number}")
    counted = {labels: count - before.get(labels, 0) for labels, count in _volumes().items()}
    assert {labels: count for labels, count in counted.items() if count} == {
        ("acme/counted", "c1"): 2,
        ("acme/counted", "c2"): 2,
        ("other", "other"): 2,
    }


def _volumes() -> dict[tuple[str, ...], float]:
    series: dict[tuple[str, ...], Any] = dict(metrics._by_route._metrics)  # type: ignore[arg-type]
    return {labels: float(one._value.get()) for labels, one in series.items()}


async def test_the_sdk_waits_as_the_hints_say(tenant: Tenant) -> None:
    """Requirements 127: within the deadline of the call; else the error has the hints."""
    await register_target(tenant, rate_limit={"max": 1, "interval_seconds": 1})
    await grant(tenant, "billing")
    await register_sender(tenant)
    async with AsyncPostroad(tenant.client.url, tenant.key) as client:
        for number in range(4):  # each waits for the next interval
            await client.commands.send("billing", "bot", "post", number)
    body = {"queue": "bot-post", "rate_limit": {"max": 1, "interval_seconds": 86_400}}
    (await tenant.client.put("/v1/routes/bot/post", body)).ok()
    async with AsyncPostroad(tenant.client.url, tenant.key) as client:
        with pytest.raises(RateLimitExceeded) as refused:
            for number in range(3):
                await client.commands.send("billing", "bot", "post", number)
    assert refused.value.extra["retry_after_ms"] > 1000 and {*HINTS} & {*refused.value.extra} == {  # type: ignore[operator]
        "retry_after_ms",
        "throttle_until",
    }
