"""The lifecycle of a resource that has a record in the registry and a stream of its own: crash-safe creation, change, deletion.

The record is authoritative and acts as a lock: the process that creates it creates the stream, the process that marks it as
deleting deletes the stream, and all others wait. If a process dies before it is finished, the next process that needs the
resource, or the control role, recovers it.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

import msgspec

from postroad.jetstream.connection import Connection
from postroad.jetstream.management import delete_stream, stream_info
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Conflict, EngineFull, EngineRefused, OptionIgnored, PostroadError
from postroad.kernel.json import invalid_field
from postroad.kernel.regions import AUTO

INCARNATION = "postroad.incarnation"  # metadata of the stream
_RECOVER_SECONDS = 10.0  # how long a look-up waits for the process that works on the resource
_STUCK_MS = 60_000
_IGNORED_MAX = 10  # attempts of a change that the engine does not report as made


class RecordState(StrEnum):
    """The record is written before its stream is created and deleted after its stream. So one process at most works on the
    stream, and another process can complete an interrupted creation or deletion."""

    CREATING = "making"
    READY = "ready"
    DELETING = "deleting"


class StreamOwner(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Record of a resource with a stream. `incarnation` distinguishes it from an earlier one with the same name.

    `placement` are the tags of the servers that hold the stream; None in records of earlier versions.
    """

    v: int = 1
    state: RecordState
    tenant: str
    name: str
    incarnation: str
    placement: tuple[str, ...] | None = None
    created_at_ms: int
    updated_at_ms: int

    @property
    def stream(self) -> str:
        raise NotImplementedError


R = TypeVar("R", bound=StreamOwner)


