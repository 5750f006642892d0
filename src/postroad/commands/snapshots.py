"""Snapshots of the registry: the leader writes them, every process starts from one."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from postroad.commands import metrics
from postroad.commands.events import SnapshotFailed, SnapshotTooLarge
from postroad.commands.packed_routes import PackedRoute, PackedRoutes
from postroad.commands.records import ROUTES_BUCKET, SERVICES_BUCKET, RouteRecord, ServiceRecord
from postroad.commands.rules import CachePolicy
from postroad.commands.snapshot_format import (
    CacheTtl,
    RegistryState,
    SnapshotHead,
    SnapshotRefused,
    SnapshotTable,
    body_parts,
    opened,
    records_version,
    sealed,
)
from postroad.commands.snapshot_store import SnapshotStore
from postroad.crypto.signing import SignatureInvalid, Signer
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.object_store import ObjectDamaged
from postroad.jetstream.replicated_table import Checkpoint, ReplicatedTable
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import Conflict, EngineUnavailable, PostroadError
from postroad.kernel.event import PLATFORM, Event
from postroad.platform import Platform

_OWNER = b"registry"
_AHEAD_MS = 60_000  # of this process's clock, at most
_ENVELOPE_BYTES = 1024
_SETTLED_SECONDS = 5.0
_REPORT_MS = 600_000

log = structlog.get_logger("postroad.commands")


@dataclass(frozen=True, slots=True)
class RegistryTables:
    """The followed tables of a process, and where the table of routes keeps its records."""

    routes: ReplicatedTable[RouteRecord]
    services: ReplicatedTable[ServiceRecord]
    packed: PackedRoutes
    service_records: dict[str, ServiceRecord]

    def restore(self, state: RegistryState) -> None:
        """Start with the records of a snapshot, before the tables are followed."""
        self.packed.adopt(state.routes)
        self.service_records.update(state.services)
        self.routes.restore(state.route_revisions, state.unreadable_routes, state.head.routes.revision)
        self.services.restore(state.service_revisions, state.unreadable_services, state.head.services.revision)


def registry_tables(platform: Platform) -> RegistryTables:
    packed, services = PackedRoutes(), dict[str, ServiceRecord]()
    return RegistryTables(
        ReplicatedTable(platform.bucket(ROUTES_BUCKET), RouteRecord, platform.clock, packed, lambda route: route.key),
        ReplicatedTable(platform.bucket(SERVICES_BUCKET), ServiceRecord, platform.clock, services, lambda one: one.key),
        packed,
        services,
    )


class SnapshotSeal:
    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def sign(self, body: bytes) -> str:
        return self._signer.sign(_OWNER, body)

    def verify(self, seal: str) -> bytes | None:
        try:
            return self._signer.verify(_OWNER, seal)
        except (SignatureInvalid, UnicodeEncodeError):
            return None


async def decoded(content: bytes, seal: SnapshotSeal, bytes_max: int) -> RegistryState:
    """The content of a snapshot, checked. The one way to read it: at a start, before it is published, and by the command line.

    Raises SnapshotRefused.
    """
    snapshot = opened(content, seal.verify, bytes_max)
    for _ in snapshot.parts():
        await asyncio.sleep(0)
    return snapshot.state


class SeenVersion:
    """The number of the newest snapshot that this machine has loaded, so that an older one is refused. Kept in a file."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "snapshot-seen"

    @property
    def number(self) -> int:
        try:
            return int(self._path.read_text())
        except (OSError, ValueError):
            return 0

    def record(self, number: int) -> None:
        if number > self.number and self._path.parent.is_dir():
            temporary = self._path.with_suffix(f".{secrets.token_hex(4)}")
            with contextlib.suppress(OSError):
                temporary.write_text(str(number))
                temporary.replace(self._path)


