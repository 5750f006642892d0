"""The operator's authorization hook: `POSTROAD_AUTHORIZE=module:callable`.

The callable receives an `Attempt` and returns, directly or as an awaitable:

    True or None    keep Postroad's decision
    False           refuse the request
    a Caller        authenticate as this caller, also for credentials that Postroad does not know (`caller` is None then)

It runs after Postroad's check of the credential and before the check of its scopes. If it raises or times out, the request is
refused.
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
    """A request that is to be authorized.

    `action` names the operation, such as `subscribe` or `touchSession`. `project` is the tenant that the request is for, empty
    if it names none and the credential is unknown. `parameters` has all ids in the path and, of a subscribe or unsubscribe, in
    the body: `session` and `stream`.
    """

    action: str
    project: str
    method: str
    route: str
    parameters: Mapping[str, str]
    needs: str
    address: str
    credential: str
    caller: Caller | None

    def __repr__(self) -> str:
        return (
            f"Attempt({self.action}, {self.method} {self.route}, needs={self.needs!r}, credential='***', caller={self.caller!r})"
        )


Decision = Caller | bool | None
Authorize = Callable[[Attempt], Decision | Awaitable[Decision]]


def load_hook(path: str) -> Authorize:
    """Raises PostroadError if the path cannot be loaded."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as exc:
        raise PostroadError(f"POSTROAD_AUTHORIZE: {path!r} cannot be loaded: {exc}") from exc
    if not callable(found):
        raise PostroadError(f"POSTROAD_AUTHORIZE: {path!r} is not callable")
    return found  # type: ignore[no-any-return]


async def apply_hook(hook: Authorize, attempt: Attempt) -> Caller | None:
    """The caller after the hook's decision. Raises Forbidden."""
    try:
        decision = hook(attempt)
        if inspect.isawaitable(decision):
            async with asyncio.timeout(_SECONDS_MAX):
                decision = await decision
    except Exception as exc:
        log.error("authorize_hook_failed", route=attempt.route, error=repr(exc))
        raise Forbidden("the operator's authorization hook failed") from exc
    if isinstance(decision, Caller):
        return decision
    if decision is None or decision is True:
        return attempt.caller
    raise Forbidden("the operator's authorization hook refused the request")
