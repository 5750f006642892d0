"""A registry in a bucket, replicated to memory: a read is a dictionary access, changes arrive within milliseconds.

A record with a time to live disappears at its time, by the engine's clock, even if the notification of the expiry is missed: the
engine keeps it for a minute only.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec
import structlog

from postroad.jetstream.bucket import Bucket, Follower, Value
from postroad.kernel.clock import Clock, now_ms
from postroad.kernel.errors import Conflict, EngineRefused
from postroad.kernel.sorted_keys import SortedKeys

log = structlog.get_logger("postroad.jetstream")

Record = TypeVar("Record", bound=msgspec.Struct)

_TIMER_SECONDS_MAX = 30.0  # the engine's clock, as it is known here, may be corrected meanwhile


class Records(Protocol[Record]):
    """Where a table keeps its records: a dictionary, or something smaller."""

    def get(self, key: str, /) -> Record | None: ...
    def __setitem__(self, key: str, record: Record, /) -> None: ...
    def __delitem__(self, key: str, /) -> None: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Which revision of each key a table had when it had applied all changes up to `revision`."""

    revision: int
    revisions: Mapping[str, int]
    unreadable: tuple[str, ...]


class ReplicatedTable(Generic[Record]):
    """Records of one type by key. Every process that runs it sees every change, and its own at once.

    `records`: where it keeps them; a dictionary if left out. `key_of`: the key of a record; one that another client has stored
    under another key cannot be read.
    """

    def __init__(
        self,
        bucket: Bucket,
        record_type: type[Record],
        clock: Clock = now_ms,
        records: "Records[Record] | None" = None,
        key_of: Callable[[Record], str] | None = None,
    ) -> None:
        self._bucket, self._clock, self._key_of = bucket, clock, key_of
        self.stream = bucket.stream
        self._decode = msgspec.json.Decoder(record_type).decode
        self._encode = msgspec.json.Encoder().encode
        self._records: Records[Record] = {} if records is None else records
        self._newest = 0  # revision of the newest change that was applied
        self._keys = SortedKeys()
        self._revisions: dict[str, int] = {}
        self._expiries: list[tuple[int, str, int]] = []  # a heap of time, key and revision; outdated if the key has another one
        self._timer: asyncio.TimerHandle | None = None
        self._unreadable: set[str] = set()
        self._listeners: list[Callable[[str, Record | None], None]] = []
        self.deleted_at_ms: int | None = None  # of the deletion that listeners are called for, if the engine reported it
        self._follower: Follower = bucket.follower(self._apply)

    async def run(self) -> None:
        """Apply changes until cancelled."""
        await self._follower.run()

    @property
    def staleness_seconds(self) -> float:
        return self._follower.staleness_seconds

    async def wait_loaded(self) -> None:
        await self._follower.wait_loaded()

    def restore(self, revisions: Mapping[str, int], unreadable: Iterable[str], revision: int) -> None:
        """Follow the bucket from `revision`, with the records that `records` has been given: those of a checkpoint.

        Before `run`. Listeners are not called. `revisions` is ordered by key.
        """
        self._unreadable = set(unreadable)
        self._revisions = dict(revisions)
        self._keys = SortedKeys.of([key for key in revisions if key not in self._unreadable])
        self._newest = revision
        self._follower.start_after(revision)

    @property
    def position(self) -> int:
        """The revision up to which all changes were applied."""
        return self._follower.revision

    def checkpoint(self) -> Checkpoint | None:
        """The revisions of the present records, ordered by key, and of those that cannot be decoded.

        None while the table has a record that is newer than some change which it has not applied.
        """
        if self._newest > self._follower.revision:
            return None
        present = {key: self._revisions[key] for key in self._keys.under()}
        unreadable = {key: self._revisions[key] for key in sorted(self._unreadable)}
        revisions = dict(sorted((present | unreadable).items())) if unreadable else present
        return Checkpoint(self._follower.revision, revisions, tuple(unreadable))

    def on_change(self, listener: Callable[[str, Record | None], None]) -> None:
        self._listeners.append(listener)

    def _apply(self, change: Value) -> None:
        if change.revision <= self._revisions.get(change.key, 0):
            return
        self._revisions[change.key] = change.revision
        self._newest = max(self._newest, change.revision)
        self._unreadable.discard(change.key)
        try:
            record = None if change.value is None else self._decode(change.value)
            if record is not None and self._key_of is not None and self._key_of(record) != change.key:
                raise msgspec.ValidationError("the record belongs to another key")
        except msgspec.DecodeError:
            # One undecodable record must not keep a process from the others. Its previous version no longer counts.
            log.error("record_unreadable", bucket=self._bucket.name, record=change.key, revision=change.revision)
            self._unreadable.add(change.key)
            record = None
        if change.expires_at_ms is not None and record is not None:
            record = self._until(change.expires_at_ms, change, record)
        self.deleted_at_ms = change.deleted_at_ms
        self._set(change.key, record)
        self.deleted_at_ms = None

    def _set(self, key: str, record: Record | None) -> None:
        if record is None:
            self._drop(key)
        else:
            if key not in self._records:
                self._keys.add(key)
            self._records[key] = record
        for listener in self._listeners:
            listener(key, record)

    def _drop(self, key: str) -> None:
        if key in self._records:
            del self._records[key]
            self._keys.discard(key)

    # Expiry

    def _until(self, expires_at_ms: int, change: Value, record: Record) -> Record | None:
        """The record, which will be dropped at its time; None if that has passed."""
        if expires_at_ms <= self._clock():
            return None
        expiry = (expires_at_ms, change.key, change.revision)
        heapq.heappush(self._expiries, expiry)
        if self._expiries[0] is expiry:
            self._set_timer()
        return record

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        seconds = max(0.0, (self._expiries[0][0] - self._clock()) / 1000)
        self._timer = asyncio.get_running_loop().call_later(min(seconds, _TIMER_SECONDS_MAX), self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock()
        while self._expiries and self._expiries[0][0] <= now:
            _, key, revision = heapq.heappop(self._expiries)
            if self._revisions.get(key) == revision and key in self._records:
                self._set(key, None)
        if self._expiries:
            self._set_timer()

    # Reading

    def get(self, key: str) -> Record | None:
        return self._records.get(key)

    def revision(self, key: str) -> int:
        return self._revisions.get(key, 0)

    def keys_under(self, prefix: str = "", after: str = "") -> Iterator[str]:
        """The keys that start with `prefix` and are greater than `after`, in order, at the cost of those that are taken.

        Records may change during the iteration.
        """
        return self._keys.under(prefix, after)

    def count_under(self, prefix: str) -> int:
        return self._keys.count_under(prefix)

    def __len__(self) -> int:
        return len(self._records)

    async def fetch(self, key: str) -> Record | None:
        """Like `get`, but reads a key that is unknown here from the engine: another process may just have created it.

        Raises EngineRefused if the record cannot be decoded; a newer version of Postroad may have written it.
        """
        found = self._records.get(key)
        if found is None:
            value = await self._bucket.get(key)
            if value is not None:
                self._apply(value)
                found = self._records.get(key)
            if key in self._unreadable:
                raise EngineRefused("the registry's record cannot be decoded by this version of Postroad")
        return found

    async def refresh(self, key: str) -> Record | None:
        """The record as the engine has it now, whatever is in memory. Raises EngineUnavailable."""
        known = self._revisions.get(key, 0)
        value = await self._bucket.get(key)
        if value is not None:
            self._apply(value)
        elif self._revisions.get(key, 0) == known and key in self._records:
            self._set(key, None)
        return self._records.get(key)

    def poll_soon(self) -> None:
        """Read missed changes now, if there are any."""
        self._follower.poll_soon()

    def forget(self, key: str) -> None:
        """Make the next `fetch` read from the engine, because the record in memory is outdated."""
        self._drop(key)
        self._revisions.pop(key, None)

    # Writing

    async def create(self, key: str, record: Record, *, ttl_seconds: int | None = None) -> None:
        """Raises Conflict if the key exists. With `ttl_seconds` it expires after that time."""
        value = self._encode(record)
        revision = await self._bucket.create(key, value, ttl_seconds=ttl_seconds)
        self._apply(Value(key, value, revision, self._expiry_ms(ttl_seconds)))

    async def update(self, key: str, record: Record, revision: int, *, ttl_seconds: int | None = None) -> None:
        """Raises Conflict if the record has changed since `revision`. With `ttl_seconds` it expires after that time."""
        value = self._encode(record)
        revision = await self._bucket.update(key, value, revision, ttl_seconds=ttl_seconds)
        self._apply(Value(key, value, revision, self._expiry_ms(ttl_seconds)))

    def _expiry_ms(self, ttl_seconds: int | None) -> int | None:
        return None if ttl_seconds is None else self._clock() + ttl_seconds * 1000

    async def change(
        self, key: str, make: Callable[[Record], Record], *, ttl_seconds: int | None = None
    ) -> tuple[Record, Record] | None:
        """Replace the record by `make(record)`. Returns the previous and the new one, or None if the key does not exist.

        `make` is called again after a concurrent change. Its exceptions are passed on.
        """
        while True:
            before = await self.fetch(key)
            if before is None:
                return None
            after = make(before)
            if after == before:
                return before, before
            try:
                await self.update(key, after, self.revision(key), ttl_seconds=ttl_seconds)
                return before, after
            except Conflict:
                self.forget(key)

    async def delete(self, key: str, revision: int | None = None) -> None:
        """Raises Conflict if `revision` is given and the record has changed since."""
        deleted = await self._bucket.delete(key, revision)
        self._apply(Value(key, None, deleted, deleted_at_ms=self._clock()))
