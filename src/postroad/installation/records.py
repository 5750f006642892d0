"""Records about the installation. Keys of the bucket: `formats`, `maintenance`, `restore` and `restored`."""

import msgspec

INSTALLATION_BUCKET = "postroad_installation"
LEASES_BUCKET = "postroad_leases"  # leadership and probes of the engine
FORMATS, MAINTENANCE, RESTORE, RESTORED = "formats", "maintenance", "restore", "restored"


class InstallationRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Any record of the bucket; each key uses some of the fields.

    `formats`: `versions` of the stored formats, written by the version `postroad`. `maintenance`: `reason`, with a time to live.
    `restore`: `backup` is being restored, and no process may start. `restored`: `backup` was restored, when each stream ended at
    the sequence in `sequences`.
    """

    v: int = 1
    postroad: str = ""
    versions: dict[str, int] = {}
    reason: str = ""
    backup: str = ""
    at: str = ""
    sequences: dict[str, int] = {}
