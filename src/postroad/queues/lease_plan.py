"""What becomes of received messages: most are leased; expired ones are deleted, and those without attempts left become dead
letters. And acknowledgements that are prepared. Pure, apart from the log.
"""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import structlog

from postroad.api.queues import Priority
from postroad.crypto.signing import Signer
from postroad.jetstream.deliveries import Delivery, DeliveryRef
from postroad.kernel.context import RequestContext
from postroad.kernel.spans import Tracer
from postroad.queues import job_events
from postroad.queues.backend import Settlement
from postroad.queues.events import JobEvent
from postroad.queues.lease_states import Step, Transition
from postroad.queues.ordered_leases import MakeMessage
from postroad.queues.records import QueueRecord, Receipt, StoredMessage, TokenRef, read_message, trace_of
from postroad.queues.rules import is_last_attempt

_UNREADABLE_RETRY_MS = 3_600_000

T = TypeVar("T")
FirstLease = Callable[[QueueRecord, int], int | None]  # the time of the first lease of a message, by its sequence

log = structlog.get_logger("postroad.queues")


class PreparedAck(NamedTuple):
    """Acknowledgements of one request, with the time of its beginning for its span."""

    context: RequestContext
    record: QueueRecord
    receipts: Sequence[Receipt]
    start_ns: int


class LeasePlan(Generic[T]):
    """The deliveries that were added, in order, with leases from `now` on."""

    def __init__(
        self,
        make: "MakeMessage[T]",
        record: QueueRecord,
        priority: Priority,
        signer: Signer,
        tracer: Tracer | None,
        first_lease_ms: FirstLease,
        *,
        now: int,
        lease_ms: int,
    ) -> None:
        self.record, self.priority, self.now = record, priority, now
        self._make, self._signer, self._tracer, self._first_lease_ms = make, signer, tracer, first_lease_ms
        self._lease_ms, self._deadline, self._owner = lease_ms, now + lease_ms, record.owner
        self._retention_ms = record.settings.retention_ms
        self.messages: list[T] = []
        self.receipts: list[Receipt] = []
        self.events: list[JobEvent] = []
        self.waits_ms: list[int] = []  # from publish to first lease
        self.leases: list[tuple[Delivery, int]] = []
        self.transitions: list[Transition] = []
        self.expired: list[Settlement] = []
        self.exhausted: list[tuple[DeliveryRef, StoredMessage]] = []

    @property
    def is_ordinary(self) -> bool:
        """True if all messages are leased."""
        return len(self.messages) == len(self.leases) and not self.expired and not self.exhausted

    def add(self, delivery: Delivery) -> None:
        ref = delivery.ref
        stored = _readable(delivery, self.record)
        if stored is None:
            self.leases.append((delivery, _UNREADABLE_RETRY_MS))
            self.transitions.append(transition_of(ref, Step.RETRIED, self.now, self.now + _UNREADABLE_RETRY_MS))
        elif 0 < stored.expires <= self.now or self._is_over_retention(ref):
            self.expired.append((ref, None))
        elif is_last_attempt(self.record.settings, ref.attempt - 1):
            self.exhausted.append((ref, stored))
        else:
            self._lease(delivery, stored)

    def _is_over_retention(self, ref: DeliveryRef) -> bool:
        return bool(self._retention_ms) and ref.stored_at_ns // 1_000_000 + self._retention_ms <= self.now

    def _lease(self, delivery: Delivery, stored: StoredMessage) -> None:
        ref, record, now = delivery.ref, self.record, self.now
        is_first = ref.attempt == 1
        first_ms = now if is_first else self._first_lease_ms(record, ref.stream_sequence) or now
        receipt = Receipt(
            stream_sequence=ref.stream_sequence,
            consumer_sequence=ref.consumer_sequence,
            attempt=ref.attempt,
            stored_at_ns=ref.stored_at_ns,
            leased_at_ms=now,
            deadline_ms=self._deadline,
            message_id=stored.id,
            job_id=stored.job,
            priority=self.priority,
            token=ref.token if isinstance(ref, TokenRef) else b"",
            trace=trace_of(self._tracer, stored),
        )
        signed = self._signer.sign(self._owner, receipt.to_bytes())
        self.leases.append((delivery, self._lease_ms))
        self.transitions.append(transition_of(ref, Step.LEASED, now, self._deadline, first_ms=first_ms))
        self.messages.append(self._make(stored, ref.attempt, signed, first_ms, None))
        self.receipts.append(receipt)
        self.events.append(job_events.leased(record, receipt, stored.at))
        if is_first:
            self.waits_ms.append(max(0, now - stored.at))


def transition_of(
    delivery: DeliveryRef | Receipt, step: Step, at_ms: int, until_ms: int = 0, receipt_until_ms: int = 0, *, first_ms: int = 0
) -> Transition:
    first_ms = 0 if first_ms == at_ms else first_ms
    return Transition(delivery.stream_sequence, delivery.attempt, step, at_ms, until_ms, receipt_until_ms, first_ms)


def _readable(delivery: Delivery, record: QueueRecord) -> StoredMessage | None:
    """None for a message that another client of the NATS server wrote: it must not block the queue."""
    try:
        return read_message(delivery.payload)
    except ValueError:
        log.error("message_unreadable", stream=record.stream, sequence=delivery.ref.stream_sequence)
        return None
