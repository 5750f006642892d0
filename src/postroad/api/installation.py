"""Errors of the installation as a whole: its stored formats, backup and restore."""

from postroad.kernel.errors import PostroadError


class FormatTooNew(PostroadError, code="format-too-new", status=500, title="Stored by a newer version"):
    """The engine or the backup has data in a format that this version of Postroad cannot read. Run the newer version."""


class RestoreIncomplete(PostroadError, code="restore-incomplete", status=500, title="Restore incomplete"):
    """A restore was interrupted. Run `postroad restore` with the same backup again, or with `--abort`."""


class BackupInvalid(PostroadError, code="backup-invalid", status=500, title="Backup cannot be used"):
    """A file of the backup is missing or damaged, or the platform key or passphrase is not that of the backup."""


class BackupInconsistent(PostroadError, code="backup-inconsistent", status=500, retryable=True, title="Backup inconsistent"):
    """A process of the installation wrote during the backup, or did not hold its writes. No backup was made."""


class EngineNotEmpty(PostroadError, code="engine-not-empty", status=409, title="Engine not empty"):
    """A backup is restored into an engine without data of Postroad, while no process of Postroad uses it."""
