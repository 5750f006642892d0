"""Audit entries of events that any key can repeat, such as refused attempts: repetitions must not fill the log."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PostroadError

TARGETS_PER_TENANT_MAX = 20

log = structlog.get_logger("postroad.audit")


@dataclass(slots=True)
class _Repeated:
    """Events since the last entry, and the latest of them."""

    context: RequestContext
    count: int = 0


class CountedEntries:
    """The first event of a key and a target is an entry at once. Repetitions within the interval are counted and become one
    entry, and a tenant has a limited number of entries per interval and process; `others` is the target of the rest.

    `write` appends an entry: context, target and number of events.
    """

    def __init__(
        self, write: Callable[[RequestContext, str, int], Awaitable[object]], *, interval_seconds: float, others: str
    ) -> None:
        self._write, self._interval_seconds, self._others = write, interval_seconds, others
        self._repeated: dict[tuple[str, str, str], _Repeated] = {}
        self._targets = Counter[str]()  # of each tenant in this interval

    async def record(self, context: RequestContext, target: str) -> None:
        """Record or count an event. Raises the error of the log if the entry could not be stored."""
        tenant = context.tenant
        key = (tenant, context.caller.key_id, target)
        is_new = key not in self._repeated
        if is_new and self._targets[tenant] >= TARGETS_PER_TENANT_MAX:
            key, is_new = (tenant, "", self._others), False
        repeated = self._repeated.setdefault(key, _Repeated(context))
        repeated.context = context
        if is_new:
            self._targets[tenant] += 1
            try:
                await self._write(context, target, 1)
            except PostroadError:
                self._repeated.pop(key, None)  # the next one is tried at once
                raise
        else:
            repeated.count += 1

    async def flush(self) -> None:
        """Write the counted repetitions; the next event is recorded at once again."""
        ended, self._repeated = self._repeated, {}
        self._targets.clear()
        for (_, _, target), repeated in ended.items():
            if repeated.count:
                try:
                    await self._write(repeated.context, target, repeated.count)
                except PostroadError as problem:
                    log.warning("repetitions_not_audited", target=target, count=repeated.count, code=problem.code)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_seconds)
            await self.flush()
