"""Futures that are resolved by callbacks, and outcomes of coroutines."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


def resolve(future: "asyncio.Future[T]", outcome: T | Exception) -> None:
    """Set the result, or the exception; nothing if the caller has cancelled the future."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


async def outcomes_of(work: Sequence[Coroutine[Any, Any, T]]) -> list[T | BaseException]:
    """The results or errors of several coroutines; one alone needs no task."""
    if len(work) != 1:
        return await asyncio.gather(*work, return_exceptions=True)
    try:
        return [await work[0]]
    except Exception as error:
        return [error]
