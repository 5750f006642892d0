"""The archive of commands: the line after an outcome event, with the payload as it was sent. Pure.

A payload is stored as text only if its HMAC is valid, so only such commands can be replayed. The HMAC of a command that was
refused for another reason, such as its time, is checked here.
"""

import hmac
from typing import Any

import msgspec

from postroad.api.command_signing import payload_hmac
from postroad.commands.events import (
    CommandArchived,
    CommandDelivered,
    CommandDuplicate,
    CommandEvent,
    CommandFailed,
    CommandRefused,
)
from postroad.commands.registry_view import RegistryView, Sender
from postroad.commands.rules import target_of
from postroad.commands.shield import Accepted
from postroad.kernel.archived_text import ArchivedText, archived_text
from postroad.kernel.clock import rfc3339

_TEXT_CHARS_MAX = 200


class _Metadata(msgspec.Struct):
    timestamp: Any = None
    hmac: Any = None
    version_id: Any = None


class _Command(msgspec.Struct):
    target: Any = None
    name: Any = None
    payload: msgspec.Raw = msgspec.Raw(b"")


class _Envelope(msgspec.Struct):
    """As much of an invalid command as can be read."""

    metadata: _Metadata = msgspec.field(default_factory=_Metadata)
    command: _Command = msgspec.field(default_factory=_Command)


_decode = msgspec.json.Decoder(_Envelope).decode
_OUTCOMES: dict[type[CommandEvent], str] = {
    CommandDelivered: "delivered",
    CommandFailed: "failed",
    CommandRefused: "invalid",
    CommandDuplicate: "duplicate",
}


class CommandArchive:
    """Makes the archived lines. `view` knows which routes have `archive: false`."""

    def __init__(self, view: RegistryView, bytes_max: int) -> None:
        self._view, self._bytes_max = view, bytes_max

    def line(self, event: CommandEvent, sender: Sender, received_at_ms: int, command: Accepted, line_id: str) -> tuple[Any, ...]:
        """The line of a valid command, none if its route is not archived. `line_id` may be empty."""
        if not self._is_archived(sender, command.target_tenant, command.target_service, command.name):
            return ()
        target = f"{command.target_tenant}/{command.target_service}"
        text = archived_text(command.payload)
        return (_archived(event, received_at_ms, line_id, target, command.name, command.timestamp, text),)

    def invalid_line(self, event: CommandRefused, sender: Sender, received_at_ms: int, body: bytes) -> tuple[Any, ...]:
        """The line of a command that the shield refused, as far as it can be read."""
        envelope = _read(body) if len(body) <= self._bytes_max else _Envelope()
        metadata, command = envelope.metadata, envelope.command
        place = target_of(sender.tenant, event.target) if event.target is not None else None
        name = event.command_name
        if place is not None and name is not None and not self._is_archived(sender, *place, name):
            return ()
        target = event.target if place is None else "/".join(place)
        payload = bytes(command.payload)
        text = archived_text(payload, is_hash_only=not _is_authentic(envelope, sender, received_at_ms))
        sent_at = metadata.timestamp if isinstance(metadata.timestamp, str) else None
        sent_at = sent_at if sent_at is not None and sent_at.isprintable() and len(sent_at) <= _TEXT_CHARS_MAX else None
        return (_archived(event, received_at_ms, "", target, name, sent_at, text if payload else ArchivedText(None, None, 0)),)

    def _is_archived(self, sender: Sender, tenant: str, service: str, name: str) -> bool:
        """False for a route with `archive: false`. Routes of other tenants count only for senders that have a grant: others must
        not learn from the archive which routes exist."""
        route = self._view.route(tenant, service, name)
        if route is None or route.record.archive:
            return True
        return tenant != sender.tenant and route.grant(sender.source, 0) is None


def _archived(
    event: CommandEvent,
    received_at_ms: int,
    line_id: str,
    target: str | None,
    name: str | None,
    sent_at: str | None,
    payload: ArchivedText,
) -> CommandArchived:
    fields: Any = event
    return CommandArchived(
        event_id=line_id,
        timestamp=rfc3339(received_at_ms),
        source=event.source,
        command_id=fields.command_id,
        target=target,
        command_name=name,
        sent_at=sent_at,
        payload=payload.text,
        payload_hash=payload.digest,
        payload_bytes=payload.size,
        outcome=_OUTCOMES[type(event)],
        reason=getattr(event, "reason", None),
        message_id=getattr(event, "message_id", None),
        replay=getattr(event, "replay", False),
        replay_reason=getattr(event, "replay_reason", None),
        replay_id=getattr(event, "replay_id", None),
    )


def _read(body: bytes) -> _Envelope:
    try:
        body.decode()
        return _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Envelope()


def _is_authentic(envelope: _Envelope, sender: Sender, at_ms: int) -> bool:
    """True if the payload has a valid HMAC of its sender."""
    metadata, command = envelope.metadata, envelope.command
    texts = (metadata.timestamp, metadata.hmac, metadata.version_id, command.name)
    if not all(isinstance(text, str) for text in texts) or not bytes(command.payload):
        return False
    secret = sender.secrets.get(metadata.version_id)
    if secret is None or (secret.expires_at_ms is not None and secret.expires_at_ms <= at_ms):
        return False
    try:
        expected = payload_hmac(secret.key, bytes(command.payload), metadata.timestamp, command.name)
    except UnicodeEncodeError:  # lone surrogates
        return False
    return hmac.compare_digest(expected.encode(), metadata.hmac.encode("utf-8", "surrogatepass"))
