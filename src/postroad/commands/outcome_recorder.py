"""Outcomes of commands: the event of each, durable before the response, with its archived line and the notices to the sender."""

from collections.abc import Callable
from functools import partial

import msgspec

from postroad.api.commands import CommandInvalid, RouteMissing
from postroad.commands import metrics
from postroad.commands.archive import CommandArchive
from postroad.commands.arrival import Arrival, Decision
from postroad.commands.dedupe import FirstEvent
from postroad.commands.events import CommandDelivered, CommandDuplicate, CommandEvent, CommandFailed, CommandRefused
from postroad.commands.records import RouteRecord
from postroad.commands.sender_notices import SenderNotices
from postroad.commands.shield import Accepted, Invalid
from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import EngineUnavailable, PostroadError
from postroad.queues.message_writes import Delivered
from postroad.telemetry.flow_counters import FlowCounters
from postroad.telemetry.outbox import Outbox

OnRecorded = Callable[[EngineUnavailable | None], None]


class OutcomeRecorder:
    """With `needs_telemetry` an event that cannot be stored is an error; otherwise the installation goes on without it."""

    def __init__(self, outbox: Outbox, notices: SenderNotices, archive: CommandArchive, *, needs_telemetry: bool) -> None:
        self.flows: FlowCounters | None = None  # set where flows are counted
        self._outbox, self._notices, self._archive, self.needs_telemetry = outbox, notices, archive, needs_telemetry

    @property
    def is_full(self) -> bool:
        """True if no outcome could be recorded now."""
        return self.needs_telemetry and self._outbox.is_full

    async def delivered(
        self,
        arrival: Arrival,
        command: Accepted,
        decision: Decision,
        record: RouteRecord,
        message_id: str,
        first: FirstEvent,
        line_id: str,
        latency_ms: float,
    ) -> None:
        """`first` are the parts of the event that a repeated delivery has, too; `line_id` is the id of the archived line,
        `latency_ms` the time until the command was stored.

        Raises EngineUnavailable.
        """
        await self._commit(arrival, *self._delivered_events(arrival, command, record, message_id, first, line_id))
        self._count_delivered(arrival, decision, record, latency_ms)
        if record.dedupe_mode == "strict":
            metrics.strict_seconds.observe(latency_ms / 1000)

    def delivered_callback(
        self,
        arrival: Arrival,
        command: Accepted,
        decision: Decision,
        record: RouteRecord,
        delivered: Delivered,
        first: FirstEvent,
        line_id: str,
        on_recorded: OnRecorded,
    ) -> None:
        """Like `delivered`, but calls `on_recorded` with the error or None, once the message is durable, too. Does not raise."""
        events = self._delivered_events(arrival, command, record, delivered.message_id, first, line_id)
        on_committed = partial(self._on_delivered, arrival, decision, record, first, on_recorded)
        self._outbox.commit_callback(arrival.context, events, on_committed, delivered.written)

    def _on_delivered(
        self,
        arrival: Arrival,
        decision: Decision,
        record: RouteRecord,
        first: FirstEvent,
        on_recorded: OnRecorded,
        problem: EngineUnavailable | None,
    ) -> None:
        if problem is not None and self.needs_telemetry:
            on_recorded(problem)
            return
        try:
            self._count_delivered(arrival, decision, record, first.latency_ms)
        finally:
            on_recorded(None)

    def _delivered_events(
        self, arrival: Arrival, command: Accepted, record: RouteRecord, message_id: str, first: FirstEvent, line_id: str
    ) -> list[CommandEvent]:
        event = _delivered_event(arrival, command, record, message_id, first)
        return self._with_line(arrival, command, event, line_id)

    def _count_delivered(self, arrival: Arrival, decision: Decision, record: RouteRecord, latency_ms: float) -> None:
        metrics.count_delivered(decision.path, latency_ms / 1000, record.target, record.command)
        self._count_flow(arrival, record.tenant, f"{record.service}/{record.command}")

    async def duplicate(
        self,
        arrival: Arrival,
        command: Accepted,
        decision: Decision,
        record: RouteRecord,
        message_id: str,
        first: FirstEvent | None,
    ) -> None:
        """Record a repetition. With `first`, the event of the first delivery is recorded again, unchanged: the process that
        stored the message may have died before it stored the event. Raises EngineUnavailable."""
        event = CommandDuplicate(
            source=arrival.sender.source,
            command_id=command.command_id,
            target=record.target,
            command_name=command.name,
            message_id=message_id,
            path=decision.path,
            **arrival.replay_fields,
        )
        before = () if first is None else (_delivered_event(arrival, command, record, message_id, first),)
        line = self._archive.line(event, arrival.sender, arrival.received_at_ms, command, "")
        await self._commit(arrival, *before, event, *line)
        metrics.outcome("duplicate").inc()
        metrics.duplicates.labels(decision.path).inc()

    async def refused(self, arrival: Arrival, fault: Invalid) -> PostroadError:
        """The error of an invalid command, once its event is durable."""
        event = CommandRefused(
            source=arrival.sender.source,
            command_id=fault.command_id,
            target=fault.target,
            command_name=fault.name,
            reason=fault.reason,
            **arrival.replay_fields,
        )
        line = self._archive.invalid_line(event, arrival.sender, arrival.received_at_ms, arrival.body)
        await self._commit(arrival, event, *line)
        metrics.outcome("invalid", fault.reason).inc()
        return CommandInvalid(fault.detail, extra={"reason": fault.reason})

    async def failed(self, arrival: Arrival, command: Accepted, decision: Decision, problem: PostroadError) -> PostroadError:
        """The error of a command that was not delivered, once its event is durable."""
        event = CommandFailed(
            event_id=_replay_id(arrival, command, f"failed {problem.code}"),
            source=arrival.sender.source,
            command_id=command.command_id,
            target=f"{command.target_tenant}/{command.target_service}",
            command_name=command.name,
            reason=problem.code,
            detail=problem.detail,
            escalated=None if decision.escalated is None else decision.escalated.value,
            **arrival.replay_fields,
            **problem.extra,  # type: ignore[arg-type]  # hints
        )
        line_id = _replay_id(arrival, command, f"archived {problem.code}")
        await self._commit(arrival, *self._with_line(arrival, command, event, line_id))
        metrics.outcome("failed", problem.code).inc()
        if not isinstance(problem, RouteMissing):
            self._count_flow(arrival, command.target_tenant, f"{command.target_service}/{command.name}", is_failed=True)
        problem.extra = {**problem.extra, "reason": problem.code}
        return problem

    def _count_flow(self, arrival: Arrival, tenant: str, route: str, *, is_failed: bool = False) -> None:
        if self.flows is not None:
            self.flows.add(tenant, f"source:{arrival.sender.source}", f"route:{route}", int(not is_failed), int(is_failed))

    def _with_line(self, arrival: Arrival, command: Accepted, event: CommandEvent, line_id: str) -> list[CommandEvent]:
        """The outcome of a valid command with its archived line and the notices to its sender."""
        line = self._archive.line(event, arrival.sender, arrival.received_at_ms, command, line_id)
        return [event, *line, *self._notices.of_command(arrival.sender, command, arrival.received_at_ms)]

    async def _commit(self, arrival: Arrival, *events: CommandEvent) -> None:
        """Raises EngineUnavailable, unless the installation goes on without telemetry."""
        try:
            await self._outbox.commit(arrival.context, *events)
        except EngineUnavailable:
            if self.needs_telemetry:
                raise


def _delivered_event(
    arrival: Arrival, command: Accepted, record: RouteRecord, message_id: str, first: FirstEvent
) -> CommandDelivered:
    """Identical for a first delivery and for its repetition with the same `first`."""
    event = CommandDelivered(
        event_id=first.event_id,
        timestamp="" if first.at_ms is None else rfc3339(first.at_ms),
        source=arrival.sender.source,
        command_id=command.command_id,
        target=record.target,
        command_name=command.name,
        message_id=message_id,
        path=first.path,
        escalated=first.escalated,
        dispatch_latency_ms=first.latency_ms,
        deliver_at=rfc3339(first.deliver_at_ms) if first.deliver_at_ms else None,
        shadow="rate-limit-exceeded" if first.is_over_limit else None,
    )
    # Merged into the call, the fields of a replay would double the cost of other commands' events.
    return event if arrival.replay is None else msgspec.structs.replace(event, **arrival.replay_fields)


def _replay_id(arrival: Arrival, command: Accepted, kind: str) -> str:
    """An id that a replay has in every attempt; empty for other commands, whose attempts fail one by one."""
    replay = arrival.replay
    return "" if replay is None else replay.derived_id(arrival.sender.source, command.command_id, kind)
