"""The tenant's events with both clients, against a running gateway."""

import asyncio
from typing import Any

import pytest

from postroad.client import AsyncPostroad, Message, Postroad
from postroad.client.errors import InvalidParameter
from postroad.client.telemetry_follower import TelemetryFollower
from postroad.client.worker import Worker
from tests.client.conftest import Sdk
from tests.client.lossy_connection import LossyConnection
from tests.client.test_commands import registered
from tests.gateway import Tenant
from tests.waiting import eventually

pytestmark = pytest.mark.engine


async def test_the_state_of_the_queue(sdk: Sdk, tenant: Tenant) -> None:
    await registered(sdk, tenant)
    assert (await sdk("telemetry.status")).waiting == 0
    with pytest.raises(InvalidParameter):
        await sdk("telemetry.follow", source="a/b/c")


async def test_events_are_consumed_once_and_acknowledged(sdk: Sdk, tenant: Tenant) -> None:
    """Requirement 199"""
    await registered(sdk, tenant)

    def consume_all() -> list[dict[str, Any]]:
        with Postroad(tenant.gateway.url, tenant.key) as client:
            for number in range(3):
                client.commands.send("billing", "bot", "post", number)
            return list(client.telemetry.consume(stop_when_empty=True))

    events = await asyncio.to_thread(consume_all)
    outcomes = [one["event"] for one in events if one["event"] != "snavio.telemetry.skew_sample"]  # of one command in a hundred
    assert outcomes == ["snavio.command.delivered"] * 3
    async with AsyncPostroad(tenant.gateway.url, tenant.key) as client:
        await client.commands.send("billing", "bot", "post", 4)
        assert len([event async for event in client.telemetry.consume(stop_when_empty=True)]) in (1, 2)
        assert [event async for event in client.telemetry.consume(stop_when_empty=True)] == []
    assert (await sdk("telemetry.status")).leased == 0


async def test_events_are_followed_live(sdk: Sdk, tenant: Tenant) -> None:
    await registered(sdk, tenant)
    async with AsyncPostroad(tenant.gateway.url, tenant.key) as client:
        events = client.telemetry.follow(events="snavio.command.*", source="billing")
        first = asyncio.ensure_future(anext(events))
        while not first.done():
            await client.commands.send("billing", "bot", "post", 1)
            await asyncio.wait({first}, timeout=0.2)
        assert (await first)["event"] == "snavio.command.delivered"

    def follow() -> dict[str, Any]:
        with Postroad(tenant.gateway.url, tenant.key) as client:
            return next(client.telemetry.follow(target="bot", cloudevents=True))

    following = asyncio.ensure_future(asyncio.to_thread(follow))
    async with AsyncPostroad(tenant.gateway.url, tenant.key) as client:
        while not following.done():
            await client.commands.send("billing", "bot", "post", 1)
            await asyncio.wait({following}, timeout=0.2)
    assert (await following)["type"].startswith("postroad.snavio.command.")
    assert (await following)["data"]["target"] == f"{tenant.id}/bot"


async def test_a_reader_whose_connection_breaks_misses_no_event(sdk: Sdk, tenant: Tenant) -> None:
    await registered(sdk, tenant)
    line, sent, seen = LossyConnection(tenant.gateway.url, lasts_bytes=3000), list[str](), dict[str, None]()
    direct = AsyncPostroad(tenant.gateway.url, tenant.key)
    async with line.opened() as url, AsyncPostroad(url, tenant.key) as reader, direct as one:
        events = reader.telemetry.follow(events="snavio.command.delivered", source="billing")
        first = asyncio.ensure_future(anext(events))
        while not first.done():  # until it reads
            await one.commands.send("billing", "bot", "post", 0)
            await asyncio.wait({first}, timeout=0.2)
        await first

        async def send_until_breaks() -> None:
            while line.breaks < 5:
                sent.append((await one.commands.send("billing", "bot", "post", 1)).command_id)

        sending = asyncio.create_task(send_until_breaks())
        async with asyncio.timeout(60):
            async for event in events:
                seen[event["command_id"]] = None
                if sending.done() and sent[-1] in seen:
                    break
        await sending
    assert [command for command in seen if command in set(sent)] == sent


def test_the_position_at_the_start_of_a_response_is_continued_at() -> None:
    """Also when no event came: what happens until the next connection is not missed."""
    follower = TelemetryFollower({}, None)
    assert follower.next_call().headers == {}
    follower.on_open({})
    assert follower.on_data(b"retry: 1000\n\nid: here\n\n: beat\n\n") == []
    assert follower.next_call().headers == {"Last-Event-ID": "here"}


async def test_a_worker_reads_the_queue(sdk: Sdk, tenant: Tenant) -> None:
    """Requirement 199: like any other queue. A message whose handler failed comes again."""
    await registered(sdk, tenant)
    handled: list[tuple[int, int]] = []

    async def handle(message: Message) -> None:
        handled.append((len(message.payload), message.attempt))
        if len(handled) == 1:
            raise ValueError("the first attempt fails")

    async with AsyncPostroad(tenant.gateway.url, tenant.key) as client:
        await client.commands.send("billing", "bot", "post", 1)
        worker = Worker(client, "_telemetry", handle, signals=(), pause_first=0.02, pause_max=0.1)
        running = asyncio.create_task(worker.run())
        try:
            await eventually(lambda: len(handled) == 2)

            async def is_empty() -> bool:
                found = await client.telemetry.status()
                return found.waiting + found.leased == 0

            await eventually(is_empty)
            worker.stop()
            async with asyncio.timeout(30):
                await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert handled == [(1, 1), (1, 2)]
