"""Sends the messages of a topic as push notifications to devices of Apple (APNs), with a provider token.

A message is `{"device": "<token in hex>", "title": "…", "body": "…"}`.

SECRET=… APNS_KEY_FILE=AuthKey_ABC.p8 APNS_KEY_ID=… APNS_TEAM_ID=… APNS_BUNDLE=com.example.app PORT=9000 python apns.py
"""

import hashlib
import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import jwt
from forwarder import Refused, ServiceError, Unavailable, json_headers, post, serve

from postroad.webhooks import Delivery

API = os.environ.get("APNS_API", "https://api.push.apple.com")
TOKEN_SECONDS = 45 * 60  # Apple accepts a token for an hour, and at most one new token in 20 minutes
PAYLOAD_BYTES_MAX = 4096
_DEVICE = re.compile(r"[0-9a-fA-F]{64,200}")


class ProviderToken:
    """The signed token that authenticates this server; renewed before it expires."""

    def __init__(self, key_pem: str, key_id: str, team: str) -> None:
        self._key, self._key_id, self._team = key_pem, key_id, team
        self._lock = threading.Lock()
        self._token, self._signed_at = "", float("-inf")

    def current(self) -> str:
        with self._lock:
            if time.monotonic() - self._signed_at > TOKEN_SECONDS:
                claims = {"iss": self._team, "iat": int(time.time())}
                self._token = jwt.encode(claims, self._key, algorithm="ES256", headers={"kid": self._key_id})
                self._signed_at = time.monotonic()
            return self._token

    def discard(self, token: str) -> None:
        """Sign a new one next time, unless that has happened since."""
        with self._lock:
            if token == self._token:
                self._signed_at = float("-inf")


def notification(delivery: Delivery) -> tuple[str, bytes]:
    """The device and the payload. Raises Refused."""
    try:
        message: Any = json.loads(delivery.body)
        device, alert = message["device"], {"title": message["title"], "body": message["body"]}
    except (ValueError, KeyError, TypeError):
        raise Refused("the message needs device, title and body") from None
    if not isinstance(device, str) or not _DEVICE.fullmatch(device):
        raise Refused("the device is not a token in hex")
    payload = json.dumps({"aps": {"alert": alert}}, ensure_ascii=False).encode()
    if len(payload) > PAYLOAD_BYTES_MAX:
        raise Refused(f"the notification has {len(payload)} bytes, more than {PAYLOAD_BYTES_MAX}")
    return device, payload


def headers_of(delivery: Delivery, token: str) -> dict[str, str]:
    """The collapse id is the same for every attempt: a device that gets a notification twice shows it once."""
    return {
        **json_headers(delivery),
        "authorization": f"bearer {token}",
        "apns-topic": os.environ["APNS_BUNDLE"],
        "apns-push-type": "alert",
        "apns-priority": "10",
        "apns-collapse-id": hashlib.sha256(delivery.id.encode()).hexdigest(),
    }


def forward_with(provider: ProviderToken, delivery: Delivery) -> None:
    device, payload = notification(delivery)
    token = provider.current()
    try:
        post("apns", f"{API}/3/device/{device}", payload, headers_of(delivery, token))
    except ServiceError as problem:
        reason = _reason(problem)
        if reason == "ExpiredProviderToken":
            provider.discard(token)
            raise Unavailable(f"{problem} {reason}") from None
        if problem.is_transient:
            raise Unavailable(f"{problem} {reason}", problem.retry_after) from None
        # Also for 410, an uninstalled app: a 410 to Postroad would disable the subscription for all devices.
        raise Refused(f"{problem} {reason}") from None


def _reason(problem: ServiceError) -> str:
    try:
        return str(json.loads(problem.body)["reason"])[:100]
    except (ValueError, KeyError, TypeError):
        return ""


def main() -> None:
    key = Path(os.environ["APNS_KEY_FILE"]).read_text()
    provider = ProviderToken(key, os.environ["APNS_KEY_ID"], os.environ["APNS_TEAM_ID"])
    serve(lambda delivery: forward_with(provider, delivery))


if __name__ == "__main__":
    main()
