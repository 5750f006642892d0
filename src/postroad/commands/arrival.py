"""A command on its way through the stages, and the message that it becomes. Pure."""

from typing import Any

import msgspec

from postroad.api.commands import (
    ID_HEADER,
    NAME_HEADER,
    PATH_HEADER,
    SENT_AT_HEADER,
    SOURCE_HEADER,
    TARGET_HEADER,
    DispatchPath,
)
from postroad.commands.fast import Escalation
from postroad.commands.records import RouteRecord
from postroad.commands.registry_view import KnownRoute, Sender
from postroad.commands.replay_mark import ReplayMark
from postroad.commands.seen_commands import FirstDelivery
from postroad.commands.shield import Accepted, Invalid
from postroad.kernel.context import RequestContext
from postroad.kernel.errors import PostroadError
from postroad.kernel.ids import derived_id
from postroad.queues.records import StoredMessage


class Arrival(msgspec.Struct, frozen=True):
    """A command on its way: who sends it, when it arrived, and why it left the fast path."""

    context: RequestContext
    sender: Sender
    received_at_ms: int
    started: float
    escalated: Escalation | None
    body: bytes
    replay: ReplayMark | None

    @property
    def replay_fields(self) -> dict[str, Any]:
        return {} if self.replay is None else self.replay.event_fields


class Decision(msgspec.Struct, frozen=True):
    """What the stages decided. `route` is the one to deliver by, else `problem` says why there is none. `first`: this worker has
    delivered the command before."""

    path: DispatchPath
    escalated: Escalation | None
    route: KnownRoute | None = None
    problem: Invalid | PostroadError | None = None
    first: FirstDelivery | None = None
    is_stale: bool = False


def derived(arrival: Arrival, command: Accepted, kind: str) -> str:
    """An id that the same command has in every attempt. The HMAC stands for payload, time and name."""
    if arrival.replay is not None:
        return arrival.replay.derived_id(arrival.sender.source, command.command_id, kind)
    return derived_id(
        command.sent_at_ms, arrival.sender.source, command.target, command.command_id, command.version_id, command.hmac, kind
    )


def message_of(arrival: Arrival, command: Accepted, record: RouteRecord, path: str) -> StoredMessage:
    return StoredMessage(
        v=1,
        id=derived(arrival, command, "message"),
        job=derived(arrival, command, "job"),
        at=arrival.received_at_ms,
        headers={
            ID_HEADER: command.command_id,
            SOURCE_HEADER: arrival.sender.source,
            TARGET_HEADER: record.target,
            NAME_HEADER: command.name,
            SENT_AT_HEADER: command.timestamp,
            PATH_HEADER: path,
            **({} if arrival.replay is None else arrival.replay.headers),
        },
        source=arrival.sender.source,
        trace=arrival.context.traceparent,
        payload=msgspec.Raw(command.payload),
    )
