"""Leases of a queue's default visibility, which its consumer gives by itself: no message is sent for them."""

import asyncio
import re
import time

import pytest

from postroad.api.queues import StrictQueueSettings
from postroad.jetstream import deliveries
from postroad.jetstream.connection import Connection
from postroad.queues.rules import consumer_lease_ms
from tests.gateway import Tenant
from tests.queues.test_nack import pull_consumer_of
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("both_paths")


@pytest.fixture
def leases(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Leases sent from now on, in milliseconds. A slow machine is no reason to send one."""
    really, found = Connection.send, list[int]()

    def spy(connection: Connection, commands: bytes, *, is_urgent: bool = True) -> None:
        found.extend(int(delay) // 1_000_000 for delay in re.findall(rb'-NAK {"delay": (\d+)}', commands))
        really(connection, commands, is_urgent=is_urgent)

    monkeypatch.setattr(Connection, "send", spy)
    monkeypatch.setattr(deliveries, "ACK_WAIT_MARGIN_MS", 120_000)
    return found


async def publish_ready(tenant: Tenant, queue: str, count: int = 1) -> None:
    """Publish messages that the next pull finds without waiting."""
    for number in range(count):
        await tenant.publish(queue, number)

    async def is_ready() -> bool:
        return (await tenant.stats(queue))["ready"] == count

    await eventually(is_ready)


async def test_a_lease_of_the_default_time_is_not_sent(tenant: Tenant, leases: list[int]) -> None:
    queue = await tenant.queue(visibilityTimeoutMs=30_000)
    await publish_ready(tenant, queue, 5)
    pulled = [*await tenant.pull(queue, 3), *await tenant.pull(queue, 2, visibilityTimeoutMs=30_000)]
    assert len(pulled) == 5 and leases == []
    assert await tenant.pull(queue) == []
    assert (await tenant.stats(queue))["leased"] == 5
    for message in pulled:
        (await tenant.ack(queue, message["receiptId"])).ok()
    await eventually(lambda: _is_empty(tenant, queue))


async def _is_empty(tenant: Tenant, queue: str) -> bool:
    return not any((await tenant.stats(queue)).values())


async def test_a_lease_of_another_time_is_sent(tenant: Tenant, leases: list[int]) -> None:
    queue = await tenant.queue(visibilityTimeoutMs=30_000)
    await publish_ready(tenant, queue, 2)
    await tenant.pull(queue, visibilityTimeoutMs=40_000)
    await tenant.pull(queue, visibilityTimeoutMs=20_000)
    assert leases == [40_000, 20_000]


@pytest.mark.parametrize("changed", [20_000, 40_000])
async def test_a_changed_default_is_sent_and_leaves_present_leases_alone(tenant: Tenant, leases: list[int], changed: int) -> None:
    """The consumer keeps its lease: the engine would apply a new one to the deliveries that have the old one."""
    queue = await tenant.queue(visibilityTimeoutMs=2_000)
    await publish_ready(tenant, queue, 2)
    before = time.monotonic()
    await tenant.pull(queue)
    (await tenant.client.put(queue, {"visibilityTimeoutMs": changed})).ok(200)
    await tenant.pull(queue)
    assert leases == [changed]
    [again] = await tenant.pull(queue, 2, waitMs=20_000)
    assert (again["payload"], again["attempt"]) == (0, 2)
    assert time.monotonic() - before >= 2.0


async def test_a_message_returns_when_its_lease_ends_and_not_before(tenant: Tenant) -> None:
    queue = await tenant.queue(visibilityTimeoutMs=1_000)
    await publish_ready(tenant, queue, 20)
    ends: dict[int, float] = {}
    pulled: list[int] = []
    for attempt in (1, 2, 3):
        received: dict[int, float] = {}
        while len(received) < 20:
            for message in await tenant.pull(queue, 7, waitMs=20_000):
                number = message["payload"]
                assert message["attempt"] == attempt
                assert time.monotonic() >= ends.get(number, 0.0), "the earlier lease had not ended"
                received[number] = time.monotonic()
                pulled.append(number)
            ends.update({number: at + 0.95 for number, at in received.items() if ends.get(number, 0.0) < at})
    assert len(pulled) == 60


async def test_an_extended_lease_ends_at_its_new_time(tenant: Tenant, leases: list[int]) -> None:
    queue = await tenant.queue(visibilityTimeoutMs=1_000)
    await publish_ready(tenant, queue, 2)
    first, _ = await tenant.pull(queue, 2)
    extended = await tenant.client.post(f"{queue}/extend", {"receiptId": first["receiptId"], "visibilityTimeoutMs": 60_000})
    receipt = extended.ok()["newReceiptId"]
    assert leases == [60_000]
    [other] = await tenant.pull(queue, 2, waitMs=20_000)
    assert (other["payload"], other["attempt"]) == (1, 2), "only the one that was not extended"
    (await tenant.ack(queue, receipt)).ok()


async def test_a_delivery_that_was_long_on_its_way_gets_a_lease_of_the_full_time(
    tenant: Tenant, leases: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deliveries, "ACK_WAIT_MARGIN_MS", 0)
    queue = await tenant.queue(visibilityTimeoutMs=30_000)
    await publish_ready(tenant, queue)
    await tenant.pull(queue)
    assert leases == [30_000]


async def test_a_message_that_was_waited_for_gets_a_lease(tenant: Tenant, leases: list[int]) -> None:
    """How long ago the engine delivered it is not known."""
    queue = await tenant.queue(visibilityTimeoutMs=30_000)
    waiting = asyncio.create_task(tenant.pull(queue, waitMs=20_000))
    await eventually(lambda: pull_consumer_of(tenant)._has_waiting_pull)
    await tenant.publish(queue, 1)
    assert len(await waiting) == 1
    assert leases == [30_000]


@pytest.mark.parametrize(
    ("visibility_ms", "expected"), [(None, 0), (0, 0), (999, 0), (1_000, 1_000), (30_000, 30_000), (60_000, 60_000), (60_001, 0)]
)
def test_a_consumer_has_neither_a_very_short_nor_a_long_lease(visibility_ms: int | None, expected: int) -> None:
    assert consumer_lease_ms(StrictQueueSettings(visibility_timeout_ms=visibility_ms)) == expected
