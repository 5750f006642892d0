"""Records the traffic of topics as `topic.sampled` events. Runs in one process, the leader of the control role.

The states of all topics are read from the engine, so messages of other NATS clients count, too, and publishing needs no counters.
Topics without new messages since the last round are not sampled.
"""

import asyncio
from collections.abc import Callable

import structlog

from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamState, stream_states
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.jetstream.stream_lifecycle import RecordState
from postroad.kernel.errors import PostroadError
from postroad.telemetry.outbox import Outbox
from postroad.topics.events import TopicSampled
from postroad.topics.records import TopicRecord

_SUBJECTS = "t.>"
_DUTY_FACTOR = 20  # a round that takes long, because there are many topics, is repeated less often

log = structlog.get_logger("postroad.topics")


class TopicSampler:
    """`tenants` returns the tenants whose topics are sampled."""

    def __init__(
        self,
        connection: Connection,
        table: ReplicatedTable[TopicRecord],
        outbox: Outbox,
        tenants: Callable[[], list[str]],
        *,
        seconds: float,
    ) -> None:
        self._connection, self._table, self._outbox = connection, table, outbox
        self._tenants, self._seconds = tenants, seconds
        self._last: dict[str, tuple[str, int]] = {}  # incarnation and last sequence by stream
        self._sampled_at: float | None = None

    async def run(self) -> None:
        """Run until cancelled."""
        loop = asyncio.get_running_loop()
        self._sampled_at = None
        while True:
            started = loop.time()
            try:
                await self.sample()
            except PostroadError as problem:  # the next round covers this interval, too
                log.warning("topics_not_sampled", code=problem.code)
            await asyncio.sleep(max(self._seconds, (loop.time() - started) * _DUTY_FACTOR))

    async def sample(self) -> int:
        """Record an event for each topic with new messages since the last call; return how many. The first call records none."""
        states = await stream_states(self._connection, _SUBJECTS)
        now, before = asyncio.get_running_loop().time(), self._sampled_at
        tenants, events = set(self._tenants()), dict[str, list[TopicSampled]]()
        records = [record for key in self._table.keys_under() if (record := self._table.get(key)) is not None]
        last, self._last = self._last, {}
        for record in records:
            state = states.get(record.stream)
            if state is None or record.state is not RecordState.READY or record.tenant not in tenants:
                continue
            self._last[record.stream] = (record.incarnation, state.last_seq)
            incarnation, sequence = last.get(record.stream, (record.incarnation, 0))
            published = state.last_seq - (sequence if incarnation == record.incarnation else 0)
            if before is not None and published > 0:
                events.setdefault(record.tenant, []).append(_event(record, state, published, now - before))
        self._sampled_at = now
        for of_tenant in events.values():
            self._outbox.record(None, *of_tenant)
        return sum(map(len, events.values()))


def _event(record: TopicRecord, state: StreamState, published: int, seconds: float) -> TopicSampled:
    return TopicSampled(
        tenant=record.tenant,
        topic=record.name,
        published=published,
        messages=state.messages,
        bytes=state.bytes,
        seconds=round(seconds, 3),
    )
