"""Wiring of the installation's records."""

from collections.abc import Mapping, Sequence
from typing import Any

from postroad import __version__
from postroad.api.health import Check
from postroad.api.installation import BackupInconsistent, BackupInvalid, EngineNotEmpty, FormatTooNew, RestoreIncomplete
from postroad.installation.formats import too_new, written_versions
from postroad.installation.maintenance import MaintenanceWatch
from postroad.installation.records import FORMATS, INSTALLATION_BUCKET, LEASES_BUCKET, RESTORE, InstallationRecord
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.errors import Conflict
from postroad.platform import Assembly, BackgroundJob, Capability, Platform


class InstallationCapability(Capability):
    name = "installation"
    buckets = (INSTALLATION_BUCKET,)
    ephemeral_buckets = (INSTALLATION_BUCKET,)
    errors = (FormatTooNew, RestoreIncomplete, BackupInvalid, BackupInconsistent, EngineNotEmpty)

    def __init__(self, platform: Platform) -> None:
        super().__init__(platform)
        self._table = platform.table(INSTALLATION_BUCKET, InstallationRecord)
        self._watch = MaintenanceWatch(
            platform.connection, self._table, platform.committers.buffer_limit, platform.worker, platform.role.value, __version__
        )

    def tables(self) -> Sequence[ReplicatedTable[Any]]:
        return (self._table,)

    def background_jobs(self) -> Sequence[BackgroundJob]:
        return (BackgroundJob(self._watch.run),)

    def assembled(self, assembly: Assembly) -> None:
        """Registrations of living processes are renewed during maintenance, too."""
        buckets = (LEASES_BUCKET, *(name for kind in assembly.capabilities for name in kind.ephemeral_buckets))
        self.platform.connection.writes.exempt = frozenset(f"KV_{name}" for name in buckets)

    async def readiness(self) -> Mapping[str, Check]:
        record = self._table.get(FORMATS)
        newer = too_new(record.versions) if record is not None else []
        if newer:
            return {"formats": Check(False, f"stored by a newer version of Postroad: {', '.join(newer)}")}
        is_held = self.platform.connection.writes.is_held
        return {"maintenance": Check(True, "writes are held for a backup" if is_held else "none")}


async def check_installation(platform: Platform) -> None:
    """Refuse an engine whose restore is incomplete or whose formats are newer; else record the formats of this version.

    For the start, once the bucket exists and before anything else is written. Raises RestoreIncomplete, FormatTooNew.
    """
    table = platform.table(INSTALLATION_BUCKET, InstallationRecord)
    restore = await table.refresh(RESTORE)
    if restore is not None:
        raise RestoreIncomplete(
            f"the restore of backup {restore.backup} has not ended: run `postroad restore` again, or with --abort to remove it"
        )
    while True:
        recorded = await table.refresh(FORMATS)
        versions = dict(recorded.versions) if recorded is not None else {}
        if newer := too_new(versions):
            by = f" by Postroad {recorded.postroad}" if recorded is not None else ""
            raise FormatTooNew(f"written{by} in formats that this version ({__version__}) cannot read: {', '.join(newer)}")
        wanted = InstallationRecord(postroad=__version__, versions=written_versions(versions))
        try:
            if recorded is None:
                await table.create(FORMATS, wanted)
            elif recorded.versions != wanted.versions:
                await table.update(FORMATS, wanted, table.revision(FORMATS))
            return
        except Conflict:  # another process of the same start
            table.forget(FORMATS)


CAPABILITY = InstallationCapability
