"""Waiting for what must happen, with a deadline: no test sleeps a fixed time and hopes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")


@overload
async def eventually(check: Callable[[], Awaitable[T]], seconds: float = 5) -> T: ...
@overload
async def eventually(check: Callable[[], T], seconds: float = 5) -> T: ...
async def eventually(check: Callable[[], object], seconds: float = 5) -> object:
    """The first truthy answer of `check`, asked again and again; AssertionError with its last answer after `seconds`."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + seconds
    while True:
        answer = check()
        found = await answer if isinstance(answer, Awaitable) else answer
        if found:
            return found
        assert loop.time() < give_up_at, f"not within {seconds} s; the last answer was {found!r}"
        await asyncio.sleep(0.01)
