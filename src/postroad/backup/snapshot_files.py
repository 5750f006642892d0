"""Files of a backup: written once with their checksum, encrypted on request, verified before they are used.

An encrypted file is a sequence of frames: the length in four bytes, then AES-256-GCM of up to a mebibyte. The number of a frame
is its nonce, as each file has a key of its own; the last frame is marked as such, so that a truncated file is detected.
"""

import base64
import hashlib
import hmac
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from postroad.api.installation import BackupInvalid
from postroad.backup.manifest import Encryption, StreamFile
from postroad.jetstream.snapshot import CHUNK_BYTES

_FRAME_BYTES = 1024 * 1024
_LENGTH = struct.Struct(">I")
_CHECK = b"postroad backup"
_MORE, _LAST = b"more", b"last"


class BackupCipher:
    """Derives the keys of files from a passphrase."""

    def __init__(self, passphrase: str, salt: bytes) -> None:
        self._salt = salt
        self._key = Scrypt(salt=salt, length=32, n=2**15, r=8, p=1).derive(passphrase.encode())

    @classmethod
    def create(cls, passphrase: str) -> "BackupCipher":
        return cls(passphrase, os.urandom(16))

    @classmethod
    def open(cls, passphrase: str, encryption: Encryption) -> "BackupCipher":
        """Raises BackupInvalid if the passphrase is another one."""
        cipher = cls(passphrase, base64.b64decode(encryption.salt))
        try:
            cipher.of_file("").decrypt(bytes(12), base64.b64decode(encryption.check), None)
        except InvalidTag as exc:
            raise BackupInvalid("the passphrase is not that of the backup") from exc
        return cipher

    @property
    def encryption(self) -> Encryption:
        check = self.of_file("").encrypt(bytes(12), _CHECK, None)
        return Encryption(salt=base64.b64encode(self._salt).decode(), check=base64.b64encode(check).decode())

    def of_file(self, name: str) -> AESGCM:
        return AESGCM(hmac.digest(self._key, name.encode(), hashlib.sha256))


class SnapshotWriter:
    """Writes one file. `close` returns once it is on the disk."""

    def __init__(self, path: Path, name: str, cipher: BackupCipher | None) -> None:
        self._file = path.open("wb")
        self._checksum = hashlib.sha256()
        self._key = cipher.of_file(name) if cipher is not None else None
        self._buffer = bytearray()
        self._frames = 0
        self.bytes = 0

    def write(self, data: bytes) -> None:
        if self._key is None:
            self._put(data)
            return
        self._buffer += data
        while len(self._buffer) > _FRAME_BYTES:  # the last frame is never empty, unless the file is
            self._put_frame(bytes(self._buffer[:_FRAME_BYTES]), _MORE)
            del self._buffer[:_FRAME_BYTES]

    def _put_frame(self, plain: bytes, mark: bytes) -> None:
        assert self._key is not None  # noqa: S101
        sealed = self._key.encrypt(self._frames.to_bytes(12, "big"), plain, mark)
        self._frames += 1
        self._put(_LENGTH.pack(len(sealed)) + sealed)

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._checksum.update(data)
        self.bytes += len(data)

    def close(self) -> str:
        """Returns the checksum."""
        if self._key is not None:
            self._put_frame(bytes(self._buffer), _LAST)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return self._checksum.hexdigest()

    def discard(self) -> None:
        self._file.close()


def verify_file(folder: Path, stream: StreamFile) -> None:
    """Raises BackupInvalid if the file is missing or not the one that was written."""
    path = folder / stream.file
    try:
        with path.open("rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as exc:
        raise BackupInvalid(f"{stream.file} cannot be read: {exc.strerror}") from exc
    if checksum != stream.sha256:
        raise BackupInvalid(f"{stream.file} is damaged: its checksum is not the one in the manifest")


def read_chunks(folder: Path, stream: StreamFile, cipher: BackupCipher | None) -> Iterator[bytes]:
    """The snapshot, decrypted, in chunks that fit into a message. Raises BackupInvalid."""
    with (folder / stream.file).open("rb") as file:
        if cipher is None:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
            return
        key, number, is_last = cipher.of_file(stream.name), 0, False
        while length := file.read(_LENGTH.size):
            sealed = file.read(_LENGTH.unpack(length)[0]) if len(length) == _LENGTH.size and not is_last else b""
            plain, is_last = _opened(key, number, sealed, stream.file)
            number += 1
            for start in range(0, len(plain), CHUNK_BYTES):
                yield plain[start : start + CHUNK_BYTES]
        if not is_last:
            raise BackupInvalid(f"{stream.file} is truncated")


def _opened(key: AESGCM, number: int, sealed: bytes, name: str) -> tuple[bytes, bool]:
    for mark in (_MORE, _LAST):
        try:
            return key.decrypt(number.to_bytes(12, "big"), sealed, mark), mark is _LAST
        except InvalidTag:
            continue
    raise BackupInvalid(f"{name} cannot be decrypted")


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
