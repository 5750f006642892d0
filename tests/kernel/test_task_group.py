"""A group of tasks that end together, also when failures and cancellations coincide."""

import asyncio

import pytest

from postroad.kernel.task_group import StoppableTaskGroup, run_all


class Broken(Exception):
    pass


async def breaks(at: asyncio.Event) -> None:
    await at.wait()
    raise Broken


async def test_the_first_failure_cancels_the_others_and_is_raised() -> None:
    at, ended = asyncio.Event(), asyncio.Event()

    async def goes_on() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    running = asyncio.create_task(run_all(breaks(at), goes_on()))
    await asyncio.sleep(0)
    at.set()
    with pytest.raises(Broken):
        await running
    assert ended.is_set()


async def test_a_cancellation_is_not_lost_when_a_task_fails_at_the_same_moment() -> None:
    for steps in range(4):
        at = asyncio.Event()
        running = asyncio.create_task(run_all(breaks(at)))
        await asyncio.sleep(0.001)
        at.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        if running.cancel():
            with pytest.raises(asyncio.CancelledError):
                await running


async def test_a_task_that_swallows_a_cancellation_is_cancelled_again() -> None:
    async def swallows() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    running = asyncio.create_task(run_all(swallows()))
    await asyncio.sleep(0.001)
    running.cancel()
    await asyncio.wait({running}, timeout=3)
    assert running.cancelled()


async def test_a_task_started_later_belongs_to_the_group() -> None:
    group, at = StoppableTaskGroup(), asyncio.Event()
    group.start(asyncio.sleep(0))
    running = asyncio.create_task(group.run())
    await asyncio.sleep(0.001)
    group.start(breaks(at))
    at.set()
    with pytest.raises(Broken):
        await running
