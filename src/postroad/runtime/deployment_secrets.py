"""Secrets of a new installation as files, for containers: every process gets the same ones before the first start."""

import secrets
from pathlib import Path

import nkeys

from postroad.kernel.errors import AlreadyExists
from postroad.runtime.private_files import make_private_directory, write_private
from postroad.runtime.supervisor import write_credentials

FILES = ("postroad.toml", "credentials.toml", "tenant.key", "admin.key", "user.nk", "nats-auth.conf")


def write_secrets(folder: Path) -> None:
    """Write all files, or those that an interrupted call has not written. Raises AlreadyExists if all of them are there.

    `postroad.toml` has the platform key, for POSTROAD_CONFIG. `credentials.toml` has the first keys: in the data directory, the
    first start creates exactly these. `user.nk` is the seed of the NATS user whose public key is in `nats-auth.conf`.

    The directory is for its owner only. Its files can be read by every user, because a container sees a mounted file without the
    directory around it, and runs as another user than the one that writes them.
    """
    if all((folder / name).exists() for name in FILES):
        raise AlreadyExists(f"{folder} has the secrets of an installation already")
    make_private_directory(folder)
    if not (folder / "postroad.toml").exists():
        write_private(folder / "postroad.toml", f'platform_key = "{secrets.token_urlsafe(48)}"\n')
    credentials = write_credentials(folder)
    write_private(folder / "tenant.key", credentials["tenant_key"])
    write_private(folder / "admin.key", credentials["admin_key"])
    seed = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
    write_private(folder / "user.nk", seed.decode() + "\n")
    public = nkeys.from_seed(seed).public_key.decode()
    write_private(folder / "nats-auth.conf", f'authorization {{ users: [ {{ nkey: "{public}" }} ], timeout: 5 }}\n')
    for name in FILES:
        (folder / name).chmod(0o644)
