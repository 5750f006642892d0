"""Slots that tenants share: what each may take, and the order in which waiting calls get one."""

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.outbound.fair_slots import FairSlots, SlotLimits, SlotsBusy, may_take

LIMITS = SlotLimits(total=100, per_tenant=40, per_host=10)


def after(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


def fill(limits: SlotLimits, tenants: int, hosts: int) -> dict[tuple[int, int], int]:
    """Slots of each tenant and host when all of them ask in turn until none gets more."""
    held = dict.fromkeys([(tenant, host) for tenant in range(tenants) for host in range(hosts)], 0)
    has_changed = True
    while has_changed:
        has_changed = False
        for tenant, host in held:
            of_tenant = sum(count for (owner, _), count in held.items() if owner == tenant)
            if may_take(limits, total=sum(held.values()), of_tenant=of_tenant, of_host=held[tenant, host]):
                held[tenant, host] += 1
                has_changed = True
    return held


@given(tenants=st.integers(1, 12), hosts=st.integers(1, 5))
def test_tenants_that_take_all_they_can_leave_slots_for_one_more_tenant_and_host(tenants: int, hosts: int) -> None:
    held = fill(LIMITS, tenants, hosts)
    total, of_tenant = sum(held.values()), sum(count for (owner, _), count in held.items() if owner == 0)
    assert total < LIMITS.total
    assert may_take(LIMITS, total=total, of_tenant=0, of_host=0)
    assert of_tenant <= LIMITS.per_tenant
    assert all(count <= LIMITS.per_host for count in held.values())


@given(hosts=st.integers(1, 30))
def test_hosts_that_take_all_they_can_leave_slots_for_another_host_of_the_tenant(hosts: int) -> None:
    held = fill(LIMITS, 1, hosts)
    assert may_take(LIMITS, total=sum(held.values()), of_tenant=sum(held.values()), of_host=0)


def test_tenants_that_ask_equally_get_equal_shares() -> None:
    held = fill(SlotLimits(total=100, per_tenant=100, per_host=100), 4, 1)
    assert max(held.values()) - min(held.values()) <= 1


async def test_a_waiting_call_gets_the_slot_that_is_released() -> None:
    slots = FairSlots(SlotLimits(total=10, per_tenant=5, per_host=1))
    await slots.acquire("a", "x", after(5))
    waiting = asyncio.create_task(slots.acquire("a", "x", after(5)))
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.release("a", "x")
    await waiting
    assert slots.in_use == 1


async def test_a_call_fails_at_its_deadline_and_leaves_nothing_behind() -> None:
    slots = FairSlots(SlotLimits(total=10, per_tenant=5, per_host=1))
    await slots.acquire("a", "x", after(5))
    with pytest.raises(SlotsBusy):
        await slots.acquire("a", "x", after(0.01))
    slots.release("a", "x")
    assert slots.in_use == 0
    await slots.acquire("a", "x", after(5))


async def test_waiting_tenants_are_served_in_turn() -> None:
    slots = FairSlots(SlotLimits(total=2, per_tenant=2, per_host=2))
    await slots.acquire("holder", "x", after(5))
    order: list[str] = []

    async def use(tenant: str, host: str) -> None:
        await slots.acquire(tenant, host, after(5))
        order.append(f"{tenant}-{host}")
        await asyncio.sleep(0)
        slots.release(tenant, host)

    await slots.acquire("other", "x", after(5))
    calls = [asyncio.create_task(use("a", host)) for host in ("x", "x", "y")]
    calls += [asyncio.create_task(use("b", "x")) for _ in range(2)]
    await asyncio.sleep(0)
    slots.release("other", "x")
    await asyncio.gather(*calls)
    assert order == ["a-x", "b-x", "a-y", "b-x", "a-x"]


async def test_a_slot_granted_to_a_cancelled_call_is_not_lost() -> None:
    slots = FairSlots(SlotLimits(total=10, per_tenant=5, per_host=1))
    await slots.acquire("a", "x", after(5))
    for is_granted_first in (True, False):
        waiting = asyncio.create_task(slots.acquire("a", "x", after(5)))
        await asyncio.sleep(0)
        if is_granted_first:
            slots.release("a", "x")
            waiting.cancel()
        else:
            waiting.cancel()
            slots.release("a", "x")
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        assert slots.in_use == 0
        await slots.acquire("a", "x", after(5))
