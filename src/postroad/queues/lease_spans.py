"""Spans of consumers: received and settled messages."""

import time
from collections.abc import Sequence

from postroad.kernel.context import RequestContext
from postroad.kernel.spans import Tracer
from postroad.queues.records import QueueRecord, Receipt
from postroad.tracing.messaging import record_operation


def started_ns(tracer: Tracer | None) -> int:
    """The present time, where it is needed."""
    return 0 if tracer is None else time.time_ns()


def record_received(
    tracer: Tracer | None, context: RequestContext, record: QueueRecord, receipts: Sequence[Receipt], start_ns: int
) -> None:
    _record(tracer, context, record, "receive", "receive", receipts, start_ns)


def record_settled(
    tracer: Tracer | None, context: RequestContext, record: QueueRecord, name: str, receipts: Sequence[Receipt], start_ns: int
) -> None:
    """`name`: ack or nack."""
    _record(tracer, context, record, name, "settle", receipts, start_ns)


def _record(
    tracer: Tracer | None,
    context: RequestContext,
    record: QueueRecord,
    name: str,
    kind: str,
    receipts: Sequence[Receipt],
    start_ns: int,
) -> None:
    if tracer is None or not receipts or (context.span is None and not any(one.trace for one in receipts)):
        return
    traced = [one.traced() for one in receipts]
    record_operation(tracer, context.span, name, kind, record.tenant, record.name, traced, start_ns)