class SnapshotLoader:
    """Loads the newest snapshot before the tables are followed. Whatever is wrong with it: then they are read as a whole."""

    def __init__(
        self,
        store: SnapshotStore,
        tables: RegistryTables,
        connection: Connection,
        seal: SnapshotSeal,
        seen: SeenVersion,
        clock: Clock,
        bytes_max: int,
    ) -> None:
        self._store, self._tables, self._connection, self._seal = store, tables, connection, seal
        self._seen, self._clock, self._bytes_max = seen, clock, bytes_max

    async def load(self) -> SnapshotHead | None:
        """None if the tables must be read as a whole, which is counted by the reason."""
        started = time.monotonic()
        try:
            state = await self._usable()
        except SnapshotRefused as refused:
            self._count(refused.why, refused.detail)
            return None
        except Exception:  # a start must not depend on a snapshot
            log.exception("snapshot_load_failed")
            self._count("malformed", "an unexpected error")
            return None
        self._tables.restore(state)
        self._seen.record(state.head.number)
        metrics.snapshot_load_seconds.observe(time.monotonic() - started)
        log.info("snapshot_loaded", version=state.head.version_id, routes=len(state.routes), services=len(state.services))
        return state.head

    def _count(self, why: str, detail: str) -> None:
        metrics.snapshot_failures.labels(why).inc()
        log.info("snapshot_not_used", why=why, detail=detail)

    async def _usable(self) -> RegistryState:
        content = await self._store.read_latest(self._bytes_max)
        snapshot = opened(content, self._seal.verify, self._bytes_max)
        head, now = snapshot.head, self._clock()
        if head.number < self._seen.number:
            raise SnapshotRefused("older", f"{head.version_id} is older than one that was loaded here before")
        if not head.generated_at_ms - _AHEAD_MS <= now < head.expires_at_ms:
            raise SnapshotRefused("expired", f"{head.version_id} was written at {head.generated_at}")
        for table, about in ((self._tables.routes, head.routes), (self._tables.services, head.services)):
            await self._check_table(table.stream, about)
        for _ in snapshot.parts():
            await asyncio.sleep(0)
        return snapshot.state

    async def _check_table(self, stream: str, about: SnapshotTable) -> None:
        """The table may have been created again, or restored from a backup: then revisions mean something else."""
        try:
            info = await stream_info(self._connection, stream)
        except EngineUnavailable as problem:
            raise SnapshotRefused("unavailable", problem.detail) from problem
        if info is None or info.created != about.created or info.state.last_seq < about.revision:
            raise SnapshotRefused("registry", f"{stream} is not the one that the snapshot was made of")


