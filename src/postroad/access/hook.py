"""The operator's own say in who may do what: `POSTROAD_AUTHORIZE=module:callable`.

The callable is given an `Attempt` and answers, itself or by an awaitable:

    True or None    as Postroad decided
    False           refused
    a Caller        let in as this one; also for credentials that Postroad does not know (`caller` is None then)

It is called after Postroad's own checks of the credential and before those of its scope. If it raises, or takes longer than its
time, the request is refused: it fails closed.
"""

import asyncio
import importlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

import structlog

from postroad.kernel.errors import Forbidden, PostroadError
from postroad.kernel.identity import Caller

_SECONDS_MAX = 2.0

log = structlog.get_logger("postroad.access")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A request that wants in."""

    method: str
    route: str
    parameters: Mapping[str, str]
    needs: str
    address: str
    credential: str
    caller: Caller | None

    def __repr__(self) -> str:
        return f"Attempt({self.method} {self.route}, needs={self.needs!r}, credential='***', caller={self.caller!r})"


Answer = Caller | bool | None
Authorize = Callable[[Attempt], Answer | Awaitable[Answer]]


def load_hook(path: str) -> Authorize:
    """Raises PostroadError, saying what is wrong with the path."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise PostroadError(f"POSTROAD_AUTHORIZE: {path!r} cannot be loaded: {exc}") from exc
    if not callable(found):
        raise PostroadError(f"POSTROAD_AUTHORIZE: {path!r} cannot be called")
    return found  # type: ignore[no-any-return]


async def ask(hook: Authorize, attempt: Attempt) -> Caller | None:
    """The caller as the hook leaves it. Raises Forbidden."""
    try:
        answer = hook(attempt)
        if inspect.isawaitable(answer):
            async with asyncio.timeout(_SECONDS_MAX):
                answer = await answer
    except Exception as exc:
        log.error("authorize_hook_failed", route=attempt.route, error=repr(exc))
        raise Forbidden("the operator's authorization could not decide") from exc
    if isinstance(answer, Caller):
        return answer
    if answer is None or answer is True:
        return attempt.caller
    raise Forbidden("the operator's authorization refuses this")
