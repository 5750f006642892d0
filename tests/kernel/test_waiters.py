import asyncio
import itertools

import pytest

from postroad.kernel.waiters import Waiters


async def test_waiters_are_woken_in_slices() -> None:
    """Other callbacks run between two slices."""
    waiters, log = Waiters(slice_max=10), []

    async def wait(number: int) -> None:
        await waiters.wait()
        log.append(number)

    async def others() -> None:
        while True:
            log.append(-1)
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(wait(number)) for number in range(35)]
    await asyncio.sleep(0)
    running = asyncio.create_task(others())
    waiters.wake()
    await asyncio.wait_for(asyncio.gather(*tasks), 10)
    running.cancel()
    runs = [len(list(group)) for is_waiter, group in itertools.groupby(log, lambda one: one >= 0) if is_waiter]
    assert runs == [10, 10, 10, 5]
    assert [number for number in log if number >= 0] == list(range(35))


async def test_a_change_while_waiters_are_being_woken_wakes_later_ones_too() -> None:
    waiters = Waiters(slice_max=1)
    tasks = [asyncio.create_task(waiters.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    waiters.wake()
    tasks.append(asyncio.create_task(waiters.wait()))
    await asyncio.sleep(0)
    waiters.wake()
    await asyncio.wait_for(asyncio.gather(*tasks), 10)


async def test_a_cancelled_waiter_is_forgotten() -> None:
    waiters = Waiters()
    waiting = asyncio.create_task(waiters.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not waiters._waiting
    waiters.wake()


async def test_a_served_waiter_goes_on_waiting_until_it_is_not_served() -> None:
    waiters, calls = Waiters(), list[str]()
    answers = iter((True, True, False))

    def serve() -> bool:
        calls.append("served")
        return next(answers)

    waiting = asyncio.create_task(waiters.wait(serve))
    await asyncio.sleep(0)
    for count in (1, 2):
        waiters.wake()
        await asyncio.sleep(0)
        assert len(calls) == count and not waiting.done()
    waiters.wake()
    await asyncio.wait_for(waiting, 10)
    waiters.wake()
    assert len(calls) == 3


async def test_waiters_are_served_in_slices_and_a_change_meanwhile_serves_them_again() -> None:
    waiters, log = Waiters(slice_max=2), list[int]()

    def served(number: int) -> bool:
        log.append(number)
        return True

    tasks = [asyncio.create_task(waiters.wait(lambda number=number: served(number))) for number in range(4)]  # type: ignore[misc]
    await asyncio.sleep(0)
    waiters.wake()
    assert log == [0, 1]
    waiters.wake()
    for _ in range(3):
        await asyncio.sleep(0)
    assert log == [0, 1, 2, 3, 0, 1]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not waiters._waiting


async def test_what_fails_while_a_waiter_is_served_is_raised_in_its_task_alone() -> None:
    waiters = Waiters()

    def crash() -> bool:
        raise ValueError("a bug")

    crashed, other = asyncio.create_task(waiters.wait(crash)), asyncio.create_task(waiters.wait())
    await asyncio.sleep(0)
    waiters.wake()
    with pytest.raises(ValueError, match="a bug"):
        await asyncio.wait_for(crashed, 10)
    await asyncio.wait_for(other, 10)
