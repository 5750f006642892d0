"""`Publisher.deliver` with a marker: once as long as the marker lives, whatever the ids, from whatever process."""

import asyncio

import msgspec
import pytest

from postroad.api.queues import IdempotencyMismatch
from postroad.kernel.clock import now_ms
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import EngineFull
from postroad.kernel.identity import Caller, Scope
from postroad.kernel.ids import new_id
from postroad.queues.capability import QueuesCapability
from postroad.queues.message_writes import Delivered, DeliveryMarker
from postroad.queues.records import StoredMessage
from tests.gateway import Gateway, Tenant
from tests.waiting import eventually


def message(payload: bytes = b"1") -> StoredMessage:
    return StoredMessage(v=1, id=new_id(), job=new_id(), at=now_ms(), payload=msgspec.Raw(payload))


def marker(key: str = "k", *, owner: str = "test acme", body: str = "b", note: str = "", ttl_ms: int = 60_000) -> DeliveryMarker:
    return DeliveryMarker(owner=owner, key=key, ttl_ms=ttl_ms, body=body, note=note)


async def deliver(gateway: Gateway, tenant: Tenant, mark: DeliveryMarker | None, delay_ms: int = 0) -> Delivered:
    publisher = gateway.node.platform.use(QueuesCapability).publisher
    context = RequestContext(Caller(tenant.id, "", frozenset({Scope.PUBLISH}), name="test"))
    return await publisher.deliver(context, "q", message(), marker=mark, delay_ms=delay_ms)


async def test_a_second_delivery_with_the_marker_gets_the_ids_and_note_of_the_first(
    gateway: Gateway, second_gateway: Gateway, tenant: Tenant
) -> None:
    queue = await tenant.queue()
    first = await deliver(gateway, tenant, marker(note="first"))
    second = await deliver(second_gateway, tenant, marker(note="second"))
    assert not first.is_duplicate
    assert second == Delivered(
        message_id=first.message_id, job_id=first.job_id, is_duplicate=True, note="first", owner="test acme"
    )
    assert (await tenant.stats(queue))["ready"] == 1
    [pulled] = await tenant.pull(queue)
    assert pulled["messageId"] == first.message_id
    events = [one for one in await tenant.events() if one["event"] == "job.queued"]
    assert len({one["event_id"] for one in events}) == 1


async def test_keys_and_owners_are_separate(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    marks = [marker("a"), marker("b"), marker("a", owner="test other"), marker("me\0a", owner="test ac")]
    done = [await deliver(gateway, tenant, one) for one in marks]
    assert not any(one.is_duplicate for one in done)
    assert (await tenant.stats(queue))["ready"] == 4


async def test_another_body_under_the_same_key_is_refused(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    await deliver(gateway, tenant, marker())
    with pytest.raises(IdempotencyMismatch):
        await deliver(gateway, tenant, marker(body="other"))
    assert (await tenant.stats(queue))["ready"] == 1


async def test_many_concurrent_deliveries_store_one_message(gateway: Gateway, second_gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    both = (gateway, second_gateway)
    done = await asyncio.gather(*[deliver(both[number % 2], tenant, marker(f"k{number // 8}")) for number in range(80)])
    assert sum(not one.is_duplicate for one in done) == 10
    assert len({one.message_id for one in done}) == 10
    assert (await tenant.stats(queue))["ready"] == 10


async def test_the_key_is_new_after_the_time_to_live(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    first = await deliver(gateway, tenant, marker(ttl_ms=1000))

    async def is_new() -> bool:
        return not (await deliver(gateway, tenant, marker(ttl_ms=60_000))).is_duplicate

    assert (await deliver(gateway, tenant, marker(ttl_ms=1000))).message_id == first.message_id
    await eventually(is_new, 10)
    assert (await tenant.stats(queue))["ready"] == 2


async def test_a_refused_delivery_leaves_no_marker(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue(maxMessages=1)
    await deliver(gateway, tenant, marker("a"))
    with pytest.raises(EngineFull):
        await deliver(gateway, tenant, marker("b"))
    assert (await deliver(gateway, tenant, marker("a"))).is_duplicate  # also while the queue is full
    [pulled] = await tenant.pull(queue)
    (await tenant.ack(queue, pulled["receiptId"])).ok()

    async def is_delivered() -> bool:
        try:
            return not (await deliver(gateway, tenant, marker("b"))).is_duplicate
        except EngineFull:
            return False

    await eventually(is_delivered)


async def test_a_delayed_delivery_waits(gateway: Gateway, tenant: Tenant) -> None:
    queue = await tenant.queue()
    await deliver(gateway, tenant, marker(), delay_ms=3_600_000)
    await deliver(gateway, tenant, None, delay_ms=3_600_000)
    assert await tenant.stats(queue) == {"ready": 0, "leased": 0, "delayed": 2}
