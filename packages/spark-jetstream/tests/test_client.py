"""Connecting: authentication, TLS, failover between servers, and the errors when it fails."""

import base64
import json
import socket
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import nkeys
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from nats_server import NatsServer, StartServer, free_port
from spark_jetstream.api import JetStreamApi
from spark_jetstream.client import Client
from spark_jetstream.credentials import read_credentials, read_nkey
from spark_jetstream.errors import ConnectionLost, OptionError, Rejected, Unreachable
from spark_jetstream.options import ConnectionOptions, read_options


def connection(**options: str) -> ConnectionOptions:
    return read_options({"stream": "S", "timeoutSeconds": "5", **options}, is_streaming=False).connection


def connect(options: ConnectionOptions) -> None:
    """Connect and send a request that needs authorization."""
    with Client(options) as client:
        client.open()
        with pytest.raises(Rejected, match="stream not found"):
            JetStreamApi(client, options.api_prefix).stream_info("missing")


@pytest.mark.parametrize("place", ["in the url", "in options"])
def test_user_and_password_are_accepted(start_nats: StartServer, place: str) -> None:
    server = start_nats('authorization { user: "me", password: "s3cret p" }')
    at = f"127.0.0.1:{server.port}"

    connect(
        connection(url=f"nats://me:s3cret%20p@{at}")
        if place == "in the url"
        else connection(url=at, user="me", password="s3cret p")
    )


def test_a_wrong_password_is_rejected_without_retries(start_nats: StartServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start_nats('authorization { user: "me", password: "s3cret" }')
    monkeypatch.setattr("spark_jetstream.client.backoff_seconds", lambda _failures: pytest.fail("there is a retry"))

    with (
        pytest.raises(Rejected, match="rejected the credentials: Authorization Violation") as error,
        Client(connection(url=server.url, user="me", password="wr0ng")) as client,
    ):
        client.open()

    assert "wr0ng" not in str(error.value)


def test_a_token_is_accepted(start_nats: StartServer) -> None:
    server = start_nats('authorization { token: "t0ken" }')

    connect(connection(url=server.url, token="t0ken"))
    connect(connection(url=f"nats://t0ken@127.0.0.1:{server.port}"))
    with pytest.raises(Rejected):
        connect(connection(url=server.url))


def _claims(issuer: nkeys.KeyPair, subject: nkeys.KeyPair, nats: dict[str, object]) -> str:
    """A NATS JWT."""
    body = {
        "jti": "x",
        "iat": 1,
        "iss": issuer.public_key.decode(),
        "sub": subject.public_key.decode(),
        "name": "x",
        "nats": nats,
    }
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, body)
    ]
    signature = issuer.sign(b".".join(parts))
    return b".".join([*parts, base64.urlsafe_b64encode(signature).rstrip(b"=")]).decode()


def _pair(prefix: int, number: int) -> nkeys.KeyPair:
    pair: nkeys.KeyPair = nkeys.from_seed(nkeys.encode_seed(bytes([number]) * 32, prefix))
    return pair


