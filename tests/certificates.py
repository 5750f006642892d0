"""A certificate authority, and certificates of servers on this machine."""

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_PEM = serialization.Encoding.PEM
_LOOPBACK = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])


class Authority:
    """Writes `ca.pem`; `issue` writes `cert.pem` and `key.pem`, replacing each file as a whole."""

    def __init__(self, home: Path) -> None:
        self.ca_file, self.certificate, self.key = home / "ca.pem", home / "cert.pem", home / "key.pem"
        self._signer = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
        self._serial = 1
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        _replace(self.ca_file, self._signed(self._signer, self._name, constraints).public_bytes(_PEM))

    def issue(self, *, files: tuple[str, ...] = ("certificate", "key"), passphrase: bytes | None = None) -> int:
        """Issue a certificate for this machine; return its serial number. `files`: those that are written."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        self._serial += 1
        signed = self._signed(key, name, _LOOPBACK, self._serial)
        lock = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
        if "certificate" in files:
            _replace(self.certificate, signed.public_bytes(_PEM))
        if "key" in files:
            _replace(self.key, key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, lock))
        return self._serial

    def _signed(
        self, key: ec.EllipticCurvePrivateKey, name: x509.Name, extension: x509.ExtensionType, serial: int = 1
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(self._name).public_key(key.public_key())
        builder = (
            builder.serial_number(serial).not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
        )
        return builder.add_extension(extension, critical=False).sign(self._signer, hashes.SHA256())


def _replace(path: Path, content: bytes) -> None:
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)
