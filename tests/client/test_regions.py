"""Regions with the SDK."""

from tests.client.conftest import Sdk
from tests.waiting import eventually


async def test_regions_have_servers_and_counts(sdk: Sdk) -> None:
    await sdk("queues.put", "orders", geo="auto", replicas=3)
    found = None

    async def is_shown() -> bool:
        nonlocal found
        found = await sdk("regions.get", empty=False)
        return bool(found.streams)

    await eventually(is_shown)  # it is some seconds old
    assert found is not None
    assert (found.region, found.streams, found.without_leader, found.moving) == (None, 1, [], [])
    assert [node.name for node in found.regions[-1].nodes] == ["postroad"] and found.regions[-1].leaders == 1
    shown = await sdk("queues.get", "orders")
    assert shown.placement is not None and shown.placement.leader == "postroad"