class StreamLifecycle(Generic[R]):
    """`ensure` creates or updates the streams of a record. `release` removes what else belongs to it, before its stream. Both
    must be idempotent."""

    def __init__(
        self,
        connection: Connection,
        table: ReplicatedTable[R],
        clock: Clock,
        *,
        ensure: Callable[[R], Awaitable[None]],
        release: Callable[[R], Awaitable[None]],
    ) -> None:
        self._connection, self._table, self._clock = connection, table, clock
        self._ensure, self._release = ensure, release
        self._locks: dict[str, asyncio.Lock] = {}

    async def await_ready(self, key: str) -> R | None:
        """The record once no process works on its stream; None if there is none. Recovers an interrupted operation."""
        loop = asyncio.get_running_loop()
        recover_at = loop.time() + _RECOVER_SECONDS
        while True:
            record = await self._table.fetch(key)
            if record is None or record.state is RecordState.READY:
                return record
            if loop.time() > recover_at:
                await self._recover(key, record)
            else:
                await asyncio.sleep(0.02)

    async def create_or_change(self, key: str, apply: Callable[[R | None], Awaitable[R]]) -> tuple[R, R | None]:
        """The record now and before: the same object if it did not change, None if it is new.

        `apply` gets the present record, or None, and returns it as it is, or after `create` or `update`. It is repeated if
        another process has changed the record or its stream at the same time. Raises what `apply` raises, except Conflict.
        """
        attempts = 0
        try:
            async with self._locks.setdefault(key, asyncio.Lock()):
                while True:
                    attempts += 1
                    known = await self.await_ready(key)
                    try:
                        return await apply(known), known
                    except (Conflict, OptionIgnored) as problem:
                        if isinstance(problem, OptionIgnored) and attempts >= _IGNORED_MAX:
                            raise
                        self._table.forget(key)
                        await asyncio.sleep(random.uniform(0.01, 0.05))  # noqa: S311  # not a secret
        finally:
            self._locks.pop(key, None)

    async def create(self, key: str, record: R, audited: AbstractAsyncContextManager[None]) -> R:
        """Store the record, then create its stream and mark the record as ready.

        If the engine refuses the stream, the record is removed. Raises Conflict if another process creates the resource at the
        same time: then this call had no effect. Raises EngineRefused, EngineFull, EngineUnavailable.
        """
        async with audited:
            await self._table.create(key, record)
        try:
            return await self._finish_creation(key, record)
        except (EngineRefused, EngineFull):  # will not succeed later: do not leave an unfinished resource behind
            await self._destroy(key, record)
            raise

    async def update(self, key: str, record: R, audited: AbstractAsyncContextManager[None]) -> R:
        """Change the stream, then the record. Raises Conflict if the record has changed since it was read, and like `create`."""
        revision = self._table.revision(key)
        async with audited:
            await self._ensure(record)
            await self._table.update(key, record, revision)
        return record

    async def _finish_creation(self, key: str, record: R) -> R:
        """A leftover stream of an earlier resource with the same name is deleted first."""
        revision = self._table.revision(key)
        leftover = await stream_info(self._connection, record.stream)
        if leftover is not None and leftover.metadata.get(INCARNATION) != record.incarnation:
            await delete_stream(self._connection, record.stream)
        await self._ensure(record)
        ready = msgspec.structs.replace(record, state=RecordState.READY)
        await self._table.update(key, ready, revision)
        return ready

    async def _recover(self, key: str, record: R) -> None:
        """Finish the creation or deletion that another process began."""
        try:
            if record.state is RecordState.CREATING:
                await self._finish_creation(key, record)
            else:
                await self._destroy(key, record)
        except Conflict:
            self._table.forget(key)

    async def _destroy(self, key: str, record: R) -> None:
        revision = self._table.revision(key)
        info = await stream_info(self._connection, record.stream)
        if info is not None and info.metadata.get(INCARNATION) == record.incarnation:
            await self._release(record)
            await delete_stream(self._connection, record.stream)
        await self._table.delete(key, revision)

    async def delete(self, key: str, record: R, revision: int) -> None:
        """Delete the resource with its stream. Raises Conflict if the record has changed since `revision`."""
        deleting = msgspec.structs.replace(record, state=RecordState.DELETING, updated_at_ms=self._clock())
        try:
            await self._table.update(key, deleting, revision)
            await self._destroy(key, deleting)
        except Conflict as exc:
            self._table.forget(key)
            raise Conflict(f"{record.name!r} was changed at the same time") from exc

    async def delete_all(self, tenant: str) -> None:
        """Delete all resources of a tenant. May be repeated after an interruption."""
        for key in list(self._table.keys_under(f"{tenant}.")):
            record = await self.await_ready(key)
            if record is not None:
                await self.delete(key, record, self._table.revision(key))

    async def recover_all(self) -> int:
        """Finish interrupted creations and deletions; return how many there were. For the control role."""
        stuck = [key for key in self._table.keys_under() if (found := self._table.get(key)) and self._is_stuck(found)]
        for key in stuck:
            record = await self._table.fetch(key)
            if record is not None and self._is_stuck(record):
                await self._recover(key, record)
        return len(stuck)

    def _is_stuck(self, record: R) -> bool:
        return record.state is not RecordState.READY and self._clock() - record.updated_at_ms > _STUCK_MS


class _Settings(Protocol):
    @property
    def geo(self) -> str | None: ...
    @property
    def replicas(self) -> int | None: ...


def refused_setting(
    noun: str, refusal: EngineRefused | EngineFull, settings: _Settings, *, max_bytes: int = 0
) -> PostroadError | None:
    """The setting that the engine refused, if it is likely to be one."""
    if isinstance(refusal, EngineFull):
        return invalid_field("$.maxBytes", f"the engine cannot reserve so much: {refusal.detail}") if max_bytes else None
    if settings.geo not in (None, AUTO):
        return invalid_field("$.geo", f"the engine cannot place the {noun} there: {refusal.detail}")
    if settings.replicas not in (None, 1):
        return invalid_field("$.replicas", f"the engine cannot keep so many copies: {refusal.detail}")
    return None
