"""Interruption of a process at one of its requests to JetStream."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committer
from postroad.kernel.errors import PostroadError


class Interrupted:
    """Counts requests and cancels the caller at one of them: before it is sent, or before its response arrives."""

    def __init__(self, at: int, *, is_made: bool) -> None:
        self._at, self._is_made = at, is_made
        self._task = asyncio.current_task()  # other tasks of the process are not counted
        self.calls = 0

    def wrap(self, call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def wrapped(*arguments: Any, **more: Any) -> Any:
            if asyncio.current_task() is not self._task:
                return await call(*arguments, **more)
            self.calls += 1
            is_last = self.calls == self._at
            if not is_last:
                return await call(*arguments, **more)
            if self._is_made:
                with contextlib.suppress(PostroadError):
                    await call(*arguments, **more)
            raise asyncio.CancelledError

        return wrapped


@contextlib.contextmanager
def interrupted(at: int, *, is_made: bool = True) -> Iterator[Interrupted]:
    """Cancel the block at its `at`th request to JetStream."""
    work = Interrupted(at, is_made=is_made)
    with pytest.MonkeyPatch.context() as patched:
        for owner, name in ((stream_reader, "read"), (stream_reader, "last"), (Committer, "append_together")):
            patched.setattr(owner, name, work.wrap(getattr(owner, name)))
        with contextlib.suppress(asyncio.CancelledError):
            yield work
