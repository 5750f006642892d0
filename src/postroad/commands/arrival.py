"""A command on its way through the stages, and the message that it becomes. Pure."""

from typing import Any, NamedTuple

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
from postroad.kernel.ids import derived_ids
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


class CommandIds(NamedTuple):
    """Ids that the same command has in every attempt: of its message, its job, its outcome event and its archived line."""

    message: str
    job: str
    delivered: str
    archived: str


def ids_of(arrival: Arrival, command: Accepted) -> CommandIds:
    """The HMAC stands for payload, time and name. A replay signs each attempt again, and has ids of its own."""
    source, replay = arrival.sender.source, arrival.replay
    if replay is not None:
        return CommandIds(*(replay.derived_id(source, command.command_id, kind) for kind in CommandIds._fields))
    text = f"{source}\0{command.target}\0{command.command_id}\0{command.version_id}\0{command.hmac}"
    return CommandIds(*derived_ids(len(CommandIds._fields), command.sent_at_ms, text))


def message_of(
    arrival: Arrival, command: Accepted, record: RouteRecord, path: str, ids: CommandIds, traceparent: str | None
) -> StoredMessage:
    return StoredMessage(
        v=1,
        id=ids.message,
        job=ids.job,
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
        trace=traceparent,
        payload=msgspec.Raw(command.payload),
    )
