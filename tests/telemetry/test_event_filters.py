"""Events of the live stream by queue and key, and thinned."""

import asyncio

import pytest

from postroad.telemetry.routes import Thinning
from tests.gateway import Tenant, gateway_settings, running_gateway

STREAM = "/v1/telemetry/stream"


def test_events_above_the_rate_are_left_out_and_counted() -> None:
    thinning, events = Thinning(3), [("job.queued", b"1"), ("job.queued", b"2")]
    assert thinning.choose(events, 1.0) == (events, 0)
    assert thinning.choose(events, 1.5) == (events[:1], 0)
    assert thinning.choose(events, 1.9) == ([], 0)
    assert thinning.choose(events, 2.0) == (events, 3)
    assert thinning.choose([], 3.0) == ([], 0)
    assert Thinning(None).choose(events * 100, 1.0) == (events * 100, 0)


async def test_events_are_chosen_by_queue_and_key(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url)) as gateway:
        tenant: Tenant = await gateway.tenant()
        orders, emails, other = await tenant.queue("orders"), await tenant.queue("emails"), await tenant.another_key()
        async with (
            tenant.client.events(f"{STREAM}?events=job.*&queue=orders") as of_orders,
            tenant.client.events(f"{STREAM}?events=job.*&key={other.record.id}") as of_key,
            tenant.client.events(f"{STREAM}?events=job.*&queue=orders&key={other.record.id}") as of_both,
        ):
            await tenant.publish(emails, 1)
            first = await tenant.publish(orders, 1)
            second = await other.publish(emails, 2)
            third = await other.publish(orders, 3)
            for reader, expected in ((of_orders, [first, third]), (of_key, [second, third]), (of_both, [third])):
                assert [one.json["job_id"] for one in await reader.take(len(expected))] == [one["jobId"] for one in expected]


async def test_a_busy_stream_is_thinned(engine_url: str) -> None:
    async with running_gateway(gateway_settings(engine_url)) as gateway:
        tenant = await gateway.tenant()
        queue = await tenant.queue("orders")

        async def publish() -> None:
            while True:
                await tenant.client.post(f"{queue}/messages/batch", {"messages": [{"payload": 1}] * 50})

        async with tenant.client.events(f"{STREAM}?events=job.queued&maxPerSecond=1") as reader:
            publishing = asyncio.create_task(publish())
            try:
                events = await reader.take(4, 20)
            finally:
                publishing.cancel()
                await asyncio.gather(publishing, return_exceptions=True)
        thinned = [one.json["left_out"] for one in events if one.event == "telemetry.thinned"]
        assert thinned and all(count > 0 for count in thinned)


@pytest.mark.parametrize("query", ["maxPerSecond=0", "maxPerSecond=x", "queue="])
async def test_invalid_filters_are_refused(engine_url: str, query: str) -> None:
    async with running_gateway(gateway_settings(engine_url)) as gateway:
        client = (await gateway.tenant()).client
        (await client.get(f"{STREAM}?{query}")).problem(400, "invalid-parameter")