class SnapshotWriter:
    """Call `run_once` periodically in one process, the leader; two for a moment do no harm."""

    def __init__(
        self,
        store: SnapshotStore,
        tables: RegistryTables,
        connection: Connection,
        seal: SnapshotSeal,
        policy: CachePolicy,
        record: Callable[[Event], None],
        clock: Clock,
        *,
        seconds: float,
        bytes_max: int,
    ) -> None:
        self._store, self._tables, self._connection, self._seal = store, tables, connection, seal
        self._record, self._clock, self._seconds, self._bytes_max = record, clock, seconds, bytes_max
        self._ttl_policy = {
            "routes": CacheTtl(policy.routes.fresh, policy.routes.stale),
            "grants": CacheTtl(policy.grants.fresh, policy.grants.stale),
            "secrets": CacheTtl(policy.secrets.fresh, policy.secrets.stale),
        }
        self._reported_ms = 0

    async def run_once(self) -> SnapshotHead | None:
        """Write a snapshot if the registry has changed since the last one, or that expires soon. Raises EngineUnavailable."""
        tables = self._tables
        if not len(tables.routes) and not len(tables.services):
            return None  # nothing that a start could be quicker by
        pointer = await self._store.pointer()
        is_current = (pointer.routes, pointer.services) == (tables.routes.position, tables.services.position)
        if is_current and self._clock() + 2 * self._seconds * 1000 < pointer.expires_at_ms:
            return None
        return await self.write()

    async def write(self) -> SnapshotHead | None:
        """Write, read back, validate, publish. Returns the head of the published snapshot, None if there is none."""
        started, now = time.monotonic(), self._clock()
        version_id = "-"
        try:
            pointer = await self._store.pointer()
            number = max(now, pointer.number + 1)
            version_id = f"{number}-{secrets.token_hex(4)}"
            copy = await self._copied()
            head = SnapshotHead(
                version_id=version_id,
                number=number,
                generated_at=rfc3339(now),
                generated_at_ms=now,
                ttl_policy=self._ttl_policy,
                records=records_version(),
                routes=SnapshotTable(copy.of_routes.revision, await self._created(self._tables.routes.stream)),
                services=SnapshotTable(copy.of_services.revision, await self._created(self._tables.services.stream)),
            )
            body = await self._encoded(head, copy)
            if body is None:
                return None
            content = await asyncio.to_thread(sealed, body, self._seal.sign)
            info = await self._store.put(head, content)
            try:
                read_back = await self._store.read(info.name, self._bytes_max)
                await decoded(read_back, self._seal, self._bytes_max)
                await self._store.publish(head, pointer)
            except (Conflict, SnapshotRefused):  # not if the engine did not answer: then `latest` may name it
                await self._store.delete(info)
                raise
        except Conflict:
            metrics.snapshots.labels("superseded").inc()
            return None
        except (PostroadError, SnapshotRefused, ObjectDamaged) as problem:
            self._report_failure(version_id, problem)
            return None
        metrics.snapshots.labels("published").inc()
        metrics.snapshot_bytes.labels("json").set(len(body))
        metrics.snapshot_bytes.labels("compressed").set(len(content))
        metrics.snapshot_write_seconds.observe(time.monotonic() - started)
        self._reported_ms = 0
        try:
            await self._store.prune(self._clock())
        except PostroadError as problem:  # the next one repeats it
            log.warning("snapshots_not_pruned", detail=problem.detail)
        return head

    async def _created(self, stream: str) -> str:
        info = await stream_info(self._connection, stream)
        if info is None:
            raise EngineUnavailable(f"there is no stream {stream}")
        return info.created

    async def _copied(self) -> "_Copy":
        """Both tables at one revision each. Raises EngineUnavailable."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _SETTLED_SECONDS
        while True:
            of_routes, of_services = self._tables.routes.checkpoint(), self._tables.services.checkpoint()
            if of_routes is not None and of_services is not None:
                return _Copy.of(self._tables, of_routes, of_services)
            if loop.time() > deadline:
                raise EngineUnavailable("the tables of the registry do not settle")
            await asyncio.sleep(0.01)

    async def _encoded(self, head: SnapshotHead, copy: "_Copy") -> bytes | None:
        """The body; None if it is too large, which is reported."""
        parts: list[bytes] = []
        size = _ENVELOPE_BYTES
        for part in body_parts(
            head,
            copy.routes.items(),
            copy.senders,
            copy.services,
            (copy.of_routes.revisions, copy.of_services.revisions),
            (copy.of_routes.unreadable, copy.of_services.unreadable),
        ):
            parts.append(part)
            size += len(part)
            await asyncio.sleep(0)
        if size > self._bytes_max:
            self._report_too_large(head.version_id, size)
            return None
        return b"".join(parts)

    def _report_too_large(self, version_id: str, size: int) -> None:
        metrics.snapshots.labels("too-large").inc()
        log.warning("snapshot_too_large", bytes=size, max_bytes=self._bytes_max)
        if self._may_report():
            self._record(SnapshotTooLarge(tenant=PLATFORM, size_bytes=size, max_bytes=self._bytes_max, version_id=version_id))

    def _report_failure(self, version_id: str, problem: Exception) -> None:
        metrics.snapshots.labels("failed").inc()
        log.warning("snapshot_failed", version=version_id, detail=str(problem))
        if self._may_report():
            self._record(SnapshotFailed(tenant=PLATFORM, version_id=version_id, detail=str(problem)[:500]))

    def _may_report(self) -> bool:
        """Once in ten minutes, until a snapshot was published again."""
        now = self._clock()
        if self._reported_ms and now - self._reported_ms < _REPORT_MS:
            return False
        self._reported_ms = now
        return True


@dataclass(frozen=True, slots=True)
class _Copy:
    """The registry as it was at one moment."""

    of_routes: Checkpoint
    of_services: Checkpoint
    routes: Mapping[str, PackedRoute]
    senders: Mapping[int, str]
    services: Mapping[str, ServiceRecord]

    @classmethod
    def of(cls, tables: RegistryTables, of_routes: Checkpoint, of_services: Checkpoint) -> "_Copy":
        return cls(
            of_routes,
            of_services,
            {key: tables.packed.packed(key) for key in of_routes.revisions if key in tables.packed},
            tables.packed.senders.names(),
            {key: tables.service_records[key] for key in of_services.revisions if key in tables.service_records},
        )
