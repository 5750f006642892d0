"""Signatures of deliveries."""

import base64
import hashlib
import hmac

import pytest

from postroad.subscriptions.signatures import Signer, new_secret, signature_headers


def test_the_signature_is_the_hmac_of_timestamp_and_body() -> None:
    expected = hmac.new(b"s3cret", b'1700000000123.{"a":1}', hashlib.sha256).hexdigest()
    assert Signer("s3cret").mq_signature("1700000000123", b'{"a":1}') == f"sha256={expected}"


def test_a_new_secret_is_a_standard_webhooks_secret_of_24_bytes() -> None:
    prefix, _, text = new_secret().partition("_")
    assert (prefix, len(base64.b64decode(text, validate=True))) == ("whsec", 24)


def test_during_a_rotation_both_secrets_sign_and_the_older_one_signs_alone() -> None:
    headers = signature_headers([Signer("old"), Signer("new")], "sub.7", 1_700_000_000_123, 1_700_000_060, b"body")
    assert headers["X-MQ-Signature"] == Signer("old").mq_signature("1700000000123", b"body")
    assert headers["webhook-signature"].split(" ") == [
        Signer("new").webhook_signature("sub.7", "1700000060", b"body"),
        Signer("old").webhook_signature("sub.7", "1700000060", b"body"),
    ]
    assert headers["webhook-timestamp"] == "1700000060"


def test_without_a_secret_nothing_is_signed() -> None:
    headers = signature_headers([], "sub.7", 1, 2, b"body")
    assert headers == {"X-MQ-Timestamp": "1", "webhook-id": "sub.7", "webhook-timestamp": "2"}


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 500])
def test_secrets_of_any_length_sign_as_hmac_does(length: int) -> None:
    secret, body = "k" * length, b"x" * 5000
    expected = hmac.new(secret.encode(), b"7." + body, hashlib.sha256).hexdigest()
    signer = Signer(secret)
    assert signer.mq_signature("7", body) == signer.mq_signature("7", body) == f"sha256={expected}"


def test_the_standard_webhooks_signature_is_keyed_with_the_decoded_secret() -> None:
    secret = new_secret()
    expected = hmac.new(base64.b64decode(secret.removeprefix("whsec_")), b"sub.7.60.body", hashlib.sha256).digest()
    assert Signer(secret).webhook_signature("sub.7", "60", b"body") == f"v1,{base64.b64encode(expected).decode()}"
