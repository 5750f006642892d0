"""Verifies envelopes as receivers do: with the certificate that they name, and the fields that SNS documents."""

import asyncio
import base64
import urllib.request
from collections.abc import Mapping
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from tests.sns.conftest import SnsTenant

_FIELDS = {
    "Notification": ["Message", "MessageId", "Subject", "Timestamp", "TopicArn", "Type"],
    "SubscriptionConfirmation": ["Message", "MessageId", "SubscribeURL", "Timestamp", "Token", "TopicArn", "Type"],
}


async def fetch(url: str) -> bytes:
    def get() -> bytes:
        with urllib.request.urlopen(url, timeout=10) as response:
            body: bytes = response.read()
            return body

    return await asyncio.to_thread(get)


async def verify(tenant: SnsTenant, envelope: Mapping[str, Any]) -> None:
    """Raises AssertionError if the signature does not match."""
    assert envelope["SigningCertURL"].startswith(f"{tenant.aws.gateway.url}/sns/SimpleNotificationService-")
    certificate = x509.load_pem_x509_certificate(await fetch(envelope["SigningCertURL"]))
    fields = _FIELDS.get(envelope["Type"], _FIELDS["SubscriptionConfirmation"])
    text = "".join(f"{name}\n{envelope[name]}\n" for name in fields if name in envelope)
    algorithm = {"1": hashes.SHA1(), "2": hashes.SHA256()}[envelope["SignatureVersion"]]
    key = certificate.public_key()
    assert isinstance(key, RSAPublicKey)
    try:
        key.verify(base64.b64decode(envelope["Signature"]), text.encode(), padding.PKCS1v15(), algorithm)
    except InvalidSignature as exc:
        raise AssertionError("the signature does not match") from exc
