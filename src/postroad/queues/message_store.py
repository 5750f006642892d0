"""Storage of messages in the streams of queues: the limit of a queue, conditional writes, markers."""

import asyncio
from collections.abc import Sequence

from postroad.api.queues import QueueNotFound
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage, PublishAck
from postroad.jetstream.connection import Connection
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.jetstream.stream_reader import Entry
from postroad.jetstream.submitted_write import Outcome
from postroad.kernel.errors import Conflict, EngineFull, EngineUnavailable, PostroadError, PreconditionFailed
from postroad.queues import metrics
from postroad.queues.backend import QueueBackend
from postroad.queues.capacity import QueueCapacity
from postroad.queues.group_shares import GroupShares
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.message_writes import DeliveryMarker, PendingPublish, message_write
from postroad.queues.records import DEFERRED, Marker, QueueRecord, StoredMessage, decode_marker
from postroad.queues.stats import QueueStatsReader

MARKER_READS = 5
MARKER_READ_SECONDS = 0.05


class MessageStore:
    def __init__(
        self,
        connection: Connection,
        committers: Committers,
        backend: QueueBackend,
        lifecycle: QueueLifecycle,
        stats: QueueStatsReader,
        table: ReplicatedTable[QueueRecord],
        shares: GroupShares,
    ) -> None:
        self._connection, self._committers, self._lifecycle, self._stats = connection, committers, lifecycle, stats
        self.shares, self._backend = shares, backend
        self._capacities: dict[str, QueueCapacity] = {}
        table.on_change(self._queue_changed)

    # Shares of groups

    async def placed(self, record: QueueRecord, message: StoredMessage) -> tuple[QueueRecord, StoredMessage, bool]:
        """The queue, prepared for the message, and whether it is deferred. `store` or `count` must follow.

        Raises QueueNotFound, EngineUnavailable.
        """
        if not message.group or record.is_ordered or not record.is_readable:
            return record, message, False
        is_deferred = await self.shares.decided(record, message)
        if is_deferred and not record.has_deferred:
            record = await self._lifecycle.with_feature(record, DEFERRED)
        self.shares.begin(record, message, is_deferred=is_deferred)
        return record, message, is_deferred

    def count(self, record: QueueRecord, pending: PendingPublish, outcome: Outcome) -> None:
        """Count a message of a group once it is known whether it is stored."""
        if pending.is_deferred:
            if not isinstance(outcome, Exception):
                metrics.deferred.add(record.tenant)
                self.shares.stored_deferred(record, pending.message)
        else:
            sequence = None if isinstance(outcome, Exception) else outcome[-1].sequence
            self.shares.stored(record, pending.message, sequence, pending.delay_ms)

    # Storing

    async def store(self, record: QueueRecord, pending: Sequence[PendingPublish]) -> list[Sequence[PublishAck] | PostroadError]:
        """Store the messages, up to the limit of the queue; an outcome for each, in order."""
        outcomes = await self._store(record, pending)
        for one, outcome in zip(pending, outcomes, strict=True):
            if one.message.group and record.is_readable:
                self.count(record, one, outcome)
        return outcomes

    async def _store(self, record: QueueRecord, pending: Sequence[PendingPublish]) -> list[Sequence[PublishAck] | PostroadError]:
        limit = record.settings.max_messages
        if not limit:
            return await self._backend.store(record, pending)
        capacity = self._capacity(record)
        reserved = await capacity.reserve(len(pending), limit)
        stored = 0
        try:
            outcomes = await self._backend.store(record, pending[:reserved])
            stored = sum(1 for one in outcomes if not isinstance(one, PostroadError) or isinstance(one, EngineUnavailable))
        finally:
            capacity.release(reserved, stored)
        full = EngineFull(f"the queue {record.name!r} has reached its limit of {limit} messages", retry_after=5)
        return outcomes + [full] * (len(pending) - reserved)

    async def store_in_order(
        self, record: QueueRecord, pending: Sequence[PendingPublish]
    ) -> list[Sequence[PublishAck] | PostroadError]:
        """Like `store`, with the messages of each group of an ordered queue in their order.

        They are stored together or, if one of them was published before, one after the other.
        """
        by_group: dict[str, list[int]] = {}
        for index, one in enumerate(pending):
            by_group.setdefault(one.message.group, []).append(index)
        groups = list(by_group.values())
        together: list[Sequence[PublishAck] | PostroadError] = [Conflict()] * len(groups)
        if not record.settings.max_messages:
            writes = [[write for index in group for write in pending[index].writes] for group in groups]
            together = await self._committers.of(record.stream).append_each(writes)
        outcomes: dict[int, Sequence[PublishAck] | PostroadError] = {}

        async def store_one_by_one(group: Sequence[int]) -> None:
            for index in group:
                [outcomes[index]] = await self.store(record, [pending[index]])

        divided: list[Sequence[int]] = []
        for group, stored in zip(groups, together, strict=True):
            if isinstance(stored, Conflict) and (len(group) > 1 or record.settings.max_messages):
                divided.append(group)
            elif isinstance(stored, PostroadError):
                outcomes |= dict.fromkeys(group, stored)
            else:
                position = 0
                for index in group:
                    end = position + len(pending[index].writes)
                    outcomes[index], position = stored[position:end], end
        await asyncio.gather(*(store_one_by_one(group) for group in divided))
        return [outcomes[index] for index in range(len(pending))]

    async def store_again(self, record: QueueRecord, messages: Sequence[tuple[StoredMessage, str]]) -> list[int | PostroadError]:
        """Store messages that were in a queue before, each with the id of its write; their sequences, or errors.

        Those of one group of an ordered queue are stored one after the other; one that cannot be stored holds up all behind it.
        """
        if record.is_ordered:
            return await self._store_groups_again(record, messages)
        placed: list[tuple[StoredMessage, bool]] = []
        writes: list[Sequence[PendingMessage]] = []
        for before, unique_id in messages:
            record, message, is_deferred = await self.placed(record, before)
            placed.append((message, is_deferred))
            writes.append((message_write(record, message, 0, unique_id, is_deferred=is_deferred),))
        taken = PreconditionFailed("the queue has another message with the same `uniqueKey`")
        outcomes = [
            taken if isinstance(one, Conflict) else one if isinstance(one, PostroadError) else one[-1].sequence
            for one in await self._committers.of(record.stream).append_each(writes)
        ]
        for (message, is_deferred), outcome in zip(placed, outcomes, strict=True):
            if not message.group or not record.is_readable:
                continue
            if not is_deferred:
                self.shares.stored(record, message, outcome if isinstance(outcome, int) else None, 0)
            elif isinstance(outcome, int):
                self.shares.stored_deferred(record, message)
        return outcomes

    async def _store_groups_again(
        self, record: QueueRecord, messages: Sequence[tuple[StoredMessage, str]]
    ) -> list[int | PostroadError]:
        committer, outcomes = self._committers.of(record.stream), dict[int, int | PostroadError]()

        async def store(group: Sequence[int]) -> None:
            problem: PostroadError | None = None
            for index in group:
                try:
                    if problem is None:
                        write = message_write(record, messages[index][0], 0, messages[index][1])
                        outcomes[index] = (await committer.append(write)).sequence
                except PostroadError as error:
                    problem = error
                if problem is not None:
                    outcomes[index] = problem

        by_group: dict[str, list[int]] = {}
        for index, (message, _) in enumerate(messages):
            by_group.setdefault(message.group, []).append(index)
        await asyncio.gather(*(store(group) for group in by_group.values()))
        return [outcomes[index] for index in range(len(messages))]

    def _capacity(self, record: QueueRecord) -> QueueCapacity:
        found = self._capacities.get(record.stream)
        if found is None:

            async def count() -> int:
                return await self._stats.count(record)

            found = self._capacities[record.stream] = QueueCapacity(count)
        return found

    async def read_marker(self, record: QueueRecord, subject: str, reads: int) -> Entry | None:
        """Read a marker. A replica may not have it yet when the leader reports the conflict: then read again."""
        for left in range(reads, 0, -1):
            entry = await stream_reader.last(self._connection, record.stream, subject)
            if entry is not None or left == 1:
                return entry
            await asyncio.sleep(MARKER_READ_SECONDS)
        return None

    async def first_of(self, record: QueueRecord, pending: PendingPublish, reads: int) -> tuple[Entry, bool] | None:
        """The marker of an earlier message with the same `dedupeId`, else with the same idempotency key; and whether it is the
        former."""
        for left in range(reads, 0, -1):
            for subject in (pending.dedupe_subject, pending.writes[0].subject if pending.body_hash else ""):
                entry = await self.read_marker(record, subject, 1) if subject else None
                if entry is not None:
                    return entry, subject == pending.dedupe_subject
            if left > 1:
                await asyncio.sleep(MARKER_READ_SECONDS)
        return None

    async def unique_entry(self, record: QueueRecord, pending: PendingPublish) -> Entry | None:
        """The message that has the unique key now, None if there is none, or if an idempotency key decides."""
        entry = await self.read_marker(record, f"{record.subject}.unique.{pending.message.unique}.*", MARKER_READS)
        if entry is not None and pending.body_hash:
            marker = await self.read_marker(record, pending.writes[0].subject, 1)
            return entry if marker is None else None  # the key decides, as it does once the job has ended
        return entry

    async def existing_marker(
        self, record: QueueRecord, markers: Sequence[DeliveryMarker], writes: Sequence[PendingMessage], reads: int
    ) -> tuple[DeliveryMarker, Marker] | None:
        """The first of the markers that exists, and what is stored. A replica may lack it for a moment: then read again."""
        for left in range(reads, 0, -1):
            for marker, write in zip(markers, writes, strict=True):
                entry = await self.read_marker(record, write.subject, 1)
                if entry is not None:
                    return marker, decode_marker(entry.payload)
            if left > 1:
                await asyncio.sleep(MARKER_READ_SECONDS)
        return None

    def _queue_changed(self, key: str, record: QueueRecord | None) -> None:
        """Drop the state of deleted queues, and fail their waiting writes."""
        if record is not None and record.state is not RecordState.DELETING:
            return
        tenant, _, token = key.partition(".")
        stream = f"Q_{tenant}__{token}"
        self._capacities.pop(stream, None)
        self._committers.forget(stream, QueueNotFound("the queue was deleted"))
