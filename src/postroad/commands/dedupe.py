"""Strict deduplication: the marker of a command, which is stored with its message in one batch, and what it says. Pure."""

import hashlib

import msgspec

from postroad.commands.arrival import CommandIds, Decision
from postroad.commands.limiter import Admission
from postroad.commands.registry_view import KnownRoute
from postroad.commands.shield import Accepted
from postroad.queues.message_writes import DeliveryMarker


class FirstEvent(msgspec.Struct, frozen=True, array_like=True):
    """The parts of the event of a first delivery that do not follow from the command. `at_ms` None: the time of recording."""

    event_id: str
    path: str
    escalated: str | None = None
    latency_ms: float = 0.0
    at_ms: int | None = None
    deliver_at_ms: int = 0
    is_over_limit: bool = False


_decode = msgspec.json.Decoder(FirstEvent).decode


def first_event(ids: CommandIds, decision: Decision, admission: Admission, latency_ms: float, at_ms: int | None) -> FirstEvent:
    return FirstEvent(
        ids.delivered,
        decision.path,
        None if decision.escalated is None else decision.escalated.value,
        latency_ms,
        at_ms,
        admission.deliver_at_ms,
        admission.is_over_limit,
    )


def body_hash(command: Accepted) -> str:
    """What must be equal when an id is used again. Target and name are those of the route."""
    return hashlib.sha256(command.payload).hexdigest()


def marker_of(route: KnownRoute, source: str, command: Accepted, event: FirstEvent) -> DeliveryMarker:
    """One for each route, sender and command id: tenants cannot block each other's ids."""
    return DeliveryMarker(
        owner=f"command {source} {route.key}",
        key=command.command_id,
        ttl_ms=route.record.dedupe_ttl_seconds * 1000,
        body=body_hash(command),
        note=msgspec.json.encode(event).decode(),
    )


def event_of(note: str) -> FirstEvent | None:
    """The event of the first delivery by the note of its marker, None if it cannot be read."""
    try:
        return _decode(note.encode())
    except msgspec.DecodeError:
        return None
