"""A registry in a bucket, replicated to memory: a read is a dictionary access, changes arrive within milliseconds."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import msgspec
import structlog

from postroad.jetstream.bucket import Bucket, Follower, Value
from postroad.kernel.errors import Conflict, EngineRefused

log = structlog.get_logger("postroad.jetstream")

Record = TypeVar("Record", bound=msgspec.Struct)


class ReplicatedTable(Generic[Record]):
    """Records of one type by key. Every process that runs it sees every change, and its own at once."""

    def __init__(self, bucket: Bucket, record_type: type[Record]) -> None:
        self._bucket = bucket
        self.stream = bucket.stream
        self._decode = msgspec.json.Decoder(record_type).decode
        self._encode = msgspec.json.Encoder().encode
        self._records: dict[str, Record] = {}
        self._revisions: dict[str, int] = {}
        self._unreadable: set[str] = set()
        self._listeners: list[Callable[[str, Record | None], None]] = []
        self._follower: Follower = bucket.follower(self._apply)

    async def run(self) -> None:
        """Apply changes until cancelled."""
        await self._follower.run()

    @property
    def staleness_seconds(self) -> float:
        return self._follower.staleness_seconds

    async def wait_loaded(self) -> None:
        await self._follower.wait_loaded()

    def on_change(self, listener: Callable[[str, Record | None], None]) -> None:
        self._listeners.append(listener)

    def _apply(self, change: Value) -> None:
        if change.revision <= self._revisions.get(change.key, 0):
            return
        self._revisions[change.key] = change.revision
        self._unreadable.discard(change.key)
        try:
            record = None if change.value is None else self._decode(change.value)
        except msgspec.DecodeError:
            # One undecodable record must not keep a process from the others. Its previous version no longer counts.
            log.error("record_unreadable", bucket=self._bucket.name, record=change.key, revision=change.revision)
            self._unreadable.add(change.key)
            record = None
        if record is None:
            self._records.pop(change.key, None)
        else:
            self._records[change.key] = record
        for listener in self._listeners:
            listener(change.key, record)

    def get(self, key: str) -> Record | None:
        return self._records.get(key)

    def revision(self, key: str) -> int:
        return self._revisions.get(key, 0)

    def keys_under(self, prefix: str = "") -> Iterator[str]:
        return iter(sorted(key for key in self._records if key.startswith(prefix)))

    def count_under(self, prefix: str) -> int:
        return sum(1 for key in self._records if key.startswith(prefix))

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

    def forget(self, key: str) -> None:
        """Make the next `fetch` read from the engine, because the record in memory is outdated."""
        self._records.pop(key, None)
        self._revisions.pop(key, None)

    async def create(self, key: str, record: Record) -> None:
        """Raises Conflict if the key exists."""
        value = self._encode(record)
        self._apply(Value(key, value, await self._bucket.create(key, value)))

    async def update(self, key: str, record: Record, revision: int, *, ttl_seconds: int | None = None) -> None:
        """Raises Conflict if the record has changed since `revision`. With `ttl_seconds` it expires after that time."""
        value = self._encode(record)
        self._apply(Value(key, value, await self._bucket.update(key, value, revision, ttl_seconds=ttl_seconds)))

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
        self._apply(Value(key, None, await self._bucket.delete(key, revision)))
