"""Signatures of deliveries."""

import base64
import hashlib
import hmac

from postroad.subscriptions.signatures import mq_signature, new_secret, signature_headers, webhook_signature


def test_the_signature_is_the_hmac_of_timestamp_and_body() -> None:
    expected = hmac.new(b"s3cret", b'1700000000123.{"a":1}', hashlib.sha256).hexdigest()
    assert mq_signature("s3cret", "1700000000123", b'{"a":1}') == f"sha256={expected}"


def test_a_new_secret_is_a_standard_webhooks_secret_of_24_bytes() -> None:
    prefix, _, text = new_secret().partition("_")
    assert (prefix, len(base64.b64decode(text, validate=True))) == ("whsec", 24)


def test_during_a_rotation_both_secrets_sign_and_the_older_one_signs_alone() -> None:
    headers = signature_headers(["old", "new"], "sub.7", 1_700_000_000_123, 1_700_000_060, b"body")
    assert headers["X-MQ-Signature"] == mq_signature("old", "1700000000123", b"body")
    assert headers["webhook-signature"].split(" ") == [
        webhook_signature("new", "sub.7", "1700000060", b"body"),
        webhook_signature("old", "sub.7", "1700000060", b"body"),
    ]
    assert headers["webhook-timestamp"] == "1700000060"


def test_without_a_secret_nothing_is_signed() -> None:
    headers = signature_headers([], "sub.7", 1, 2, b"body")
    assert headers == {"X-MQ-Timestamp": "1", "webhook-id": "sub.7", "webhook-timestamp": "2"}
