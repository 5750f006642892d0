"""Membership: the living processes of a kind, each registered by a key that expires when it is not renewed."""

import asyncio
import contextlib
import time
from collections.abc import Callable

import msgspec
import structlog

from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.errors import Conflict, PostroadError
from postroad.kernel.names import escape

MEMBER_TTL_SECONDS = 6

log = structlog.get_logger("postroad.jetstream")


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A living process, until its registration expires."""

    v: int = 1
    name: str


class Membership:
    """Registers this process while `run` runs, and knows the others. `on_change` is called when one joins or leaves.

    A process that stops renewing, because it died or is cut off, is a member for `MEMBER_TTL_SECONDS` at most.
    """

    def __init__(self, table: ReplicatedTable[MemberRecord], name: str) -> None:
        self.name = name
        self._table = table
        self._key = escape(name)
        self._listeners: list[Callable[[], None]] = []
        self._seen: frozenset[str] = frozenset()
        self._renewed_at = -float(MEMBER_TTL_SECONDS)
        table.on_change(lambda _key, _record: self._notify())

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    @property
    def members(self) -> frozenset[str]:
        """Those whose registration has not expired. This process judges its own by the monotonic clock.

        It is no member either once it has not heard of the others for half that time: their registrations, as known here, would
        expire before its own, and it would take what is theirs.
        """
        records = [self._table.get(key) for key in self._table.keys_under()]
        others = {record.name for record in records if record is not None} - {self.name}
        is_renewed = time.monotonic() - self._renewed_at < MEMBER_TTL_SECONDS
        is_member = is_renewed and self._table.staleness_seconds < MEMBER_TTL_SECONDS / 2
        return frozenset(others | {self.name} if is_member else others)

    async def run(self) -> None:
        """Renew the registration until cancelled, then remove it."""
        try:
            while True:
                try:
                    await self._register()
                except PostroadError as problem:
                    log.warning("membership_not_renewed", member=self.name, code=problem.code)
                self._notify()  # this process may be a member again, or no longer
                await asyncio.sleep(MEMBER_TTL_SECONDS / 3)
        finally:
            await self._unregister()

    async def _register(self) -> None:
        started = time.monotonic()
        record = MemberRecord(name=self.name)
        try:
            await self._table.update(self._key, record, self._table.revision(self._key), ttl_seconds=MEMBER_TTL_SECONDS)
            self._renewed_at = started
        except Conflict:  # it expired: the marker of its expiry is newer
            self._table.forget(self._key)
            await self._table.create(self._key, record, ttl_seconds=MEMBER_TTL_SECONDS)
            self._renewed_at = started

    async def _unregister(self) -> None:
        with contextlib.suppress(PostroadError, TimeoutError):
            async with asyncio.timeout(1):
                await self._table.delete(self._key)

    def _notify(self) -> None:
        members = self.members
        if members != self._seen:
            self._seen = members
            for listener in self._listeners:
                listener()
