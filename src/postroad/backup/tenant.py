"""`postroad restore --tenant`: one tenant of a backup into an installation that has others and may be running.

The streams of the tenant are restored as they are. Its records and events are in streams that all tenants share: those are
restored into a temporary server, and the tenant's part is copied. The tenant's own record comes last, so the tenant exists once
everything else does. An interrupted restore is continued by the same command.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from postroad import __version__
from postroad.access.records import ACCOUNTS_BUCKET, KEYS_BUCKET, SECRETS_BUCKET, TENANTS_BUCKET, TOKEN_USES_BUCKET
from postroad.api.installation import BackupInvalid, EngineNotEmpty
from postroad.backup.audit import record_backup
from postroad.backup.create import BackupProgress, OnProgress, installation_bucket, selection, with_known_platform_key
from postroad.backup.leases import end_leases
from postroad.backup.manifest import Selection, StreamFile, check_platform_keys
from postroad.backup.restore import Backup, RestoreResult, open_backup, restore_one
from postroad.container import platform_keys
from postroad.installation.records import InstallationRecord
from postroad.jetstream import stream_reader
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import CommitPolicy, Committers, PendingMessage
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.management import stream_states
from postroad.jetstream.protocol import header_lines
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.clock import now_ms, rfc3339
from postroad.kernel.ids import new_id
from postroad.kernel.names import escape, tenant_id
from postroad.runtime.embedded_server import EmbeddedServer, EmbeddedServerSettings
from postroad.runtime.engine_access import engine_access
from postroad.runtime.process_supervisor import SupervisedProcess, supervised
from postroad.settings import Settings

# Streams with a subject `<word>.<tenant>.…` whose messages belong to the tenant for good. Others have the state of processes, or
# events that subscribers and alerts would take for new ones.
COPIED_STREAMS = ("JOBS", "HISTORY", "INSIGHTS", "AUDIT", "PROGRESS", "ATTEMPTS")
# Buckets whose keys do not begin with the tenant, but whose records name it.
_BY_RECORD = (KEYS_BUCKET, SECRETS_BUCKET, ACCOUNTS_BUCKET)
_ALL_RECORDS = (TOKEN_USES_BUCKET,)  # ids of used one-time tokens, of any tenant
# What processes compute again, or what belongs to work in progress.
LEFT_OUT = frozenset(
    f"KV_postroad_{name}"
    for name in (
        "alerts",
        "alert_actions",
        "alert_attempts",
        "route_health",
        "misroutes",
        "rates",
        "telemetry_reads",
        "telemetry_drops",
        "tasks",
        "config_polls",
        "failures",
        "key_uses",
        "ended_web_sessions",
        "invites",
        "audit",
        "replays",
        "warm_bans",
    )
)
_NEVER_COPIED = ("Nats-Expected", "Nats-Batch", "Nats-Rollup", "Nats-Msg-Id")
_WRITES_IN_FLIGHT = 256


class _Owned(msgspec.Struct):
    tenant: str | None = None


async def restore_tenant(
    settings: Settings, folder: Path, tenant: str, on_progress: OnProgress, *, passphrase: str | None = None
) -> RestoreResult:
    """Raises BackupInvalid, FormatTooNew, EngineNotEmpty before anything is changed; EngineRefused, EngineUnavailable."""
    tenant_id(tenant)
    settings = with_known_platform_key(settings)
    backup = await asyncio.to_thread(open_backup, folder, passphrase)
    check_platform_keys(backup.manifest, platform_keys(settings))
    async with engine_access(settings, "postroad-restore") as target, _temporary_server() as source:
        chosen = selection(settings)
        shared = [one for one in backup.manifest.streams if one.name in chosen.names]
        for stream in shared:
            await restore_one(source, settings_of_single(settings), backup, stream)
        return await _TenantRestore(settings, backup, chosen, tenant, source, target, on_progress).run(shared)


def settings_of_single(settings: Settings) -> Settings:
    return Settings.of(platform_key=settings.platform_key, replicas=1)


@asynccontextmanager
async def _temporary_server() -> AsyncIterator[Connection]:
    with tempfile.TemporaryDirectory(prefix="postroad-restore-") as folder:
        server = EmbeddedServer(EmbeddedServerSettings(Path(folder), sync="2m"))
        command = server.prepare()
        connection = Connection(ConnectionSettings((server.url,), name="postroad-restore", nkey_file=server.nkey_file))
        try:
            async with supervised(SupervisedProcess(command)):
                await connection.open()
                try:
                    yield connection
                finally:
                    await connection.close()
        finally:
            server.release()


class _TenantRestore:
    def __init__(
        self,
        settings: Settings,
        backup: Backup,
        chosen: Selection,
        tenant: str,
        source: Connection,
        target: Connection,
        on_progress: OnProgress,
    ) -> None:
        self._settings, self._backup, self._chosen, self._tenant = settings, backup, chosen, tenant
        self._source, self._target, self._on_progress = source, target, on_progress
        self._committers = Committers(target, CommitPolicy(), WriteBufferLimit(64 * 1024 * 1024))
        self._tenants = Bucket(target, TENANTS_BUCKET, self._committers)
        self._markers = installation_bucket(target)
        self._marker = f"restore-{escape(tenant)}"
        self._copied = 0

    async def run(self, shared: list[StreamFile]) -> RestoreResult:
        record = await Bucket(self._source, TENANTS_BUCKET, self._committers).get(escape(self._tenant))
        if record is None or record.value is None:
            raise BackupInvalid(f"the backup has no tenant {self._tenant!r}")
        own = [one for one in self._backup.manifest.streams if self._chosen.tenant_of(one.name) == self._tenant]
        existing = await self._begin(own)
        restored = leases = 0
        total = len(own) + len(shared)
        for number, stream in enumerate(own, 1):
            if stream.name not in existing:
                await restore_one(self._target, self._settings, self._backup, stream)
                restored += 1
            leases += await end_leases(self._target, stream.name)
            self._on_progress(BackupProgress(number, total, sum(one.messages for one in own[:number]), stream.bytes))
        for stream in shared:
            if stream.name != f"KV_{TENANTS_BUCKET}":
                await self._copy(stream.name)
        await record_backup(self._target, "backup.restore", self._backup.manifest, self._tenant)
        await self._target.store_sync.wait_filesystem()
        await self._tenants.put(escape(self._tenant), record.value)
        await self._markers.delete(self._marker)
        messages = sum(one.messages for one in own) + self._copied
        return RestoreResult(self._backup.manifest.id, len(own), messages, len(own) - restored, leases)

    async def _begin(self, own: list[StreamFile]) -> set[str]:
        """The streams of the tenant that an interrupted restore has completed. Raises EngineNotEmpty."""
        await self._markers.ensure(replicas=self._settings.replica_count)
        existing = set(await stream_states(self._target)) & {one.name for one in own}
        marker = await self._markers.get(self._marker)
        begun = msgspec.json.decode(marker.value or b"{}", type=InstallationRecord) if marker is not None else None
        if begun is not None and begun.backup == self._backup.manifest.id:
            return existing
        if begun is not None or existing or await self._tenants.get(escape(self._tenant)) is not None:
            raise EngineNotEmpty(f"the installation has the tenant {self._tenant!r} or streams of it; a deleted one counts, too")
        record = InstallationRecord(backup=self._backup.manifest.id, at=rfc3339(now_ms()), postroad=__version__)
        await self._markers.put(self._marker, msgspec.json.encode(record))
        return existing

    async def _copy(self, stream: str) -> None:
        """Copy what belongs to the tenant, in order."""
        if stream in LEFT_OUT or not (stream.startswith("KV_") or stream in COPIED_STREAMS):
            return
        committer, sequence = self._committers.of(stream), 1
        while True:
            page = await stream_reader.read(self._source, stream, ">", sequence)
            chosen = [entry for entry in page.entries if self._is_owned(stream, entry)]
            for start in range(0, len(chosen), _WRITES_IN_FLIGHT):
                await asyncio.gather(*(committer.append(_message(entry)) for entry in chosen[start : start + _WRITES_IN_FLIGHT]))
            self._copied += len(chosen)
            sequence = page.next_sequence
            if page.is_end:
                return

    def _is_owned(self, stream: str, entry: Entry) -> bool:
        if "KV-Operation" in entry.headers or "Nats-Marker-Reason" in entry.headers:
            return False
        bucket = stream.removeprefix("KV_")
        if bucket in _ALL_RECORDS:
            return True
        if bucket in _BY_RECORD:
            with contextlib.suppress(msgspec.DecodeError):
                return msgspec.json.decode(entry.payload, type=_Owned).tenant == self._tenant
            return False
        tokens = entry.subject.split(".")
        owner = tokens[2] if stream.startswith("KV_") and len(tokens) > 2 else tokens[1]
        return owner == escape(self._tenant)


def _message(entry: Entry) -> PendingMessage:
    """With its headers; a time to live is counted from the time of the message in the backup."""
    headers = [(name, value) for name, value in entry.headers.items() if not name.startswith(_NEVER_COPIED)]
    ttl = entry.headers.get("Nats-TTL", "").removesuffix("s")
    if ttl.isdecimal():
        left = max(1, int(ttl) - max(0, now_ms() - entry.at_ms) // 1000)
        headers = [(name, f"{left}s" if name == "Nats-TTL" else value) for name, value in headers]
    return PendingMessage(entry.subject, entry.payload, entry.headers.get("Nats-Msg-Id") or new_id(), header_lines(headers))


__all__ = ["restore_tenant"]
