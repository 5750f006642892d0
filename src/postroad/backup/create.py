"""`postroad backup`: snapshots of all streams that capabilities declare, at one moment."""

import asyncio
import hashlib
import shutil
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from postroad import __version__, registry
from postroad.api.installation import BackupInconsistent, BackupInvalid
from postroad.backup.audit import record_backup
from postroad.backup.hold import WriteHold, held_writes
from postroad.backup.manifest import (
    CHECKSUM_FILE,
    FILE,
    STREAMS,
    Manifest,
    Selection,
    StreamFile,
    encode_manifest,
    file_name,
    fingerprint,
)
from postroad.backup.snapshot_files import BackupCipher, SnapshotWriter, sync_directory
from postroad.container import described_assembly, platform_keys
from postroad.installation.formats import written_versions
from postroad.installation.records import FORMATS, INSTALLATION_BUCKET, InstallationRecord
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.commit import CommitPolicy, Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_states
from postroad.jetstream.snapshot import snapshot_stream
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.clock import now_ms, rfc3339
from postroad.kernel.errors import EngineUnavailable, PostroadError
from postroad.kernel.ids import new_id
from postroad.runtime.engine_access import engine_access
from postroad.runtime.private_files import make_private_directory, write_private
from postroad.runtime.supervisor import with_platform_key
from postroad.settings import Settings

_CONCURRENT = 4
_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class BackupProgress:
    """`streams` of `total` are written, with so many `messages` and `bytes`."""

    streams: int
    total: int
    messages: int
    bytes: int


OnProgress = Callable[[BackupProgress], None]


def selection(settings: Settings) -> Selection:
    """The streams that are part of a backup."""
    kinds = registry.capabilities()
    ephemeral = {name for kind in kinds for name in kind.ephemeral_buckets}
    names = {spec.name for kind in kinds for spec in kind.streams(settings)}
    names |= {f"KV_{name}" for kind in kinds for name in kind.buckets if name not in ephemeral}
    return Selection(names, {prefix for kind in described_assembly().resources for prefix in kind.stream_prefixes})


def installation_bucket(connection: Connection) -> Bucket:
    return Bucket(connection, INSTALLATION_BUCKET, Committers(connection, CommitPolicy(), WriteBufferLimit(1024 * 1024)))


async def recorded_formats(bucket: Bucket) -> dict[str, int]:
    """Those of this version if none are recorded."""
    value = await bucket.get(FORMATS)
    recorded = msgspec.json.decode(value.value or b"{}", type=InstallationRecord) if value is not None else None
    return written_versions({}) if recorded is None else recorded.versions


def check_destination(out: Path) -> None:
    """Raises BackupInvalid unless the directory is new, empty, or that of a backup that was interrupted."""
    if (out / FILE).exists():
        raise BackupInvalid(f"{out} has a backup already: name another directory")
    if out.exists() and (not out.is_dir() or any(not _is_leftover(path.name) for path in out.iterdir())):
        raise BackupInvalid(f"{out} has other files: name a new directory")


def _is_leftover(name: str) -> bool:
    return name in (STREAMS, CHECKSUM_FILE) or name.startswith((f".{FILE}.", f".{CHECKSUM_FILE}."))


def with_known_platform_key(settings: Settings) -> Settings:
    """Raises PostroadError if there is no platform key; `with_platform_key` would make a new one."""
    if settings.platform_key is None and not (settings.data_dir / "platform.key").exists():
        raise PostroadError(
            f"the platform key is not known: set POSTROAD_PLATFORM_KEY, or put it into {settings.data_dir / 'platform.key'}"
        )
    return with_platform_key(settings)


async def create_backup(
    settings: Settings, out: Path, on_progress: OnProgress, *, is_live: bool = False, passphrase: str | None = None
) -> Manifest:
    """Write the backup to `out`, which is one once its manifest exists. Raises BackupInvalid, BackupInconsistent."""
    check_destination(out)
    settings = with_known_platform_key(settings)
    cipher = BackupCipher.create(passphrase) if passphrase is not None else None
    async with engine_access(settings, "postroad-backup") as connection:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await _create(connection, settings, out, on_progress, cipher, is_live=is_live)
            except BackupInconsistent:
                if attempt == _ATTEMPTS:
                    raise
    raise AssertionError  # the loop returns or raises


