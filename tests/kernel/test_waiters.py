import asyncio
import itertools

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
