"""Keys that sign the envelopes of SNS, and their certificates.

One RSA key signs at a time. A new one is created every year, and signs a minute later, when all processes have its certificate.
The private key before it is deleted a day later; the certificate stays, since archived envelopes may be verified.
"""

import asyncio
import base64
import datetime
from collections.abc import Sequence
from typing import cast

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.x509.oid import NameOID

from postroad.crypto.secret_encryption import SecretCipher
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock
from postroad.kernel.errors import Conflict, EngineUnavailable
from postroad.kernel.ids import id_time_ms, new_id

SIGNING_KEYS_BUCKET = "postroad_sns_signing_keys"
CERTIFICATE_PATH = "/sns/"
_PREFIX, _SUFFIX = "SimpleNotificationService-", ".pem"
_ROTATION_MS = 365 * 86_400_000
_OVERLAP_MS = 60_000  # before a new key signs
_KEPT_MS = 86_400_000  # a private key that does not sign any more
_VALID_DAYS = 3 * 365
_KEY_BITS = 2048
_OWNER = "sns signing key"
_HASHES: dict[str, hashes.HashAlgorithm] = {"1": hashes.SHA1(), "2": hashes.SHA256()}  # noqa: S303  # version 1 is defined so


class SigningKeyRecord(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A key, encrypted, with its certificate (PEM). `encrypted` is empty once it does not sign any more."""

    v: int = 1
    id: str
    encrypted: str
    certificate: str
    created_at_ms: int


class SnsSigningKeys:
    def __init__(self, table: ReplicatedTable[SigningKeyRecord], cipher: SecretCipher, clock: Clock) -> None:
        self.table, self._cipher, self._clock = table, cipher, clock
        self._loaded: tuple[str, RSAPrivateKey] | None = None

    def sign(self, version: str, text: bytes) -> tuple[str, str]:
        """The signature in base64, and the path of the certificate. Raises EngineUnavailable while there is no key."""
        signing = signing_key(self._records(), self._clock())
        if signing is None:
            raise EngineUnavailable("the signing key of SNS envelopes does not exist yet")
        signature = self._key(signing).sign(text, padding.PKCS1v15(), _HASHES[version])
        return base64.b64encode(signature).decode(), certificate_path(signing.id)

    async def certificate(self, name: str) -> str | None:
        """The certificate with this file name. Raises EngineUnavailable."""
        if not (name.startswith(_PREFIX) and name.endswith(_SUFFIX)):
            return None
        key = name[len(_PREFIX) : -len(_SUFFIX)]
        record, created_ms = self.table.get(key), id_time_ms(key)
        if record is None and created_ms is not None and self._clock() - created_ms < 10 * _OVERLAP_MS:
            record = await self.table.fetch(key)  # another process created it a moment ago
        return None if record is None else record.certificate

    async def maintain(self) -> None:
        """Create the first key, and the next one when the newest is a year old; delete those that have signed. For one process at
        a time."""
        records, now = self._records(), self._clock()
        newest = records[-1] if records else None
        if newest is not None and now - newest.created_at_ms < _ROTATION_MS:
            if now - newest.created_at_ms > _KEPT_MS:
                for record in records[:-1]:
                    await self.table.change(record.id, lambda one: msgspec.structs.replace(one, encrypted=""))
            return
        record = await asyncio.to_thread(self._new_record)  # generating a key takes a part of a second
        try:
            await self.table.create(record.id, record)
        except Conflict:
            self.table.forget(record.id)

    def _records(self) -> list[SigningKeyRecord]:
        """The oldest first."""
        records = [record for key in self.table.keys_under() if (record := self.table.get(key)) is not None]
        return sorted(records, key=lambda one: (one.created_at_ms, one.id))

    def _key(self, record: SigningKeyRecord) -> RSAPrivateKey:
        if self._loaded is None or self._loaded[0] != record.id:
            text = self._cipher.decrypt(_OWNER, record.encrypted)
            key = serialization.load_pem_private_key(text.encode(), password=None)
            self._loaded = record.id, cast(RSAPrivateKey, key)
        return self._loaded[1]

    def _new_record(self) -> SigningKeyRecord:
        key = rsa.generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
        text = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode()
        now = self._clock()
        return SigningKeyRecord(
            id=new_id(), encrypted=self._cipher.encrypt(_OWNER, text), certificate=_certificate(key, now), created_at_ms=now
        )


def signing_key(records: Sequence[SigningKeyRecord], now_ms: int) -> SigningKeyRecord | None:
    """The newest key that all processes know, given the oldest first; the first key of all signs at once."""
    known = [one for one in records if one.created_at_ms <= now_ms - _OVERLAP_MS] or records[:1]
    return known[-1] if known else None


def certificate_path(key_id: str) -> str:
    return f"{CERTIFICATE_PATH}{_PREFIX}{key_id}{_SUFFIX}"


def _certificate(key: RSAPrivateKey, now_ms: int) -> str:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "sns.postroad.local")])
    now = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_VALID_DAYS))
        .sign(key, hashes.SHA256())
    )
    return built.public_bytes(serialization.Encoding.PEM).decode()
