"""Lists of queues: filters, order, pages and total."""

from typing import Any

import pytest

from postroad.container import Role
from postroad.queues import listing
from tests.gateway import Tenant, gateway_settings, running_gateway
from tests.servers import Server
from tests.waiting import eventually

NAMES = ("billing.eu", "billing.us", "Orders", "orders", "orders-old", "x_y")


@pytest.fixture
async def tenant_with_queues(tenant: Tenant) -> Tenant:
    for name in NAMES:
        await tenant.queue(name)
    for count, name in ((3, "orders"), (1, "billing.us")):
        for number in range(count):
            await tenant.publish(f"/v1/queues/{name}", number)
    (await tenant.client.post("/v1/queues/orders-old/pause")).ok()
    return tenant


async def page(tenant: Tenant, query: str) -> dict[str, Any]:
    found: dict[str, Any] = (await tenant.client.get(f"/v1/queues?{query}")).ok()
    return found


async def names(tenant: Tenant, query: str) -> list[str]:
    return [one["name"] for one in (await page(tenant, query))["queues"]]


async def all_pages(tenant: Tenant, query: str, total: int) -> list[str]:
    found: list[str] = []
    cursor = ""
    while True:
        one = await page(tenant, f"{query}&limit=2{cursor}")
        assert one["total"] == total and len(one["queues"]) <= 2
        found += [queue["name"] for queue in one["queues"]]
        if one["nextCursor"] is None:
            return found
        cursor = f"&cursor={one['nextCursor']}"


async def test_the_total_is_the_number_of_matches(tenant_with_queues: Tenant) -> None:
    assert (await page(tenant_with_queues, "limit=1"))["total"] == len(NAMES)
    assert (await page(tenant_with_queues, "limit=1&prefix=billing."))["total"] == 2
    assert (await page(tenant_with_queues, "search=zzz")) == {"queues": [], "nextCursor": None, "total": 0}


async def test_a_restricted_key_counts_the_queues_that_it_may_use(tenant_with_queues: Tenant) -> None:
    narrow = await tenant_with_queues.another_key(allowed_queues=("billing.*",))
    assert (await page(narrow, "limit=1"))["total"] == 2
    assert (await page(narrow, "limit=1&sort=-name"))["total"] == 2


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("prefix=billing.", {"billing.eu", "billing.us"}),
        ("prefix=x_", {"x_y"}),
        ("search=rders", {"Orders", "orders", "orders-old"}),
        ("paused=true", {"orders-old"}),
        ("paused=false&search=old", set()),
        ("search=us&prefix=bill", {"billing.us"}),
    ],
)
async def test_filters(tenant_with_queues: Tenant, query: str, expected: set[str]) -> None:
    assert set(await names(tenant_with_queues, query)) == expected


async def test_the_order_is_the_same_over_pages(tenant_with_queues: Tenant) -> None:
    by_name = await all_pages(tenant_with_queues, "sort=name", len(NAMES))
    assert sorted(by_name) == sorted(NAMES)
    assert await all_pages(tenant_with_queues, "sort=-name", len(NAMES)) == by_name[::-1]
    assert await all_pages(tenant_with_queues, "sort=createdAt", len(NAMES)) == list(NAMES)
    assert (await all_pages(tenant_with_queues, "sort=-updatedAt", len(NAMES)))[0] == "orders-old"


async def test_the_largest_backlog_comes_first(tenant_with_queues: Tenant) -> None:
    assert (await names(tenant_with_queues, "sort=-ready"))[:2] == ["orders", "billing.us"]
    assert (await all_pages(tenant_with_queues, "sort=-ready", len(NAMES)))[:2] == ["orders", "billing.us"]
    assert set((await names(tenant_with_queues, "sort=-oldestAgeMs"))[:2]) == {"orders", "billing.us"}
    shown = (await page(tenant_with_queues, "sort=-ready&stats=true&limit=1"))["queues"]
    assert shown[0]["stats"]["ready"] == 3
    assert "stats" not in (await page(tenant_with_queues, "sort=-ready&limit=1"))["queues"][0]


async def test_too_many_queues_are_sorted_by_their_samples(own_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_SORTED_BY_STATS_MAX", 1)
    async with running_gateway(gateway_settings(own_server.url, sample_seconds=1), Role.ALL) as gateway:
        tenant = await gateway.tenant()
        for name in ("a", "b", "c"):
            await tenant.queue(name)
        await tenant.publish("/v1/queues/c", 1)

        async def is_sorted() -> bool:
            return (await names(tenant, "sort=-ready"))[0] == "c" == (await names(tenant, "sort=-inPerSecond"))[0]

        await eventually(is_sorted, 20)
        assert (await all_pages(tenant, "sort=-ready", 3))[0] == "c"


@pytest.mark.parametrize("query", ["sort=size", "sort=-ready&cursor=nonsense", "sort=ready&cursor=x~orders", "paused=perhaps"])
async def test_what_cannot_be_listed_is_refused(tenant: Tenant, query: str) -> None:
    (await tenant.client.get(f"/v1/queues?{query}")).problem(400, "invalid-parameter")
