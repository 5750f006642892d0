"""Verification of deliveries: ours, and by the public verifiers of the format."""

import base64
import time

import pytest
import standardwebhooks
import svix.webhooks
from hypothesis import given
from hypothesis import strategies as st

from postroad.subscriptions.signatures import Signer, signature_headers
from postroad.webhooks import WebhookInvalid, verify

SECRET = "whsec_" + base64.b64encode(b"twenty-four bytes of key").decode()
BODY = b'{"amount":5}'
META = {"X-MQ-Topic": "orders", "X-MQ-Published-Subject": "eu.created", "X-MQ-Id": "7", "X-MQ-Attempt": "2", "X-MQ-Hops": "1"}


def sent(*secrets: str, at: float | None = None, body: bytes = BODY) -> dict[str, str]:
    return META | signature_headers(
        [Signer(secret) for secret in secrets or (SECRET,)],
        "sub.7",
        1_700_000_000_000,
        int(time.time() if at is None else at),
        body,
    )


def test_a_delivery_is_verified_and_read() -> None:
    delivery = verify(SECRET, sent(), BODY)
    assert (delivery.id, delivery.topic, delivery.subject, delivery.sequence) == ("sub.7", "orders", "eu.created", 7)
    assert (delivery.attempt, delivery.hops, delivery.published_ms, delivery.body) == (2, 1, 1_700_000_000_000, BODY)


def test_the_public_verifiers_accept_our_deliveries() -> None:
    headers = {name.lower(): value for name, value in sent().items()}
    assert standardwebhooks.Webhook(SECRET).verify(BODY.decode(), headers) == {"amount": 5}
    svix.webhooks.Webhook(SECRET).verify(BODY, headers)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(SECRET).verify('{"amount":6}', headers)
    with pytest.raises(svix.webhooks.WebhookVerificationError):
        svix.webhooks.Webhook(SECRET).verify(b'{"amount":6}', headers)


def test_during_a_rotation_either_secret_verifies() -> None:
    headers = sent("the older secret", SECRET)
    assert verify(SECRET, headers, BODY)
    assert verify("the older secret", headers, BODY)
    assert verify(["unknown", SECRET], headers, BODY)
    lowered = {name.lower(): value for name, value in headers.items()}
    assert standardwebhooks.Webhook(SECRET).verify(BODY.decode(), lowered)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"webhook-id": "sub.7"},
        sent() | {"webhook-timestamp": "soon"},
        sent() | {"webhook-signature": "v1,AAAA"},
        sent() | {"webhook-signature": "v2," + sent()["webhook-signature"][3:]},
        sent() | {"webhook-id": "sub.8"},
        sent(at=time.time() - 400),
        sent(at=time.time() + 100_000),
        sent("another secret"),
    ],
)
def test_other_requests_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(WebhookInvalid):
        verify(SECRET, headers, BODY)


@given(st.binary(max_size=50), st.integers(0, 399))
def test_one_flipped_bit_of_the_body_is_noticed(body: bytes, bit: int) -> None:
    headers = sent(body=body, at=1000)
    verify(SECRET, headers, body, now=1000)
    if bit < len(body) * 8:
        altered = bytearray(body)
        altered[bit // 8] ^= 1 << bit % 8
        with pytest.raises(WebhookInvalid):
            verify(SECRET, headers, bytes(altered), now=1000)
