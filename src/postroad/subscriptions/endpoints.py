"""Endpoints of subscriptions: their secrets and custom headers, decrypted for a delivery."""

import hmac

import msgspec
import structlog

from postroad.api.subscriptions import PushFormat
from postroad.crypto.secret_encryption import SecretCipher
from postroad.subscriptions.outgoing import Endpoint
from postroad.subscriptions.records import StoredSecret, SubscriptionRecord
from postroad.subscriptions.signatures import Signer

log = structlog.get_logger("postroad.subscriptions")


class Endpoints:
    """Decrypts each record once, and again when it has changed or a secret ended."""

    def __init__(self, cipher: SecretCipher) -> None:
        self._cipher = cipher
        self._known: dict[str, tuple[SubscriptionRecord, int | None, Endpoint]] = {}

    def encrypt_headers(self, owner: str, headers: dict[str, str]) -> str | None:
        return self._cipher.encrypt(owner, msgspec.json.encode(headers).decode()) if headers else None

    def encrypt_secret(self, owner: str, secret: str, now_ms: int) -> StoredSecret:
        return StoredSecret(encrypted=self._cipher.encrypt(owner, secret), created_at_ms=now_ms)

    def has_secret(self, record: SubscriptionRecord, secret: str) -> bool:
        """True if this is its newest secret. Raises DecryptionFailed."""
        newest = self._cipher.decrypt(record.secret_owner, record.secrets[-1].encrypted) if record.secrets else ""
        return hmac.compare_digest(newest.encode(), secret.encode())

    def of(self, record: SubscriptionRecord, now_ms: int) -> Endpoint:
        """Raises DecryptionFailed if the platform key is not the one that encrypted the secrets."""
        known = self._known.get(record.id)
        if known is not None and known[0] is record and (known[1] is None or now_ms < known[1]):
            return known[2]
        valid = [one for one in record.secrets if one.is_valid(now_ms)]
        changes_at = min((one.valid_until_ms for one in valid if one.valid_until_ms is not None), default=None)
        endpoint = Endpoint(
            subscription=record.id,
            tenant=record.tenant,
            topic=record.topic,
            url=record.url or "",
            ack_wait_ms=record.ack_wait_ms,
            signers=tuple(Signer(self._cipher.decrypt(record.secret_owner, one.encrypted)) for one in valid),
            headers=self._headers(record),
            format=record.format or PushFormat.RAW,
            replayed_to=0 if record.rewind is None else record.rewind.last,
        )
        self._known[record.id] = (record, changes_at, endpoint)
        return endpoint

    def _headers(self, record: SubscriptionRecord) -> dict[str, str]:
        if record.headers is None:
            return {}
        return msgspec.json.decode(self._cipher.decrypt(record.secret_owner, record.headers), type=dict[str, str])

    def on_change(self, key: str, record: SubscriptionRecord | None) -> None:
        """Forget a deleted subscription."""
        if record is None:
            self._known.pop(key.partition(".")[2], None)
