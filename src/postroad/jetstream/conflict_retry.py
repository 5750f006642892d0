"""Retry of compare-and-set operations after a concurrent change."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from postroad.kernel.errors import Conflict, Overloaded

P = ParamSpec("P")
T = TypeVar("T")
Operation = Callable[P, Coroutine[Any, Any, T]]


def retry_on_conflict(resource: str, *, attempts: int = 20) -> Callable[[Operation[P, T]], Operation[P, T]]:
    """Decorate an operation that reads a state, and raises Conflict if the state has changed when it writes: repeat it then.

    The operation must have no effect before it raises. Raises Overloaded if all attempts meet a concurrent change.
    """

    def decorate(operation: Operation[P, T]) -> Operation[P, T]:
        @wraps(operation)
        async def repeated(*args: P.args, **kwargs: P.kwargs) -> T:
            for _ in range(attempts):
                try:
                    return await operation(*args, **kwargs)
                except Conflict as exc:
                    conflict = exc
            raise Overloaded(f"too many concurrent changes of {resource}", retry_after=1) from conflict

        return repeated

    return decorate
