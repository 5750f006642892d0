"""The port between queues and the store of their messages.

Rules, schemas, dead letters, redrives, jobs, events and the audit log are above it and do not depend on the backend. A delivery
is identified by its `DeliveryRef`, which a receipt carries (`Receipt.ref`); `stream_sequence` and `attempt` identify it in the
lease log, whatever the backend.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from postroad.api.queues import BackendCannot, Priority
from postroad.jetstream.commit import PublishAck
from postroad.jetstream.deliveries import Delivery, DeliveryRef
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.errors import PostroadError
from postroad.queues.message_writes import PendingPublish
from postroad.queues.records import QueueRecord, Receipt

DeliveryGroup = tuple[Priority, Sequence[Delivery]]  # deliveries of messages with one priority
Settlement = tuple[DeliveryRef, int | None]  # None: the message is done; else it is delivered again after so many milliseconds
StoreOutcome = Sequence[PublishAck] | PostroadError
Fetched = Entry | PostroadError | None  # None: it is not in the queue any more
OnReceived = Callable[[Sequence[Delivery] | Exception], None]
OnSettled = Callable[[Exception | None], None]
ALL_SETTLED: Mapping[DeliveryRef, PostroadError] = {}


def require_readable(record: QueueRecord) -> None:
    """Raises BackendCannot for a queue whose ready and leased messages cannot be read."""
    if not record.is_readable:
        raise BackendCannot(
            f"the ready and leased messages of the queue {record.name!r} are in RabbitMQ, which cannot show or remove single "
            "ones; ask for the state `delayed`, read the dead letters or the jobs, or pull the messages"
        )


@dataclass(frozen=True, slots=True)
class BackendStats:
    """Messages by state. `waiting`: open requests of pulls. Both it and `oldest_at_ms` are None if the backend does not know."""

    ready: int = 0
    leased: int = 0
    deferred: int = 0
    overdue: int = 0
    retrying: int = 0
    delayed: int = 0
    waiting: int | None = None
    oldest_at_ms: int | None = None


class CallbackBackend(Protocol):
    """Calls of a backend without a task. They raise EngineUnavailable and Maintenance: then nothing happens later."""

    def receive_callback(self, record: QueueRecord, count: int, on_received: OnReceived) -> None:
        """Like `receive` of what is ready now in a queue without priorities: calls `on_received`, which must not raise."""

    def lease_now(self, record: QueueRecord, priority: Priority, leases: Sequence[tuple[Delivery, int]]) -> None:
        """Like `lease`."""

    def settle_callback(
        self, record: QueueRecord, priority: Priority, settlements: Sequence[Settlement], on_settled: OnSettled
    ) -> None:
        """Like `settle` with `is_synced` false: calls `on_settled`, which must not raise, when all leases have ended."""


class QueueBackend(Protocol):
    """Every call raises EngineUnavailable, or another `Unavailable`, if the backend does not answer; it may be repeated then."""

    def callbacks_of(self, record: QueueRecord) -> CallbackBackend | None:
        """The calls without a task for this queue; None if it has none."""
        return None

    async def long_lease_ms(self) -> int:
        """Longest lease that new queues can have, from delivery to its end; 0: no other than the settings say."""

    async def prepare(self, record: QueueRecord) -> None:
        """Called before a new queue is registered. Idempotent. Raises BackendCannot if it cannot be created, ever."""

    async def create(self, record: QueueRecord) -> None:
        """Create what the queue needs, or change it to the settings of the record. Idempotent. Raises EngineRefused."""

    async def delete(self, record: QueueRecord) -> None:
        """Delete what `create` made outside the queue's stream. Idempotent."""

    async def pause(self, record: QueueRecord, priorities: Sequence[Priority], *, is_paused: bool) -> None:
        """Begin no delivery while the queue is paused. Idempotent."""

    async def store(self, record: QueueRecord, pending: Sequence[PendingPublish]) -> list[StoreOutcome]:
        """An outcome for each message, in order. A message is durable, with its markers, if its outcome is no error; with
        Conflict there was a marker; after EngineUnavailable it may or may not be stored."""

    async def receive(self, record: QueueRecord, count: int, wait_seconds: float) -> Sequence[DeliveryGroup]:
        """Up to `count` messages, never more: those that are ready, or the first that become ready within `wait_seconds`.

        The caller must lease or release them at once. Raises QueueNotFound if the queue is deleted meanwhile.
        """

    async def release(self, record: QueueRecord, groups: Sequence[DeliveryGroup]) -> None:
        """Return received messages to the queue at once. Does not fail: else the backend returns them by itself, soon."""

    async def lease(self, record: QueueRecord, priority: Priority, leases: Sequence[tuple[Delivery, int]]) -> None:
        """Start leases of so many milliseconds. A message is not delivered to another consumer before its lease ends."""

    async def settle(
        self, record: QueueRecord, priority: Priority, settlements: Sequence[Settlement], *, is_synced: bool = True
    ) -> Mapping[DeliveryRef, PostroadError]:
        """End leases. On return, a message that is done is never delivered again. The errors of those whose lease is gone.

        With `is_synced` false that holds once the caller has synced the stream of the queue (`Committers.sync`).
        """

    async def discard(self, record: QueueRecord, priority: Priority, ref: DeliveryRef) -> None:
        """Let a message never be delivered again, even if its lease has ended meanwhile: it is stored elsewhere."""

    async def extend(
        self, record: QueueRecord, priority: Priority, refs: Sequence[DeliveryRef], lease_ms: int
    ) -> Mapping[DeliveryRef, PostroadError]:
        """Let leases end so many milliseconds from now. The errors of those that are gone."""

    async def fetch(self, record: QueueRecord, receipts: Sequence[Receipt]) -> Sequence[Fetched]:
        """The leased messages; the error of each whose lease is gone."""

    async def latest_delivery(self, record: QueueRecord, receipt: Receipt, attempt: int) -> Receipt | None:
        """The receipt with the numbers of the message's latest delivery, which `settle` accepts although its lease has ended.
        None if the message is gone."""

    async def redeliver_now(self, record: QueueRecord, entry: Entry, attempt: int) -> None:
        """Deliver a message at once that waits for its next attempt. Raises QueueNotFound."""

    def waiting_pulls(self) -> Mapping[str, int]:
        """Calls of `receive` in this process that wait for a message, by the stream of the queue."""

    async def stats(self, record: QueueRecord) -> BackendStats:
        """Raises QueueNotFound if the queue is being deleted."""

    async def count(self, record: QueueRecord) -> int:
        """The number of messages, whatever their state."""

    async def purge(self, record: QueueRecord) -> int:
        """Delete all messages, and return their number. Markers are kept."""
