"""The shield: checks a command by its bytes, its sender and the time. Pure, and the same input gives the same result.

Order: size, structure, sender, type, time, secret, HMAC, signature. The time precedes the HMAC, so a replayed command is refused
by its time whatever it is signed with.
"""

import hmac
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from msgspec import UNSET

from postroad.api.command_signing import command_signature, payload_hmac
from postroad.api.commands import COMMAND_TYPE, CommandEnvelope
from postroad.commands.registry_view import KnownRoute, Sender
from postroad.commands.rules import SKEW_NEAR_SHARE, is_sampled, target_of
from postroad.kernel import json
from postroad.kernel.errors import InvalidRequest, MalformedJson
from postroad.kernel.json_keys import duplicate_key, shape_of
from postroad.kernel.names import COMMAND

_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{64}")
_VERSION = re.compile(r"hmac-v[0-9]{1,9}")
_TEXT_CHARS_MAX = 200
_FIELDS = {
    "metadata": ({"id", "timestamp", "type", "hmac", "version_id"}, {"signature"}),
    "command": ({"target", "name", "payload"}, set[str]()),
}
_decoder = msgspec.json.Decoder(CommandEnvelope)
_encode = msgspec.json.Encoder().encode
_shape = shape_of(CommandEnvelope)


@dataclass(frozen=True, slots=True)
class ShieldPolicy:
    bytes_max: int
    window_ms: int


class Accepted(msgspec.Struct, frozen=True):
    """A command with a valid HMAC of its sender. `target` is as sent, `target_tenant` and `target_service` in full."""

    command_id: str
    target: str
    target_tenant: str
    target_service: str
    name: str
    payload: bytes
    timestamp: str
    sent_at_ms: int
    skew_ms: int
    version_id: str
    is_legacy: bool
    is_signed: bool
    hmac: str
    is_near_limit: bool
    is_sampled: bool


class Invalid(msgspec.Struct, frozen=True):
    """`command_id`, `target` and `name` as far as the request had them."""

    reason: str
    detail: str
    command_id: str | None = None
    target: str | None = None
    name: str | None = None


def inspect(body: bytes, sender: Sender, now_ms: int, policy: ShieldPolicy) -> Accepted | Invalid:
    if len(body) > policy.bytes_max:
        return Invalid("too-large", f"the command has {len(body)} bytes; {policy.bytes_max} is the limit")
    try:
        envelope = json.decode(_decoder, body)
    except MalformedJson as fault:
        return Invalid("not-json", fault.detail)
    except InvalidRequest as fault:
        return _structure_fault(body, fault.detail)
    repeated = _repeated_key(body, envelope)
    if repeated is not None:
        return _structure_fault(body, f"the key {repeated[:100]!r} is given twice in one object")
    return _inspect_fields(envelope, sender, now_ms, policy)


