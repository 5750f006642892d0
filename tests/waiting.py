"""Wait for a condition with a deadline, instead of a fixed time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")


@overload
async def eventually(check: Callable[[], Awaitable[T]], seconds: float = 30) -> T: ...
@overload
async def eventually(check: Callable[[], T], seconds: float = 30) -> T: ...
async def eventually(check: Callable[[], object], seconds: float = 30) -> object:
    """Call `check` until its result is true, and return it. AssertionError with the last result after `seconds`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        called = check()
        result = await called if isinstance(called, Awaitable) else called
        if result:
            return result
        assert loop.time() < deadline, f"not within {seconds} s; the last result was {result!r}"
        await asyncio.sleep(0.01)
