"""Refused attempts at administrative operations are audited, and cannot fill the audit log."""

from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.access.control import AUDIT, DEFAULTS, EVERY_SCOPE, KEYS, SETTINGS, TENANTS, entries_of
from tests.gateway import Gateway, Tenant

from postroad.governance.counted_entries import TARGETS_PER_TENANT_MAX
from postroad.governance.refused_attempts import RefusedAttempts
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.identity import Caller, Scope


async def refusals(gateway: Gateway, tenant: Tenant) -> list[dict[str, Any]]:
    return [entry for entry in await entries_of(gateway, tenant.id) if entry["action"] == "access.refused"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", TENANTS, None),
        ("POST", TENANTS, {"id": "x"}),
        ("POST", DEFAULTS, {"pullMax": 1}),
        ("GET", f"{AUDIT}?tenant=default", None),
        ("POST", KEYS, {"name": "k", "scopes": EVERY_SCOPE, "platform": True}),
        ("POST", SETTINGS, {"maxQueues": 99}),
    ],
)
async def test_an_attempt_beyond_the_permissions_of_a_key_is_recorded(
    gateway: Gateway, tenant: Tenant, method: str, path: str, body: object
) -> None:
    (await tenant.client.call(method, path, body)).problem(403, "forbidden")
    [entry] = await refusals(gateway, tenant)
    assert (entry["target"], entry["outcome"]) == (f"{method} {path.partition('?')[0]}", "refused")
    assert (entry["actorKeyId"], entry["address"], entry["after"]) == (tenant.record.id, "127.0.0.1", {"attempts": 1})


async def test_an_attempt_without_the_scope_admin_is_recorded(gateway: Gateway, tenant: Tenant) -> None:
    reader = await tenant.another_key((Scope.READ,))
    (await reader.client.get(KEYS)).problem(403, "forbidden")
    (await reader.client.post("/v1/queues/q/messages", {"payload": 1})).problem(403, "forbidden")
    [entry] = await refusals(gateway, tenant)
    assert (entry["actorKeyId"], entry["target"]) == (reader.record.id, f"GET {KEYS}")


async def test_repetitions_become_one_entry(gateway: Gateway, tenant: Tenant) -> None:
    for _ in range(5):
        await tenant.client.get(TENANTS)
    assert len(await refusals(gateway, tenant)) == 1
    await gateway.node.platform.audit.refused_attempts.flush()
    assert [entry["after"]["attempts"] for entry in await refusals(gateway, tenant)] == [1, 4]
    await tenant.client.get(TENANTS)
    assert len(await refusals(gateway, tenant)) == 3


class Written:
    def __init__(self) -> None:
        self.entries: list[tuple[str, str, int]] = []
        self.fault: Exception | None = None

    async def __call__(self, context: RequestContext, operation: str, attempts: int) -> None:
        if self.fault:
            raise self.fault
        self.entries.append((context.tenant, operation, attempts))


def context_of(tenant: str, key: str) -> RequestContext:
    return RequestContext(Caller(tenant, key, frozenset()), "r", "192.0.2.1")


async def test_a_tenant_has_few_entries_per_interval() -> None:
    written = Written()
    attempts = RefusedAttempts(written)
    for key in range(1000):
        await attempts.record(context_of("loud", str(key)), "GET /x")
    assert len(written.entries) == TARGETS_PER_TENANT_MAX
    await attempts.record(context_of("quiet", "k"), "GET /x")
    assert written.entries[-1] == ("quiet", "GET /x", 1), "other tenants are not affected"
    await attempts.flush()
    assert written.entries[-1] == ("loud", "other operations", 1000 - TARGETS_PER_TENANT_MAX)
    assert len(written.entries) == TARGETS_PER_TENANT_MAX + 2


async def test_a_refusal_does_not_depend_on_the_log() -> None:
    written = Written()
    written.fault = EngineUnavailable("no leader")
    with capture_logs() as logs:
        await RefusedAttempts(written).record(context_of("t", "k"), "GET /x")
    assert [one["event"] for one in logs] == ["refused_attempt_not_audited"]
