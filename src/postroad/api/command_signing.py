"""Signatures of commands, made by senders and verified by the dispatcher.

    hmac      = HMAC-SHA256(secret, payload + timestamp + command.name)
    signature = HMAC-SHA256(secret, "v2\\n" id "\\n" source "\\n" target "\\n" name "\\n" timestamp "\\n" sha256(payload))

Both are lower-case hex. `payload` is the JSON text as it is sent, byte for byte; `timestamp` and the names are the texts of the
envelope. The optional signature also covers id, sender and target. The secret is the text that `GET /v1/tenant-config` returns.
"""

import hashlib
import hmac


def payload_hmac(secret: bytes, payload: bytes, timestamp: str, name: str) -> str:
    return hmac.digest(secret, payload + timestamp.encode() + name.encode(), "sha256").hex()


def command_signature(
    secret: bytes, *, command_id: str, source: str, target: str, name: str, timestamp: str, payload: bytes
) -> str:
    """`source` is `<tenant>/<service>`; the others are as in the envelope."""
    parts = ("v2", command_id, source, target, name, timestamp, hashlib.sha256(payload).hexdigest())
    return hmac.digest(secret, "\n".join(parts).encode(), "sha256").hex()