def _inspect_fields(envelope: CommandEnvelope, sender: Sender, now_ms: int, policy: ShieldPolicy) -> Accepted | Invalid:
    metadata, command = envelope.metadata, envelope.command
    name, target = command.name, target_of(sender.tenant, command.target)

    def invalid(reason: str, detail: str) -> Invalid:
        return Invalid(reason, detail, _shown(metadata.id), _shown(command.target), _shown(name))

    if metadata.type != COMMAND_TYPE:
        return invalid("type", f"metadata.type must be {COMMAND_TYPE!r}")
    if not _UUID.fullmatch(metadata.id):
        return invalid("bad-field", "metadata.id must be a UUID")
    if target is None:
        return invalid("bad-field", "command.target must be <service> or <tenant>/<service>")
    if not COMMAND.fullmatch(name):
        return invalid("bad-field", "command.name has 1 to 80 letters, digits and '_ . : -'")
    sent_at_ms = _epoch_ms(metadata.timestamp)
    if sent_at_ms is None:
        return invalid("timestamp-malformed", "metadata.timestamp must be an RFC 3339 time with a zone")
    skew_ms = now_ms - sent_at_ms
    if skew_ms > policy.window_ms:
        return invalid("timestamp-expired", f"the command was sent {skew_ms / 1000:.1f} s ago: check the clock, sign it again")
    if skew_ms < -policy.window_ms:
        return invalid("timestamp-future", f"the timestamp is {-skew_ms / 1000:.1f} s in the future: check the clock")
    if not metadata.hmac:
        return invalid("hmac-missing", "metadata.hmac is empty")
    secret = sender.secrets.get(metadata.version_id)
    if secret is None:
        return invalid("version-unknown", "the service has no secret of this version: poll GET /v1/tenant-config")
    if secret.expires_at_ms is not None and secret.expires_at_ms <= now_ms:
        return invalid("version-expired", "this version of the secret has expired: poll GET /v1/tenant-config")
    payload = bytes(command.payload)
    expected = payload_hmac(secret.key, payload, metadata.timestamp, name)
    if not hmac.compare_digest(expected.encode(), metadata.hmac.encode("utf-8", "surrogatepass")):
        return invalid("hmac-invalid", "metadata.hmac is not the HMAC of payload, timestamp and name as sent")
    is_signed = metadata.signature is not UNSET
    if is_signed:
        signature = command_signature(
            secret.key,
            command_id=metadata.id,
            source=sender.source,
            target=command.target,
            name=name,
            timestamp=metadata.timestamp,
            payload=payload,
        )
        if not hmac.compare_digest(signature.encode(), str(metadata.signature).encode("utf-8", "surrogatepass")):
            return invalid("signature-invalid", "metadata.signature does not match")
    command_id = metadata.id.lower()
    return Accepted(
        command_id,
        command.target,
        *target,
        name,
        payload,
        metadata.timestamp,
        sent_at_ms,
        skew_ms,
        metadata.version_id,
        not secret.is_current,
        is_signed,
        metadata.hmac,
        abs(skew_ms) >= SKEW_NEAR_SHARE * policy.window_ms,
        is_sampled(command_id),
    )


def _repeated_key(body: bytes, envelope: CommandEnvelope) -> str | None:
    """A key that is given twice. Encoding never makes a text longer, so one of the same length has no key besides those read."""
    return duplicate_key(body, _shape) if _shape is not None and len(_encode(envelope)) != len(body) else None


def signature_fault(command: Accepted, route: KnownRoute) -> Invalid | None:
    """The fault of a command that lacks the signature which its route requires."""
    if command.is_signed or route.record.signature != "required":
        return None
    detail = "the route requires metadata.signature"
    return Invalid("signature-missing", detail, command.command_id, command.target, command.name)


def _epoch_ms(text: str) -> int | None:
    if not _TIME.fullmatch(text):
        return None
    try:
        return int(datetime.fromisoformat(text.upper()).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


# Faults of the structure: the body is JSON, but not an envelope.


def _structure_fault(body: bytes, detail: str) -> Invalid:
    """The reason of a body that was refused, by a second look at it. `command.source` precedes every other fault."""
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return Invalid("not-json", detail)
    reason, detail = _reason(found, detail)
    metadata, command = _part(found, "metadata"), _part(found, "command")
    return Invalid(reason, detail, _shown(metadata.get("id")), _shown(command.get("target")), _shown(command.get("name")))


def _part(found: Any, name: str) -> dict[str, Any]:
    part = found.get(name) if isinstance(found, dict) else None
    return part if isinstance(part, dict) else {}


def _reason(found: Any, detail: str) -> tuple[str, str]:
    if not isinstance(found, dict):
        return "bad-field", "the command must be an object"
    command = found.get("command")
    if isinstance(command, dict) and "source" in command:
        return "source-present", "command.source must not be sent: it is set from the credential"
    for name in found:
        if name not in _FIELDS:
            return "unknown-field", f"unknown field {_shown(name)!r}"
    for part, (required, optional) in _FIELDS.items():
        fields = found.get(part)
        if part not in found:
            return "missing-field", f"{part} is missing"
        if not isinstance(fields, dict):
            return "bad-field", f"{part} must be an object"
        for name in fields:
            if name not in required and name not in optional:
                return "unknown-field", f"unknown field {_shown(f'{part}.{name}')!r}"
        if part == "metadata" and fields.get("hmac") in (None, ""):
            return "hmac-missing", "metadata.hmac is missing"
        for name in sorted(required):
            if name not in fields:
                return "missing-field", f"{part}.{name} is missing"
    return "bad-field", detail


def _shown(value: object) -> str | None:
    """A text of the request for events and errors, None if it is not a text or too long. Lone surrogates cannot be encoded."""
    if not isinstance(value, str) or not 0 < len(value) <= _TEXT_CHARS_MAX:
        return None
    return value.encode("utf-8", "replace").decode()
