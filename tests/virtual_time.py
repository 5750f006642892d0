"""An event loop whose time passes only when nothing is left to do: a test of hours takes milliseconds, and is repeatable."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class _Selector(selectors.DefaultSelector):
    """Lets the virtual time pass instead of waiting."""

    elapsed = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found:
            assert timeout is not None, "the loop would wait for ever"
            self.elapsed += timeout
        return found


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.elapsed

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.run_until_complete(work)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on a loop of its own. Tasks that it leaves are cancelled."""

    async def ended(work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        loop = VirtualTimeLoop()
        try:
            loop.run(ended(test(*arguments, **named)))
        finally:
            loop.close()

    return run
