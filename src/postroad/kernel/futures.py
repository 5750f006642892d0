"""Futures that are resolved by callbacks."""

import asyncio
from typing import TypeVar

T = TypeVar("T")


def resolve(future: "asyncio.Future[T]", outcome: T | Exception) -> None:
    """Set the result, or the exception; nothing if the caller has cancelled the future."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
