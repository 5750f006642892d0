"""An external NATS server: TLS with a client certificate, and a credentials file in operator mode."""

import base64
import hashlib
import ipaddress
import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import nkeys
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.management import StreamSpec, ensure_stream
from postroad.kernel.errors import EngineUnavailable
from postroad.runtime.embedded_server import find_server, free_port

pytestmark = pytest.mark.engine


@contextmanager
def server(home: Path, configuration: str) -> Iterator[None]:
    port = int(configuration.split(":", 2)[2].split('"')[0])
    (home / "nats.conf").write_text(configuration)
    process = subprocess.Popen([str(find_server()), "-c", str(home / "nats.conf"), "-l", str(home / "nats.log")])
    try:
        deadline = time.monotonic() + 10
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < deadline, (home / "nats.log").read_text()
            time.sleep(0.01)
        yield
    finally:
        process.terminate()
        process.wait()


def certificate(
    home: Path, name: str, issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None
) -> tuple[Any, Any]:
    """A certificate and its key, written as PEM files; self-signed, or signed by the issuer."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
    )
    made = builder.sign(issuer[1] if issuer else key, hashes.SHA256())
    (home / f"{name}.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form, no_password = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (home / f"{name}.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, no_password))
    return made, key


async def works(settings: ConnectionSettings) -> bool:
    connection = Connection(settings)
    await connection.open(deadline=1)
    try:
        await ensure_stream(connection, StreamSpec("CHECK", ("check.>",)))
        return connection.is_up
    finally:
        await connection.close()


async def test_a_server_with_tls_requires_the_client_certificate(tmp_path: Path) -> None:
    authority = certificate(tmp_path, "authority")
    certificate(tmp_path, "server", authority)
    certificate(tmp_path, "client", authority)
    certificate(tmp_path, "other")
    port = free_port()
    files = f'cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.key", ca_file: "{tmp_path}/authority.pem"'
    configuration = f'listen: "127.0.0.1:{port}"\ntls {{ {files}, verify: true }}\njetstream {{ store_dir: "{tmp_path}/js" }}\n'
    url = f"tls://127.0.0.1:{port}"
    ours = ConnectionSettings(
        (url,), tls_ca=tmp_path / "authority.pem", tls_cert=tmp_path / "client.pem", tls_key=tmp_path / "client.key"
    )

    with server(tmp_path, configuration):
        assert await works(ours)
        with pytest.raises(EngineUnavailable):  # no client certificate
            await works(ConnectionSettings((url,), tls_ca=tmp_path / "authority.pem"))
        with pytest.raises(EngineUnavailable):  # a server certificate of another authority
            await works(replace(ours, tls_ca=tmp_path / "other.pem"))


class Identity:
    """A NATS key pair (nkey), and the JWTs that it signs."""

    def __init__(self, prefix: int) -> None:
        self.seed = nkeys.encode_seed(os.urandom(32), prefix)
        self._pair = nkeys.from_seed(bytearray(self.seed))
        self.public = self._pair.public_key.decode()

    def token(self, subject: "Identity", name: str, kind: str, **details: object) -> str:
        claims = {
            "iat": int(time.time()),
            "iss": self.public,
            "sub": subject.public,
            "name": name,
            "nats": {"type": kind, "version": 2, **details},
        }
        claims["jti"] = base64.b32encode(hashlib.sha256(json.dumps(claims).encode()).digest()).decode().rstrip("=")
        parts = [_text({"typ": "JWT", "alg": "ed25519-nkey"}), _text(claims)]
        signature = base64.urlsafe_b64encode(self._pair.sign(".".join(parts).encode())).decode().rstrip("=")
        return ".".join([*parts, signature])


def _text(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def credentials(token: str, holder: Identity) -> str:
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{holder.seed.decode()}\n------END USER NKEY SEED------\n"
    )


async def test_a_server_in_operator_mode_requires_the_credentials_file(tmp_path: Path) -> None:
    operator, account, user, system, other_tenant = (
        Identity(prefix)
        for prefix in (
            nkeys.PREFIX_BYTE_OPERATOR,
            nkeys.PREFIX_BYTE_ACCOUNT,
            nkeys.PREFIX_BYTE_USER,
            nkeys.PREFIX_BYTE_ACCOUNT,
            nkeys.PREFIX_BYTE_USER,
        )
    )
    unlimited = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
    storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    accounts = {
        account.public: operator.token(account, "postroad", "account", limits={**unlimited, **storage}),
        system.public: operator.token(system, "SYS", "account", limits=unlimited),
    }
    port = free_port()
    preload = "\n".join(f"  {public}: {token}" for public, token in accounts.items())
    configuration = (
        f'listen: "127.0.0.1:{port}"\noperator: {operator.token(operator, "op", "operator", system_account=system.public)}\n'
        f"system_account: {system.public}\nresolver: MEMORY\nresolver_preload: {{\n{preload}\n}}\n"
        f'jetstream {{ store_dir: "{tmp_path}/js" }}\n'
    )
    token = account.token(user, "postroad", "user", subs=-1, data=-1, payload=-1)
    (tmp_path / "user.creds").write_text(credentials(token, user))
    (tmp_path / "stranger.creds").write_text(credentials(token, other_tenant))

    with server(tmp_path, configuration):
        url = f"nats://127.0.0.1:{port}"
        assert await works(ConnectionSettings((url,), credentials_file=tmp_path / "user.creds"))
        with pytest.raises(EngineUnavailable):
            await works(ConnectionSettings((url,)))
        with pytest.raises(EngineUnavailable):  # a token with the seed of another user
            await works(ConnectionSettings((url,), credentials_file=tmp_path / "stranger.creds"))
