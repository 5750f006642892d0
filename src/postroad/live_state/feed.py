"""The rows of one section and tenant, with a number for each change, so that a stream gets what has changed since its last one.

Rows are read and encoded once for all streams of a process.
"""

import asyncio
from dataclasses import dataclass

import msgspec
import structlog

from postroad.kernel.errors import PostroadError
from postroad.kernel.json import encode
from postroad.telemetry.live_sections import LiveSection, Rows

_REMOVED_MAX = 10_000
_READ_SECONDS_MAX = 5.0

log = structlog.get_logger("postroad.live_state")


@dataclass(frozen=True, slots=True)
class FeedRow:
    row: msgspec.Struct
    encoded: bytes
    change: int


class Feed:
    """`change` is the number of the latest change. `is_complete`: the changes after `since` are all known."""

    def __init__(self, section: LiveSection, tenant: str) -> None:
        self.section, self.tenant = section, tenant
        self.rows: dict[str, FeedRow] = {}
        self.removed: dict[str, int] = {}
        self.change = 0
        self.error: str | None = None
        self._forgotten = 0  # removals up to this change are not known any more
        self._is_open = False
        self._reading = asyncio.Lock()

    async def refresh(self, names: frozenset[str]) -> None:
        """Read the rows. If that fails, the last ones stay, and `error` is its code."""
        async with self._reading:
            try:
                async with asyncio.timeout(_READ_SECONDS_MAX):
                    if not self._is_open:
                        await self.section.open(self.tenant)
                        self._is_open = True
                    rows = await self.section.rows(self.tenant, names)
            except (PostroadError, TimeoutError) as exc:
                self.error = exc.code if isinstance(exc, PostroadError) else "timeout"
                log.debug("section_not_read", section=self.section.name, code=self.error)
                return
            self.error = None
            self.apply(rows)

    def apply(self, rows: Rows) -> None:
        change = self.change + 1
        for key, row in rows.items():
            known = self.rows.get(key)
            if known is None or known.row != row:
                self.rows[key] = FeedRow(row, encode(row), change)
                self.removed.pop(key, None)
                self.change = change
        for key in self.rows.keys() - rows.keys():
            del self.rows[key]
            self.removed[key] = self.change = change
        while len(self.removed) > _REMOVED_MAX:
            first = next(iter(self.removed))
            self._forgotten = self.removed.pop(first)

    def is_complete(self, since: int) -> bool:
        return since >= self._forgotten

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self.section.close(self.tenant)
