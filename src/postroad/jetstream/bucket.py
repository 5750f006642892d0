"""Key-value buckets with compare-and-set, expiry and change notification, in the layout of NATS KV (`nats kv` can read them)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committer, Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, ensure_stream
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.tail import Source, Tail, republish
from postroad.kernel.errors import Conflict
from postroad.kernel.ids import new_id


@dataclass(frozen=True, slots=True)
class Value:
    """A key's value at a revision. `value` is None when the revision is a deletion or an expiry.

    `expires_at_ms`: when the engine deletes it, by the engine's time. `deleted_at_ms`: when it was deleted, if it was.
    """

    key: str
    value: bytes | None
    revision: int
    expires_at_ms: int | None = None
    deleted_at_ms: int | None = field(default=None, compare=False)


class Bucket:
    """One bucket. Keys are NATS tokens joined by dots: escape names that users chose."""

    def __init__(self, connection: Connection, name: str, committers: Committers) -> None:
        self.name = name
        self.stream = f"KV_{name}"
        self._connection = connection
        self._subject = f"$KV.{name}."
        self._committer: Committer = committers.of(self.stream)

    async def ensure(self, *, replicas: int = 1, history: int = 1, timeout: float | None = None) -> None:
        subjects = self._subject + ">"
        options = {
            "max_msgs_per_subject": history,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_atomic": True,
            "allow_msg_ttl": True,
            "subject_delete_marker_ttl": 60_000_000_000,
            "duplicate_window": 60_000_000_000,
            "num_replicas": replicas,
            "republish": republish(subjects),
        }
        await ensure_stream(self._connection, StreamSpec(self.stream, (subjects,), options), timeout=timeout)

    async def get(self, key: str) -> Value | None:
        """The value, or None if the key does not exist."""
        entry = await stream_reader.last(self._connection, self.stream, self._subject + key)
        found = self._value(entry) if entry else None
        return found if found and found.value is not None else None

    async def put(self, key: str, value: bytes, *, ttl_seconds: int | None = None) -> int:
        """Write unconditionally. Returns the revision."""
        return await self._write(key, value, ttl_seconds, None)

    async def create(self, key: str, value: bytes, *, ttl_seconds: int | None = None) -> int:
        """Write a new key. Returns the revision. Raises Conflict if the key exists."""
        try:
            return await self._write(key, value, ttl_seconds, 0)
        except Conflict:
            # A deleted or expired key leaves a marker, whose sequence is then the last one.
            entry = await stream_reader.last(self._connection, self.stream, self._subject + key)
            if entry is None or self._value(entry).value is not None:
                raise
            return await self._write(key, value, ttl_seconds, entry.sequence)

    async def update(self, key: str, value: bytes, revision: int, *, ttl_seconds: int | None = None) -> int:
        """Replace a revision. Returns the new one. Raises Conflict if the key has another revision."""
        return await self._write(key, value, ttl_seconds, revision)

    async def delete(self, key: str, revision: int | None = None) -> int:
        """Delete a key; a missing one too. Returns the revision. Raises Conflict if `revision` is given and is not the key's."""
        return await self._write(key, b"", None, revision, ("KV-Operation", "DEL"))

    async def _write(self, key: str, value: bytes, ttl_seconds: int | None, revision: int | None, *extra: tuple[str, str]) -> int:
        headers = list(extra)
        if ttl_seconds is not None:
            headers.append(("Nats-TTL", f"{ttl_seconds}s"))
        if revision is not None:
            headers.append(("Nats-Expected-Last-Subject-Sequence", str(revision)))
        message = PendingMessage(self._subject + key, value, new_id(), header_lines(headers), is_conditional=revision is not None)
        return (await self._committer.append(message)).sequence

    def _value(self, entry: Entry) -> Value:
        key = entry.subject.removeprefix(self._subject)
        if "KV-Operation" in entry.headers or "Nats-Marker-Reason" in entry.headers:
            return Value(key, None, entry.sequence, deleted_at_ms=entry.at_ms)
        return Value(key, entry.payload, entry.sequence, _expiry_ms(entry))

    def follower(self, apply: Callable[[Value], None], *, after: int = 0, poll_seconds: float = 0.5) -> "Follower":
        return Follower(self._connection, self, apply, after, poll_seconds)


def _expiry_ms(entry: Entry) -> int | None:
    ttl = entry.headers.get("Nats-TTL", "").removesuffix("s")
    return entry.at_ms + int(ttl) * 1000 if ttl.isdecimal() else None


class Follower:
    """Calls `apply` for every change of a bucket after a revision: first the stored ones, then each new one."""

    def __init__(
        self, connection: Connection, bucket: Bucket, apply: Callable[[Value], None], after: int, poll_seconds: float
    ) -> None:
        self._bucket, self._apply = bucket, apply
        deliver: Callable[[Entry], Awaitable[None]] = self._deliver
        self._tail = Tail(
            connection,
            Source(bucket.stream, f"$KV.{bucket.name}.>", is_only_subject=True),
            after,
            deliver,
            poll_seconds=poll_seconds,
        )

    async def _deliver(self, entry: Entry) -> None:
        self._apply(self._bucket._value(entry))

    @property
    def revision(self) -> int:
        return self._tail.position

    def start_after(self, revision: int) -> None:
        """Skip the changes up to this revision. Before it runs."""
        self._tail.position = revision

    @property
    def staleness_seconds(self) -> float:
        """Seconds since all changes were known to be applied; infinite before the first load."""
        synced_at = self._tail.synced_at
        return float("inf") if synced_at is None else asyncio.get_running_loop().time() - synced_at

    def poll_soon(self) -> None:
        self._tail.poll_soon()

    async def wait_loaded(self) -> None:
        await self._tail.caught_up.wait()

    async def run(self) -> None:
        await self._tail.run()
