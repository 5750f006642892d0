"""Holds the writes of all processes of an installation while a backup is taken."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress

import msgspec

from postroad.api.installation import BackupInconsistent
from postroad.installation.maintenance import ProcessStatus, processes
from postroad.installation.records import MAINTENANCE, InstallationRecord
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.connection import Connection
from postroad.kernel.clock import now_ms, rfc3339
from postroad.kernel.errors import Conflict, PostroadError

TTL_SECONDS = 8  # of the record: if this process is killed, writes continue after that time
_RENEW_SECONDS = 2.0
_HELD_SECONDS = 60.0  # until all processes hold their writes; a write has at most ten seconds
_POLL_SECONDS = 0.1


class WriteHold:
    """Writes that are held. `check` verifies that they were at all times since the beginning."""

    def __init__(self, connection: Connection, held: Mapping[str, ProcessStatus]) -> None:
        self._connection, self._held = connection, held
        self.is_lost = False

    def lose(self) -> None:
        self.is_lost = True

    async def check(self) -> None:
        """Raises BackupInconsistent if a process has written, or its writes are not held any more."""
        if self.is_lost:
            raise BackupInconsistent("the record of maintenance could not be renewed in time")
        for worker, now in (await processes(self._connection)).items():
            before = self._held.get(worker)
            if not now.is_held or now.is_pending or now.writes != (before.writes if before is not None else 0):
                raise BackupInconsistent(f"{worker} ({now.role}) has written to the engine during the backup")


@asynccontextmanager
async def held_writes(connection: Connection, bucket: Bucket) -> AsyncIterator[WriteHold]:
    """Hold all writes during the block. Raises BackupInconsistent if a process does not, or another backup runs."""
    record = InstallationRecord(reason="a backup is being taken", at=rfc3339(now_ms()))
    value = msgspec.json.encode(record)
    try:
        revision = await bucket.create(MAINTENANCE, value, ttl_seconds=TTL_SECONDS)
    except Conflict as exc:
        raise BackupInconsistent("another backup is running") from exc
    renewal = _Renewal(bucket, value, revision)
    renewing = asyncio.create_task(renewal.run())
    try:
        hold = WriteHold(connection, await _wait_held(connection))
        renewal.on_lost = hold.lose
        yield hold
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with suppress(PostroadError):  # else it expires
            await bucket.delete(MAINTENANCE, renewal.revision)


class _Renewal:
    def __init__(self, bucket: Bucket, value: bytes, revision: int) -> None:
        self._bucket, self._value, self.revision = bucket, value, revision
        self.on_lost: Callable[[], None] = _ignore

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        renewed_at = loop.time()
        while True:
            await asyncio.sleep(_RENEW_SECONDS)
            begun = loop.time()
            try:
                self.revision = await self._bucket.update(MAINTENANCE, self._value, self.revision, ttl_seconds=TTL_SECONDS)
                renewed_at = begun
            except Conflict:
                self.on_lost()
            except PostroadError:
                if loop.time() - renewed_at > TTL_SECONDS - _RENEW_SECONDS:
                    self.on_lost()


def _ignore() -> None:
    pass


async def _wait_held(connection: Connection) -> dict[str, ProcessStatus]:
    """The processes, once all of them hold their writes and have completed those before. Raises BackupInconsistent."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _HELD_SECONDS
    earlier: dict[str, ProcessStatus] | None = None
    while True:
        found = await processes(connection)
        busy = [status for status in found.values() if not status.is_held or status.is_pending]
        if not busy and earlier is not None and found == earlier:
            return found
        if loop.time() > deadline:
            names = ", ".join(f"{one.worker} ({one.role})" for one in busy)
            raise BackupInconsistent(f"processes do not hold their writes: {names or 'they start and end all the time'}")
        earlier = found
        await asyncio.sleep(_POLL_SECONDS)
