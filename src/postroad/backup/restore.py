"""`postroad restore`: a backup into an empty engine, all of it or nothing, resumable.

A record is written first and replaced last. While it exists, no process of Postroad starts on the engine; an interrupted
restore is continued by the same command, or removed with `abort_restore`.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

import msgspec

from postroad import __version__
from postroad.api.installation import BackupInvalid, EngineNotEmpty
from postroad.backup.audit import record_backup
from postroad.backup.create import BackupProgress, OnProgress, installation_bucket, selection, with_known_platform_key
from postroad.backup.leases import end_leases
from postroad.backup.manifest import (
    CHECKSUM_FILE,
    FILE,
    Manifest,
    Selection,
    StreamFile,
    adapted_config,
    check_platform_keys,
    decode_manifest,
)
from postroad.backup.snapshot_files import BackupCipher, read_chunks, verify_file
from postroad.container import platform_keys
from postroad.installation.formats import written_versions
from postroad.installation.maintenance import processes
from postroad.installation.records import FORMATS, RESTORE, RESTORED, InstallationRecord
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import delete_stream, stream_info, stream_states
from postroad.jetstream.snapshot import Snapshot, restore_stream
from postroad.kernel.clock import now_ms, rfc3339
from postroad.kernel.errors import PostroadError
from postroad.runtime.engine_access import engine_access
from postroad.settings import Settings


@dataclass(frozen=True, slots=True)
class Backup:
    """A backup whose manifest and files were verified."""

    folder: Path
    manifest: Manifest
    cipher: BackupCipher | None


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """`resumed`: streams that an interrupted restore had completed. `leases`: those that were ended."""

    backup: str
    streams: int
    messages: int
    resumed: int
    leases: int


def open_backup(folder: Path, passphrase: str | None) -> Backup:
    """Read the manifest and verify every file. Raises BackupInvalid, FormatTooNew."""
    manifest = read_manifest(folder)
    cipher = None
    if manifest.encryption is not None:
        if passphrase is None:
            raise BackupInvalid("the backup is encrypted: pass the file of its passphrase with --passphrase-file")
        cipher = BackupCipher.open(passphrase, manifest.encryption)
    for stream in manifest.streams:
        verify_file(folder, stream)
    return Backup(folder, manifest, cipher)


def read_manifest(folder: Path) -> Manifest:
    """Raises BackupInvalid, FormatTooNew."""
    try:
        data, checksum = (folder / FILE).read_bytes(), (folder / CHECKSUM_FILE).read_text()
    except OSError as exc:
        raise BackupInvalid(f"{folder} is no backup, or an incomplete one: {exc.filename} cannot be read") from exc
    return decode_manifest(data, checksum)


async def restore_backup(
    settings: Settings, folder: Path, on_progress: OnProgress, *, passphrase: str | None = None
) -> RestoreResult:
    """Raises BackupInvalid, FormatTooNew, EngineNotEmpty before anything is changed; EngineRefused, EngineUnavailable."""
    settings = with_known_platform_key(settings)
    backup = await asyncio.to_thread(open_backup, folder, passphrase)
    check_platform_keys(backup.manifest, platform_keys(settings))
    async with engine_access(settings, "postroad-restore", restores=True) as connection:
        await _check_unused(connection)
        bucket = installation_bucket(connection)
        await _begin(connection, bucket, settings, backup.manifest)
        restored = await _restore_all(connection, settings, backup, on_progress)
        leases = sum([await end_leases(connection, one.name) for one in backup.manifest.streams])
        await record_backup(connection, "backup.restore", backup.manifest)
        await connection.store_sync.wait_filesystem()
        await _end(bucket, backup.manifest, selection(settings))
    manifest = backup.manifest
    return RestoreResult(manifest.id, len(manifest.streams), manifest.messages, len(manifest.streams) - restored, leases)


async def abort_restore(settings: Settings) -> int:
    """Remove an interrupted restore. Returns the number of streams that were removed. Raises EngineNotEmpty if there is none."""
    async with engine_access(settings, "postroad-restore") as connection:
        await _check_unused(connection)
        bucket = installation_bucket(connection)
        if await stream_info(connection, bucket.stream) is None or await _record(bucket, RESTORE) is None:
            raise EngineNotEmpty("no restore was interrupted here: nothing was removed")
        chosen, removed = selection(settings), 0
        for name in await stream_states(connection):
            if chosen.includes(name):
                removed += await delete_stream(connection, name)
        await delete_stream(connection, bucket.stream)
        return removed


async def _check_unused(connection: Connection) -> None:
    """Raises EngineNotEmpty."""
    if running := await processes(connection):
        raise EngineNotEmpty(f"{len(running)} processes of Postroad use the engine: stop them first")


async def _record(bucket: Bucket, key: str) -> InstallationRecord | None:
    found = await bucket.get(key)
    return msgspec.json.decode(found.value or b"{}", type=InstallationRecord) if found is not None else None


async def _begin(connection: Connection, bucket: Bucket, settings: Settings, manifest: Manifest) -> None:
    """Write the record, unless this backup is being restored. Raises EngineNotEmpty."""
    chosen = selection(settings)
    existing = await stream_states(connection)
    begun = await _record(bucket, RESTORE) if bucket.stream in existing else None
    if begun is not None:
        if begun.backup != manifest.id:
            raise EngineNotEmpty(f"the restore of another backup ({begun.backup}) was interrupted: end it, or use --abort")
        return
    if found := sorted(name for name in existing if chosen.includes(name)):
        raise EngineNotEmpty(f"the engine has {len(found)} streams of Postroad, such as {found[0]}")
    await bucket.ensure(replicas=settings.replica_count)
    record = InstallationRecord(backup=manifest.id, at=rfc3339(now_ms()), postroad=__version__)
    await bucket.put(RESTORE, msgspec.json.encode(record))


async def _restore_all(connection: Connection, settings: Settings, backup: Backup, on_progress: OnProgress) -> int:
    """One stream at a time, largest last. Returns the number of streams that were not there yet."""
    existing = await stream_states(connection)
    manifest, restored, messages, size = backup.manifest, 0, 0, 0
    for number, stream in enumerate(sorted(manifest.streams, key=lambda one: one.bytes), 1):
        if stream.name not in existing:
            await restore_one(connection, settings, backup, stream)
            restored += 1
        messages, size = messages + stream.messages, size + stream.bytes
        on_progress(BackupProgress(number, len(manifest.streams), messages, size))
    return restored


async def restore_one(connection: Connection, settings: Settings, backup: Backup, stream: StreamFile) -> None:
    """Raises EngineRefused if the engine has other messages afterwards."""
    config = adapted_config(
        stream.config,
        from_replicas=backup.manifest.replicas,
        to_replicas=settings.replica_count,
        is_clustered=connection.is_clustered,
    )
    snapshot = Snapshot(config, stream.state)
    found = await restore_stream(connection, snapshot, read_chunks(backup.folder, stream, backup.cipher))
    # Messages whose time to live has passed since the backup are gone.
    if found.last_seq < stream.last_sequence or found.messages > stream.messages:
        await delete_stream(connection, stream.name)
        raise PostroadError(
            f"{stream.name} was restored with {found.messages} messages up to sequence {found.last_seq}, instead of "
            f"{stream.messages} up to {stream.last_sequence}"
        )


async def _end(bucket: Bucket, manifest: Manifest, chosen: Selection) -> None:
    """The record of the restore becomes that of its end: then the installation may start."""
    formats = InstallationRecord(postroad=manifest.postroad, versions=written_versions(manifest.formats))
    await bucket.put(FORMATS, msgspec.json.encode(formats))
    ended = InstallationRecord(
        backup=manifest.id,
        at=rfc3339(now_ms()),
        postroad=__version__,
        sequences={one.name: one.last_sequence for one in manifest.streams if one.name in chosen.names},
    )
    await bucket.put(RESTORED, msgspec.json.encode(ended))
    await bucket.delete(RESTORE)


__all__ = ["Backup", "RestoreResult", "abort_restore", "open_backup", "read_manifest", "restore_backup", "restore_one"]
