"""Manifests over HTTP, on the real engine."""

from postroad.kernel.identity import Scope
from tests.gateway import Gateway, Tenant

ONE = "/v1/manifests/shop"


async def test_a_manifest_is_recorded_shown_listed_and_deleted(tenant: Tenant) -> None:
    (await tenant.client.get(ONE)).problem(404, "manifest-not-found")
    created = (await tenant.client.put(ONE, {"resources": ["queues/orders#2026"], "revision": 0})).ok()
    assert created["resources"] == ["queues/orders#2026"]
    assert (await tenant.client.get(ONE)).ok() == created
    changed = (await tenant.client.put(ONE, {"resources": [], "revision": created["revision"]})).ok()
    assert changed["revision"] > created["revision"] and changed["createdAt"] == created["createdAt"]
    assert [one["name"] for one in (await tenant.client.get("/v1/manifests")).ok()["manifests"]] == ["shop"]
    assert (await tenant.client.delete(ONE)).status == 204
    (await tenant.client.delete(ONE)).problem(404, "manifest-not-found")
    found = (await tenant.client.get("/api/control/audit?action=manifest.*")).ok()["entries"]
    assert [one["action"] for one in found] == ["manifest.delete", "manifest.put", "manifest.put"]


async def test_a_change_names_the_revision_that_it_replaces(tenant: Tenant) -> None:
    first = (await tenant.client.put(ONE, {"resources": ["queues/a#1"], "revision": 0})).ok()
    (await tenant.client.put(ONE, {"resources": ["queues/b#1"], "revision": 0})).problem(409, "manifest-changed")
    second = (await tenant.client.put(ONE, {"resources": ["queues/b#1"], "revision": first["revision"]})).ok()
    (await tenant.client.put(ONE, {"resources": [], "revision": first["revision"]})).problem(409, "manifest-changed")
    repeated = await tenant.client.put(ONE, {"resources": ["queues/b#1"], "revision": first["revision"]})
    assert repeated.ok() == second, "a repeated request finds its own change"


async def test_it_needs_the_scope_admin_and_is_of_one_tenant(tenant: Tenant, gateway: Gateway) -> None:
    (await tenant.client.put(ONE, {"resources": ["queues/a#1"], "revision": 0})).ok()
    (await (await gateway.tenant()).client.get(ONE)).problem(404, "manifest-not-found")
    reader = await tenant.another_key((Scope.READ, Scope.WRITE, Scope.PUBLISH, Scope.CONSUME))
    assert (await reader.client.get(ONE)).status == 403


async def test_invalid_names_and_resources_are_refused(tenant: Tenant) -> None:
    assert (await tenant.client.put("/v1/manifests/a%20b", {"resources": [], "revision": 0})).status == 400
    for resource in ("", "queues/" + "x" * 500):
        assert (await tenant.client.put(ONE, {"resources": [resource], "revision": 0})).status == 422
