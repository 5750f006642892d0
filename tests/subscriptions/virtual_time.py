"""An event loop whose time passes only when nothing is left to do: a test of hours takes milliseconds, and is repeatable."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


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
