"""Load tests with both clients, against a running gateway."""

import pytest

from postroad.client.errors import LoadTestNotFound
from tests.client.conftest import Sdk
from tests.gateway import Gateway
from tests.waiting import eventually


async def test_a_load_test_is_started_shown_and_stopped(sdk: Sdk, control: Gateway) -> None:
    limits = await sdk("loadtests.limits")
    assert limits.enabled and limits.seconds >= 1
    made = await sdk("loadtests.start", rate_per_second=1, seconds=1, publishers=1, consumers=1)
    assert (await sdk("loadtests.get", made)).id == made.id
    assert [one.id for one in await sdk("loadtests.list")] == [made.id]
    assert (await sdk("loadtests.stop", made)).id == made.id

    async def has_ended() -> bool:  # an installation runs one at a time
        return (await sdk("loadtests.get", made)).state not in ("queued", "running", "paused")

    await eventually(has_ended)
    with pytest.raises(LoadTestNotFound):
        await sdk("loadtests.get", "00000000-0000-0000-0000-000000000000")
