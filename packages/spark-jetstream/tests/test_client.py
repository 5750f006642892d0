"""Connecting: as whom, over TLS, to whichever server is there; and what is told when that fails."""

import base64
import json
import socket
import time
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
from spark_jetstream.api import Api
from spark_jetstream.client import Client
from spark_jetstream.credentials import read_credentials
from spark_jetstream.errors import ConnectionLost, OptionError, Refused, Unreachable
from spark_jetstream.options import Connection, read_options


def connection(**options: str) -> Connection:
    return read_options({"stream": "S", "timeoutSeconds": "5", **options}, is_streaming=False).connection


def greet(link: Connection) -> None:
    """Connect and ask something that only who is let in is told."""
    with Client(link) as client:
        client.open()
        with pytest.raises(Refused, match="stream not found"):
            Api(client, link.api_prefix).stream_info("missing")


@pytest.mark.parametrize("way", ["in the url", "beside it"])
def test_user_and_password(start_nats: StartServer, way: str) -> None:
    server = start_nats('authorization { user: "me", password: "s3cret p" }')
    at = f"127.0.0.1:{server.port}"

    greet(
        connection(url=f"nats://me:s3cret%20p@{at}")
        if way == "in the url"
        else connection(url=at, user="me", password="s3cret p")
    )


def test_a_wrong_password_is_refused_at_once_and_not_repeated(start_nats: StartServer) -> None:
    server = start_nats('authorization { user: "me", password: "s3cret" }')
    began = time.monotonic()

    with (
        pytest.raises(Refused, match="does not let us in: Authorization Violation") as told,
        Client(connection(url=server.url, user="me", password="wr0ng")) as client,
    ):
        client.open()

    assert "wr0ng" not in str(told.value)
    assert time.monotonic() - began < 3


def test_token(start_nats: StartServer) -> None:
    server = start_nats('authorization { token: "t0ken" }')

    greet(connection(url=server.url, token="t0ken"))
    greet(connection(url=f"nats://t0ken@127.0.0.1:{server.port}"))
    with pytest.raises(Refused):
        greet(connection(url=server.url))


def _claims(issuer: nkeys.KeyPair, subject: nkeys.KeyPair, nats: dict[str, object]) -> str:
    """A JWT as NATS wants it."""
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


def test_a_credentials_file_of_an_operator(start_nats: StartServer, tmp_path: Path) -> None:
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

    greet(connection(url=server.url, credentials=str(file)))
    with pytest.raises(Refused):
        greet(connection(url=server.url))
    assert user.seed.decode() not in repr(read_credentials(str(file)))


def test_a_credentials_file_that_is_none_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"'credentials' names .*/missing, which cannot be read"):
        read_credentials(str(tmp_path / "missing"))
    (tmp_path / "empty").write_text("s3cret nonsense")
    with pytest.raises(OptionError, match="holds no user JWT") as told:
        read_credentials(str(tmp_path / "empty"))
    assert "s3cret" not in str(told.value)


def _certificate(home: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1, signed by itself, and its key."""
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


def test_tls_with_a_ca_and_a_certificate_of_ours(start_nats: StartServer, tmp_path: Path) -> None:
    cert, key = _certificate(tmp_path)
    server = start_nats(f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{cert}", verify: true }}')
    ours = {"tlsCa": str(cert), "tlsCert": str(cert), "tlsKey": str(key)}

    greet(connection(url=f"tls://127.0.0.1:{server.port}", **ours))
    greet(connection(url=f"nats://127.0.0.1:{server.port}", **ours))
    with pytest.raises(Refused, match="is not trusted"):
        greet(connection(url=f"tls://127.0.0.1:{server.port}"))
    with pytest.raises(Refused, match="'tlsCa'"):
        greet(connection(url=f"tls://127.0.0.1:{server.port}", tlsCa=str(tmp_path / "missing.pem")))


def test_without_tls_nothing_is_sent_to_a_server_that_should_have_it(nats: NatsServer) -> None:
    with pytest.raises(Refused, match="offers no TLS"):
        greet(connection(url=f"tls://127.0.0.1:{nats.port}"))


def test_another_server_is_taken_when_one_is_not_there(nats: NatsServer) -> None:
    for _ in range(4):  # which is tried first is chance
        greet(connection(url=f"nats://127.0.0.1:{free_port()},{nats.url}"))


def test_no_server_at_all_is_told_with_the_addresses_and_without_secrets() -> None:
    port = free_port()
    with pytest.raises(Unreachable, match=f"127.0.0.1:{port}") as told:
        greet(connection(url=f"nats://me:s3cret@127.0.0.1:{port}"))
    assert "s3cret" not in str(told.value)


def test_who_is_no_nats_server_is_told_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        near = socket.create_connection(other.getsockname())
        near.close()
        link = connection(url=f"127.0.0.1:{other.getsockname()[1]}", timeoutSeconds="0.2")
        with pytest.raises(Unreachable, match=r"no answer within 0\.2 s"):
            greet(link)


def test_a_domain_is_asked_by_its_own_prefix(start_nats: StartServer) -> None:
    server = start_nats("#domain", domain="hub")

    greet(server.connection)
    wrong = connection(url=server.url, apiPrefix="$JS.elsewhere.API")
    with Client(wrong) as client, pytest.raises(Refused, match="'domain' or 'apiPrefix'"):
        client.open()
        Api(client, wrong.api_prefix).stream_info("missing")


def test_answers_come_to_the_inbox_that_we_are_allowed(start_nats: StartServer) -> None:
    server = start_nats(
        'authorization { users: [{ user: "me", password: "p", permissions: { publish: "$JS.API.>", subscribe: "mine.>" } }] }'
    )

    greet(connection(url=server.url, user="me", password="p", inboxPrefix="mine"))
    with pytest.raises(Refused, match="Permissions Violation"):
        greet(connection(url=server.url, user="me", password="p"))


def test_what_may_be_asked_again_is_asked_again(nats: NatsServer) -> None:
    asked: list[int] = []

    def ask(client: Client) -> str:
        asked.append(1)
        if len(asked) < 3:
            raise ConnectionLost("the test says so")
        return "answer"

    with Client(nats.connection) as client:
        assert client.with_retries(ask) == "answer"
