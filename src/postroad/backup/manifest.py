"""The manifest of a backup: which streams, their files with checksums, the versions, and whose secrets are in it. Pure."""

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from postroad.api.installation import BackupInvalid, FormatTooNew
from postroad.installation.formats import too_new

VERSION = 1
FILE = "manifest.json"
CHECKSUM_FILE = "manifest.sha256"
STREAMS = "streams"
_FINGERPRINT = b"postroad backup 1"
_OWNED = r"(?P<tenant>[a-z0-9][a-z0-9-]{0,31})(?:__.*)?"


class StreamFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One stream. `config` and `state` are the server's; `sha256` and `bytes` those of the file, encrypted if the backup is."""

    name: str
    file: str
    bytes: int
    sha256: str
    messages: int
    last_sequence: int
    config: dict[str, Any]
    state: dict[str, Any]


class Encryption(msgspec.Struct, frozen=True, kw_only=True):
    """`salt` of the key derivation, and a text encrypted with the key, both in base64."""

    salt: str
    check: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`platform_keys` are fingerprints. `is_live`: writes went on, and the streams named in `changed` changed meanwhile."""

    v: int = VERSION
    id: str
    created_at: str
    postroad: str
    nats_server: str
    formats: dict[str, int]
    platform_keys: list[str]
    replicas: int
    is_live: bool
    changed: list[str]
    seconds: float
    encryption: Encryption | None = None
    streams: list[StreamFile]

    @property
    def messages(self) -> int:
        return sum(one.messages for one in self.streams)

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.streams)


class _Version(msgspec.Struct):
    v: int


def fingerprint(platform_key: str) -> str:
    """Identifies a platform key without revealing it."""
    return hmac.new(platform_key.encode(), _FINGERPRINT, hashlib.sha256).hexdigest()[:32]


def encode_manifest(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decode_manifest(data: bytes, checksum: str) -> Manifest:
    """Raises BackupInvalid, FormatTooNew."""
    if hashlib.sha256(data).hexdigest() != checksum.strip():
        raise BackupInvalid(f"{FILE} is damaged: its checksum is not the one in {CHECKSUM_FILE}")
    try:
        if (version := msgspec.json.decode(data, type=_Version).v) > VERSION:
            raise FormatTooNew(f"the backup has version {version}, and this version of Postroad reads {VERSION}")
        manifest = msgspec.json.decode(data, type=Manifest)
    except msgspec.DecodeError as exc:
        raise BackupInvalid(f"{FILE} cannot be decoded: {exc}") from exc
    if newer := too_new(manifest.formats):
        raise FormatTooNew(f"the backup of Postroad {manifest.postroad} has newer formats: {', '.join(newer)}")
    if any(one.file != file_name(one.name) for one in manifest.streams):
        raise BackupInvalid(f"{FILE} names files outside of the backup")
    return manifest


def check_platform_keys(manifest: Manifest, platform_keys: Iterable[str]) -> None:
    """Raises BackupInvalid unless every platform key of the backup is among these."""
    known = {fingerprint(key) for key in platform_keys}
    if not set(manifest.platform_keys) <= known:
        raise BackupInvalid(
            "the backup was made with another platform key, which its secrets and receipts need: set POSTROAD_PLATFORM_KEY to "
            "that key, or put it into platform.key of the data directory; list several, newest first, if it was rotated"
        )


def file_name(stream: str) -> str:
    """Names of streams are NATS tokens: letters, digits, `_` and `-`. Raises BackupInvalid for any other."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,255}", stream):
        raise BackupInvalid(f"{stream!r} is no name of a stream of Postroad")
    return f"{STREAMS}/{stream}.snapshot"


class Selection:
    """The streams that capabilities declare: by `names`, or by the prefix of the streams of tenants."""

    def __init__(self, names: Iterable[str], prefixes: Iterable[str]) -> None:
        self.names = frozenset(names)
        chosen = "|".join(sorted(map(re.escape, prefixes)))
        self._owned = re.compile(rf"(?:{chosen})_{_OWNED}")

    def includes(self, stream: str) -> bool:
        return stream in self.names or self.tenant_of(stream) is not None

    def tenant_of(self, stream: str) -> str | None:
        """The tenant that the stream belongs to; None if it is shared or unknown."""
        if stream in self.names or (stream.startswith("KV_") and "__" not in stream):  # a bucket of another client of the server
            return None
        found = self._owned.fullmatch(stream)
        return found["tenant"] if found else None


def adapted_config(config: Mapping[str, Any], *, from_replicas: int, to_replicas: int, is_clustered: bool) -> dict[str, Any]:
    """The configuration for an installation with another number of replicas. A single server has no regions."""
    replicas = to_replicas if config.get("num_replicas", 1) == from_replicas else min(config.get("num_replicas", 1), to_replicas)
    return {**config, "num_replicas": replicas, **({} if is_clustered else {"placement": None})}
