"""The operations that a key with only the scope `admin` can use.

`admin` manages a tenant: credentials, settings, audit log, queues, jobs, dead letters, schedules, tasks, reports and events.
It does not carry the tenant's data: publishing, consuming, and the contents of streams and sessions need their own scope.
"""

from pathlib import Path
from typing import Any

import pytest

from postroad.http.routing import Route
from postroad.kernel.identity import Scope
from tests import described
from tests.gateway import Client, Gateway, Tenant
from tests.waiting import eventually

ROUTES = [route for route in described.ROUTES if isinstance(route.scope, Scope)]
_QUEUE = "/v1/queues/{queue}"
_DATA = {
    ("GET", "/v1/topics/{topic}/stream"),
    ("GET", "/v1/subscriptions/{subscription}/stream"),
    ("GET", "/v1/ws"),
    ("GET", "/v1/ws/{subscription}"),
    ("POST", f"{_QUEUE}/messages"),
    ("POST", f"{_QUEUE}/messages/batch"),
    ("POST", f"{_QUEUE}/pull"),
    ("POST", f"{_QUEUE}/ack"),
    ("POST", f"{_QUEUE}/nack"),
    ("POST", f"{_QUEUE}/extend"),
    ("POST", f"{_QUEUE}/progress"),
    ("POST", "/v1/topics/{topic}/messages"),
    ("POST", "/v1/topics/{topic}/messages/batch"),
    ("GET", "/v1/topics/{topic}/messages"),
    ("PUT", "/v1/buckets/{bucket}/keys/{bucket_key}"),
    ("GET", "/v1/buckets/{bucket}/keys/{bucket_key}"),
    ("DELETE", "/v1/buckets/{bucket}/keys/{bucket_key}"),
    ("POST", "/v1/buckets/{bucket}/batch"),
    ("GET", "/v1/buckets/{bucket}/keys"),
    ("GET", "/v1/buckets/{bucket}/history/{bucket_key}"),
    ("GET", "/v1/buckets/{bucket}/watch"),
    ("POST", "/v1/commands"),
    ("POST", "/v1/commands/batch"),
    ("POST", "/v1/services/{service}/token"),  # sends what the service may send
    ("GET", "/v1/tenant-config"),  # has the secrets that commands are signed with
    ("POST", "/v1/tokens"),  # reads what the token is for
}
_STREAMS = ("/v1/stream/", "/v1/{project}/")
_LISTS = {
    f"/v1/{project}{path}" for project in ("", "{project}/") for path in ("streams", "sessions", "stream/__ds/subscriptions")
}
NOT_ADMINISTRATIVE = _DATA | {
    (route.method, route.path) for route in ROUTES if route.path.startswith(_STREAMS) and route.path not in _LISTS
}


def label(route: Route) -> str:
    return f"{route.method} {route.path}"


@pytest.mark.parametrize("route", ROUTES, ids=label)
def test_a_route_allows_admin_unless_it_carries_data(route: Route) -> None:
    assert (Scope.ADMIN in route.scopes) is ((route.method, route.path) not in NOT_ADMINISTRATIVE)


def test_the_reference_page_lists_every_route_with_its_scopes() -> None:
    page = Path("docs/scopes.md").read_text().splitlines()
    rows = {(cells[0].strip(" `"), cells[1].strip(" `")): cells for line in page if len(cells := line.strip("|").split("|")) == 4}
    for route in ROUTES:
        listed = rows[route.method, route.path][2].replace("`", "").replace(",", "").split()
        assert listed == [str(scope) for scope in route.scopes], label(route)


@pytest.fixture
async def admin(tenant: Tenant) -> Client:
    return (await tenant.another_key((Scope.ADMIN,))).client


@pytest.mark.usefixtures("control")
async def test_an_admin_key_operates_the_queue_that_it_created(gateway: Gateway, admin: Client) -> None:
    (await admin.put("/v1/queues/orders", {"maxAttempts": 1})).ok(201)
    publisher = await issued(gateway, admin, "publish")
    worker = await issued(gateway, admin, "consume")
    published = (await publisher.post("/v1/queues/orders/messages", {"payload": 1})).ok(201)
    [leased] = (await worker.post("/v1/queues/orders/pull", {})).ok()["messages"]
    (await worker.post("/v1/queues/orders/nack", {"receiptId": leased["receiptId"], "action": "dlq"})).ok()

    assert (await admin.get("/v1/queues/orders")).ok()["name"] == "orders"
    assert [queue["name"] for queue in (await admin.get("/v1/queues")).ok()["queues"]] == ["orders"]

    async def job() -> bool:
        return (await admin.get(f"/v1/jobs/{published['jobId']}")).status == 200

    await eventually(job)
    assert [job["jobId"] for job in (await admin.get("/v1/jobs?queue=orders")).ok()["jobs"]] == [published["jobId"]]

    async def dead() -> list[Any]:
        return list((await admin.get("/v1/queues/orders/dlq")).ok()["messages"])

    await eventually(dead)
    assert (await admin.post("/v1/queues/orders/dlq/redrive", {})).status == 202
    assert (await admin.get("/v1/tasks")).ok()["tasks"]


@pytest.mark.parametrize(
    ("method", "path", "body", "scope"),
    [
        ("POST", "/v1/queues/q/messages", {"payload": 1}, "publish"),
        ("POST", "/v1/queues/q/pull", {}, "consume"),
        ("GET", "/v1/stream/s", None, "read"),
        ("DELETE", "/v1/stream/s", None, "write"),
        ("POST", "/v1/tokens", {"resource": "telemetry"}, "read"),
    ],
)
async def test_an_admin_key_does_not_carry_data(
    tenant: Tenant, admin: Client, method: str, path: str, body: object, scope: str
) -> None:
    await tenant.queue("q")
    problem = (await admin.call(method, path, body)).problem(403, "forbidden")
    assert f"'{scope}'" in problem["detail"]


async def test_what_an_admin_key_creates_stays_within_its_resources(gateway: Gateway, tenant: Tenant) -> None:
    await tenant.queue("orders.eu")
    await tenant.queue("invoices")
    narrow = (await tenant.another_key((Scope.ADMIN,), allowed_queues=("orders.*",))).client
    (await narrow.post("/api/control/keys", {"name": "k", "scopes": ["publish"]})).problem(403, "forbidden")
    publisher = await issued(gateway, narrow, "publish", allowedQueues=["orders.*"])
    (await publisher.post("/v1/queues/orders.eu/messages", {"payload": 1})).ok(201)
    (await publisher.post("/v1/queues/invoices/messages", {"payload": 1})).problem(403, "forbidden")
    (await narrow.get("/v1/queues/invoices")).problem(403, "forbidden")


async def issued(gateway: Gateway, admin: Client, *scopes: str, **more: object) -> Client:
    made = (await admin.post("/api/control/keys", {"name": "issued", "scopes": scopes, **more})).ok(201)
    return gateway.with_key(made["key"])
