"""Progress of leased messages, reported by their workers. Of the reports of a message, one a second is recorded: the latest."""

import asyncio
from dataclasses import dataclass

from postroad.kernel.clock import Clock
from postroad.kernel.context import RequestContext
from postroad.queues import job_events
from postroad.queues.consuming import Consumer
from postroad.queues.events import JobProgressed
from postroad.telemetry.outbox import Outbox

_INTERVAL_SECONDS = 1.0


@dataclass(slots=True)
class _Waiting:
    """The latest report since the last one that was recorded."""

    report: tuple[RequestContext, JobProgressed] | None = None


class ProgressReports:
    def __init__(self, consumer: Consumer, outbox: Outbox, clock: Clock) -> None:
        self._consumer, self._outbox, self._clock = consumer, outbox, clock
        self._waiting: dict[str, _Waiting] = {}  # by message id, for a second after each recorded report

    async def report(self, context: RequestContext, queue: str, receipt_id: str, percent: float | None, note: str | None) -> int:
        """Record the progress soon; return when the lease ends.

        Raises QueueNotFound, ReceiptInvalid, LeaseExpired, AlreadySettled, JobWasCancelled, EngineUnavailable.
        """
        record, receipt = await self._consumer.held_lease(context, queue, receipt_id)
        event = job_events.progressed(record, receipt, self._clock(), percent, note)
        waiting = self._waiting.get(receipt.message_id)
        if waiting is not None:
            waiting.report = (context, event)
        else:
            self._record(receipt.message_id, context, event)
        return receipt.deadline_ms

    def _record(self, message_id: str, context: RequestContext, event: JobProgressed) -> None:
        self._outbox.record(context, event)
        self._waiting[message_id] = _Waiting()
        asyncio.get_running_loop().call_later(_INTERVAL_SECONDS, self._interval_over, message_id)

    def _interval_over(self, message_id: str) -> None:
        waiting = self._waiting.pop(message_id)
        if waiting.report is not None:
            self._record(message_id, *waiting.report)