async def _create(
    connection: Connection,
    settings: Settings,
    out: Path,
    on_progress: OnProgress,
    cipher: BackupCipher | None,
    *,
    is_live: bool,
) -> Manifest:
    begun = time.monotonic()
    make_private_directory(out)
    shutil.rmtree(out / STREAMS, ignore_errors=True)
    make_private_directory(out / STREAMS)
    bucket = installation_bucket(connection)
    async with AsyncExitStack() as stack:
        hold: WriteHold | None = None
        await bucket.ensure(replicas=settings.replica_count)
        if not is_live:
            hold = await stack.enter_async_context(held_writes(connection, bucket))
        chosen = selection(settings)
        names = sorted(name for name in await stream_states(connection) if chosen.includes(name))
        files = await _write_all(connection, out, names, cipher, on_progress)
        after = await stream_states(connection)
        if hold is not None:
            await hold.check()
        changed = [
            one.name for one in files if is_live and _has_changed(one, after[one.name].last_seq if one.name in after else -1)
        ]
    manifest = Manifest(
        id=new_id(),
        created_at=rfc3339(now_ms()),
        postroad=__version__,
        nats_server=".".join(map(str, connection.server_version)),
        formats=await recorded_formats(bucket),
        platform_keys=[fingerprint(key) for key in platform_keys(settings)],
        replicas=settings.replica_count,
        is_live=is_live,
        changed=changed,
        seconds=round(time.monotonic() - begun, 3),
        encryption=cipher.encryption if cipher is not None else None,
        streams=files,
    )
    _write_manifest(out, manifest)
    await record_backup(connection, "backup.create", manifest)
    return manifest


def _has_changed(written: StreamFile, last_sequence: int) -> bool:
    return last_sequence != written.last_sequence


async def _write_all(
    connection: Connection, out: Path, names: list[str], cipher: BackupCipher | None, on_progress: OnProgress
) -> list[StreamFile]:
    """Some streams at a time. Without those that were deleted meanwhile."""
    written: list[StreamFile] = []
    slots = asyncio.Semaphore(_CONCURRENT)

    async def write(name: str) -> None:
        async with slots:
            one = await _write_stream(connection, out, name, cipher)
        if one is not None:
            written.append(one)
        messages, size = sum(one.messages for one in written), sum(one.bytes for one in written)
        on_progress(BackupProgress(len(written), len(names), messages, size))

    tasks = [asyncio.create_task(write(name)) for name in names]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    sync_directory(out / STREAMS)
    return sorted(written, key=lambda one: one.name)


async def _write_stream(connection: Connection, out: Path, name: str, cipher: BackupCipher | None) -> StreamFile | None:
    """Repeats a transfer that the connection interrupted. Raises EngineUnavailable."""
    path = file_name(name)
    for attempt in range(1, _ATTEMPTS + 1):
        writer = SnapshotWriter(out / path, name, cipher)
        try:
            snapshot = await snapshot_stream(connection, name, writer.write)
        except EngineUnavailable:
            writer.discard()
            if attempt == _ATTEMPTS:
                raise
            continue
        except BaseException:
            writer.discard()
            raise
        if snapshot is None:
            writer.discard()
            (out / path).unlink()
            return None
        checksum = await asyncio.to_thread(writer.close)
        return StreamFile(
            name=name,
            file=path,
            bytes=writer.bytes,
            sha256=checksum,
            messages=snapshot.counts.messages,
            last_sequence=snapshot.counts.last_seq,
            config=dict(snapshot.config),
            state=dict(snapshot.state),
        )
    raise AssertionError  # the loop returns or raises


def _write_manifest(out: Path, manifest: Manifest) -> None:
    """Last, and the checksum before it: a directory without a manifest is no backup."""
    data = encode_manifest(manifest)
    write_private(out / CHECKSUM_FILE, hashlib.sha256(data).hexdigest() + "\n")
    write_private(out / FILE, data.decode())
    sync_directory(out)
    sync_directory(out.resolve().parent)
