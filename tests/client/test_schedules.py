"""Schedules with both clients, against a running gateway."""

from datetime import UTC, datetime, timedelta

import pytest

from postroad.client.errors import ScheduleNotFound
from tests.client.conftest import Sdk


async def test_the_lifecycle_of_a_schedule(sdk: Sdk, name: str) -> None:
    await sdk("queues.put", name)
    end = datetime.now(UTC).replace(microsecond=0) + timedelta(days=900)
    made = await sdk("schedules.put", name, name, cron="@daily", payload={"keep": 7}, catch_up="all", end_at=end)
    assert (made.name, made.queue, made.state, made.payload, made.catch_up) == (name, name, "active", {"keep": 7}, "all")
    assert await sdk("schedules.get", name) == made
    assert [one.name for one in await sdk("schedules.list", queue=name)] == [name]
    following = await sdk("schedules.next", name, count=2)
    assert following.runs[0] == made.next_run_at and len(following.runs) == 2
    assert (await sdk("schedules.pause", name)).state == "paused"
    published = await sdk("schedules.run", name)
    [message] = (await sdk("queues.pull", name)).messages
    assert (message.message_id, message.payload) == (published.message_id, {"keep": 7})
    assert (await sdk("schedules.resume", name)).state == "active"
    await sdk("schedules.delete", name)
    with pytest.raises(ScheduleNotFound):
        await sdk("schedules.get", name)