def test_a_credentials_file_is_accepted(start_nats: StartServer, tmp_path: Path) -> None:
    operator, account, system, user = (
        _pair(nkeys.PREFIX_BYTE_OPERATOR, 1), _pair(nkeys.PREFIX_BYTE_ACCOUNT, 2), _pair(nkeys.PREFIX_BYTE_ACCOUNT, 3),
        _pair(nkeys.PREFIX_BYTE_USER, 4),
    )  # fmt: skip
    plain = {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
    stored = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    operator_jwt = _claims(operator, operator, {"type": "operator", "version": 2, "system_account": system.public_key.decode()})
    account_jwt = _claims(operator, account, {"type": "account", "version": 2, "limits": {**plain, **stored}})
    system_jwt = _claims(operator, system, {"type": "account", "version": 2, "limits": plain})
    user_jwt = _claims(account, user, {"type": "user", "version": 2, "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1})
    server = start_nats(
        f"operator: {operator_jwt}\nsystem_account: {system.public_key.decode()}\nresolver: MEMORY\n"
        f"resolver_preload: {{ {account.public_key.decode()}: {account_jwt}, {system.public_key.decode()}: {system_jwt} }}"
    )
    file = tmp_path / "user.creds"
    file.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\nKeep it secret.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )

    connect(connection(url=server.url, credentials=str(file)))
    with pytest.raises(Rejected):
        connect(connection(url=server.url))
    assert user.seed.decode() not in repr(read_credentials(str(file)))


def test_an_nkey_file_is_accepted(start_nats: StartServer, tmp_path: Path) -> None:
    user, other = _pair(nkeys.PREFIX_BYTE_USER, 5), _pair(nkeys.PREFIX_BYTE_USER, 6)
    server = start_nats(f"authorization {{ users: [ {{ nkey: {user.public_key.decode()} }} ] }}")
    for pair in (user, other):
        (tmp_path / pair.public_key.decode()).write_bytes(pair.seed + b"\n")

    connect(connection(url=server.url, nkey=str(tmp_path / user.public_key.decode())))
    with pytest.raises(Rejected):
        connect(connection(url=server.url, nkey=str(tmp_path / other.public_key.decode())))


def test_an_invalid_nkey_file_is_named_and_not_quoted(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"'nkey' names .*/missing, which cannot be read"):
        read_nkey(str(tmp_path / "missing"))
    (tmp_path / "wrong").write_text("s3cret nonsense")
    with pytest.raises(OptionError, match="contains no nkey seed") as error:
        read_nkey(str(tmp_path / "wrong"))
    assert "s3cret" not in str(error.value)


def test_an_invalid_credentials_file_is_named_and_not_quoted(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"'credentials' names .*/missing, which cannot be read"):
        read_credentials(str(tmp_path / "missing"))
    (tmp_path / "empty").write_text("s3cret nonsense")
    with pytest.raises(OptionError, match="contains no user JWT") as error:
        read_credentials(str(tmp_path / "empty"))
    assert "s3cret" not in str(error.value)


def _certificate(home: Path) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    cert_file, key_file = home / "cert.pem", home / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file


def test_tls_with_a_ca_and_a_client_certificate(start_nats: StartServer, tmp_path: Path) -> None:
    cert, key = _certificate(tmp_path)
    server = start_nats(f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{cert}", verify: true }}')
    files = {"tlsCa": str(cert), "tlsCert": str(cert), "tlsKey": str(key)}

    connect(connection(url=f"tls://127.0.0.1:{server.port}", **files))
    connect(connection(url=f"nats://127.0.0.1:{server.port}", **files))
    with pytest.raises(Rejected, match="is not trusted"):
        connect(connection(url=f"tls://127.0.0.1:{server.port}"))
    with pytest.raises(Rejected, match="'tlsCa'"):
        connect(connection(url=f"tls://127.0.0.1:{server.port}", tlsCa=str(tmp_path / "missing.pem")))


def test_a_server_without_tls_is_not_used_if_tls_is_required(nats: NatsServer) -> None:
    with pytest.raises(Rejected, match="does not offer TLS"):
        connect(connection(url=f"tls://127.0.0.1:{nats.port}"))


def test_another_server_is_used_if_one_is_unreachable(nats: NatsServer) -> None:
    for _ in range(4):  # the first server is chosen at random
        connect(connection(url=f"nats://127.0.0.1:{free_port()},{nats.url}"))


@pytest.fixture
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_jetstream.client.backoff_seconds", lambda _failures: 0)


@pytest.mark.usefixtures("no_backoff")
def test_an_unreachable_server_is_named_without_secrets() -> None:
    port = free_port()
    with pytest.raises(Unreachable, match=f"127.0.0.1:{port}") as error:
        connect(connection(url=f"nats://me:s3cret@127.0.0.1:{port}"))
    assert "s3cret" not in str(error.value)


@pytest.mark.usefixtures("no_backoff")
def test_a_server_that_sends_nothing_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        near = socket.create_connection(other.getsockname())
        near.close()
        options = connection(url=f"127.0.0.1:{other.getsockname()[1]}", timeoutSeconds="0.05")
        with pytest.raises(Unreachable, match=r"no reply within 0\.05 s"):
            connect(options)


def test_a_domain_is_reached_by_its_api_prefix(start_nats: StartServer) -> None:
    server = start_nats("#domain", domain="hub")

    connect(server.connection)
    wrong = connection(url=server.url, apiPrefix="$JS.elsewhere.API")
    with Client(wrong) as client, pytest.raises(Rejected, match="'domain' or 'apiPrefix'"):
        client.open()
        JetStreamApi(client, wrong.api_prefix).stream_info("missing")


def test_the_inbox_prefix_can_match_the_users_permissions(start_nats: StartServer) -> None:
    server = start_nats(
        'authorization { users: [{ user: "me", password: "p", permissions: { publish: "$JS.API.>", subscribe: "mine.>" } }] }'
    )

    connect(connection(url=server.url, user="me", password="p", inboxPrefix="mine"))
    with pytest.raises(Rejected, match="Permissions Violation"):
        connect(connection(url=server.url, user="me", password="p"))


def test_an_operation_is_retried_after_a_lost_connection(nats: NatsServer) -> None:
    attempts: list[int] = []

    def operation(client: Client) -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionLost("simulated")
        return "result"

    with Client(nats.connection) as client:
        assert client.with_retries(operation) == "result"
