"""Fan-out: from a source stream into the streams of all sessions that subscribe to it. Exactly once, in the source's order.

Nobody owns a source. How far its fan-out has come is a record; each batch of copies goes to the engine together with the record's
next version, and only if neither that record nor the list of subscribers has changed since they were read. Whoever loses that
race reads again and goes on from where the other is. So gateways and the delivery role may all work on one source, any of
them may die at any moment, and what is left undone is what the record says.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import purge_stream
from postroad.kernel.errors import Conflict, EngineRefused, Overloaded
from postroad.kernel.ids import new_id
from postroad.kernel.names import streams_store
from postroad.kernel.usage_counters import TenantCounters, UsageCounters
from postroad.sessions import metrics
from postroad.sessions.records import (
    STREAM_PREFIX,
    FanoutState,
    carrier_subject,
    decode_pattern,
    decode_state,
    encode,
    members_subject,
    patterns_subject,
    state_subject,
)
from postroad.sessions.rules import (
    SourceMessage,
    Step,
    SubscriberList,
    Write,
    eligible,
    envelope_alone,
    enveloped,
    next_step,
    pattern_matches,
)
from postroad.sessions.subscribers import Subscribers
from postroad.streams.offsets import offset_text
from postroad.streams.records import StreamRecord, media_type
from postroad.streams.store import Name, precondition

_BATCH = 900  # the engine takes 1,000 messages; the record and conditions are among them
_BATCH_BYTES = 8 * 1024 * 1024
_READ = 256
_READ_BYTES = 1024 * 1024
_TRIES = 50
_ROOM = 4096  # of a message, for its headers and its subject
_LATEST = "Nats-Rollup: sub\r\n"  # it takes the place of what was there


@dataclass(frozen=True, slots=True)
class FanoutResult:
    """How many sessions got one message, of how many that were to."""

    count: int
    successes: int


class Patterns:
    """The patterns of one tenant that somebody subscribed to, as this process knows them."""

    def __init__(self, connection: Connection, tenant: str) -> None:
        self._connection, self._store, self.subject = connection, streams_store(tenant), patterns_subject(tenant)
        self.position = 0
        self.names: set[str] = set()

    async def refresh(self) -> None:
        while True:
            page = await stream_reader.read(self._connection, self._store, self.subject, self.position + 1)
            for entry in page.entries:
                self.position = entry.sequence
                self.names.add(decode_pattern(entry.payload).pattern)
            if page.is_end:
                return

    def matching(self, stream: str) -> list[str]:
        return sorted(pattern for pattern in self.names if pattern_matches(pattern, stream))


class Fanout:
    """The fan-out of one source stream, as one process sees it."""

    def __init__(
        self, connection: Connection, committers: Committers, name: Name, patterns: Patterns, tally: TenantCounters
    ) -> None:
        self._connection, self._name, self._patterns, self._tally = connection, name, patterns, tally
        self._committer = committers.of(name.store)
        self._own = Subscribers(connection, name.tenant, name.id)
        self._groups: dict[str, Subscribers] = {}
        self._patterns_at = 0  # as of which the groups are; others may have read on
        self._state = FanoutState()
        self._state_at = 0
        self._roster: SubscriberList | None = None
        self._lock = asyncio.Lock()

    # What is known

    async def roster(self) -> SubscriberList:
        """Who subscribes, as of now or a moment ago: enough to choose the way by."""
        if not self._roster:  # none known: there may be some by now, and no batch would fail to tell
            async with self._lock:
                return await self._learn()
        return self._roster

    async def _learn(self) -> SubscriberList:
        """Read everything that has changed. Each part has a condition of its own, so they need not be of one moment.

        Until all is read nothing is known: conditions that are newer than the roster would let a batch pass that lacks somebody.
        """
        self._roster = None
        await self._patterns.refresh()
        matching, self._patterns_at = self._patterns.matching(self._name.id), self._patterns.position
        self._groups = {
            name: self._groups.get(name) or Subscribers(self._connection, self._name.tenant, name) for name in matching
        }
        entry = await stream_reader.last(self._connection, self._name.store, state_subject(self._name.tenant, self._name.id))
        if entry is not None:
            self._state, self._state_at = decode_state(entry.payload), entry.sequence
        for group in (self._own, *self._groups.values()):
            await group.refresh()
        self._roster = SubscriberList(group.by_session.values() for group in (self._own, *self._groups.values()))
        return self._roster

    async def refreshed(self) -> tuple[FanoutState, SubscriberList]:
        async with self._lock:
            roster = await self._learn()
            return self._state, roster

    # Working

    async def run(self, record: StreamRecord, until: int) -> FanoutResult:
        """Give everyone what they lack, at least up to the sequence `until`. Returns how that one message fared."""
        async with self._lock:
            roster = self._roster or await self._learn()
            successes = tries = 0
            media = media_type(record.content_type)
            while self._state.done < until and len(roster):
                messages = await self._pending(record, roster)
                if not messages:
                    break
                step = next_step(self._state, messages, roster, media, _BATCH, _BATCH_BYTES)
                try:
                    await self._make(step, media)
                except (Conflict, EngineRefused) as problem:  # refused: some of these copies have been made already
                    metrics.fanout_conflicts.inc()
                    tries += 1
                    if tries > _TRIES:
                        raise Overloaded("too many fan out this stream at once", retry_after=1) from problem
                    roster = await self._learn()
                    continue
                tries = 0
                successes += sum(write.message.sequence == until for write in step.writes)
            count = eligible(roster, until, media)
            # Whoever else was at work may have served some of them.
            return FanoutResult(count, max(successes, count if self._state.done >= until else 0))

    async def _pending(self, record: StreamRecord, roster: SubscriberList) -> Sequence[SourceMessage]:
        after = max(self._state.done, record.born, roster.first_joined())
        page = await stream_reader.read(self._connection, self._name.store, self._name.data, after + 1, _READ, _READ_BYTES)
        return [SourceMessage(entry.sequence, entry.payload) for entry in page.entries]

    async def _make(self, step: Step, media: str) -> None:
        """The copies and the state that says so, all or nothing, and only if nothing has changed that they rest on."""
        tenant, name = self._name.tenant, self._name.id
        subject = state_subject(tenant, name)
        identity = f"{name}:{step.state.done}:{step.state.at}:{step.state.upto}:fan"
        conditions = self._conditions()
        copies = self._copies(step.writes, media, conditions)
        state = PendingMessage(
            subject, encode(step.state), identity, _LATEST + precondition(subject, self._state_at), is_conditional=True
        )
        drafts = [state, *copies]
        for number in range(len(copies), len(conditions)):  # a message has room for one condition
            lines = _LATEST + conditions[number]
            drafts.append(PendingMessage(carrier_subject(tenant, name, number), b"", new_id(), lines, is_conditional=True))
        stored = await self._committer.append_together(drafts)
        self._state, self._state_at = step.state, stored[0].sequence
        metrics.fanned_out.add(tenant, len(copies))
        self._tally.fanout_messages += len(copies)

    def _conditions(self) -> list[str]:
        """Nobody has come or gone, and there is no new pattern."""
        found = [precondition(members_subject(self._name.tenant, self._name.id), self._own.position)]
        found.append(precondition(self._patterns.subject, self._patterns_at))
        found += [precondition(members_subject(self._name.tenant, name), group.position) for name, group in self._groups.items()]
        return found

    def _copies(self, writes: Sequence[Write], media: str, conditions: list[str]) -> list[PendingMessage]:
        wrapped: dict[int, bytes] = {}
        drafts: list[PendingMessage] = []
        for write in writes:
            message = write.message
            payload = message.payload
            if write.member.envelope:
                if message.sequence not in wrapped:
                    wrapped[message.sequence] = self._wrapped(message, media)
                payload = wrapped[message.sequence]
            target = Name(self._name.tenant, STREAM_PREFIX + write.member.session)
            condition = conditions[len(drafts)] if len(drafts) < len(conditions) else ""
            identity = f"{write.member.session}:{self._name.id}:{message.sequence}"
            drafts.append(PendingMessage(target.data, payload, identity, condition, is_conditional=bool(condition)))
        return drafts

    def _wrapped(self, message: SourceMessage, media: str) -> bytes:
        offset = offset_text(message.sequence)
        payload = enveloped(self._name.id, offset, message.payload, media)
        return payload if len(payload) + _ROOM <= self._connection.max_payload else envelope_alone(self._name.id, offset)

    async def tidy(self) -> None:
        """Write lists of subscribers anew whose logs have become long."""
        async with self._lock:
            for group in (self._own, *self._groups.values()):
                if group.is_long:
                    self._roster = None
                    await self._write_anew(group)

    async def _write_anew(self, group: Subscribers) -> None:
        subject = members_subject(group.tenant, group.name)
        drafts = group.anew()
        drafts[0] = msgspec.structs.replace(drafts[0], headers=precondition(subject, group.position), is_conditional=True)
        try:
            stored = await self._committer.append_together(drafts)
        except Conflict:
            return  # somebody came or went; another time
        await purge_stream(self._connection, self._name.store, subject, before=stored[0].sequence)


class FanoutPool:
    """The process's fans, those used last."""

    def __init__(self, connection: Connection, committers: Committers, traffic: UsageCounters, *, kept_max: int = 2000) -> None:
        self._connection, self._committers, self._traffic, self._kept_max = connection, committers, traffic, kept_max
        self._fans: dict[Name, Fanout] = {}
        self._patterns: dict[str, Patterns] = {}

    def of(self, name: Name) -> Fanout:
        fan = self._fans.pop(name, None)
        if fan is None:
            tally = self._traffic.of(name.tenant)
            fan = Fanout(self._connection, self._committers, name, self.patterns(name.tenant), tally)
            if len(self._fans) >= self._kept_max:
                self._fans.pop(next(iter(self._fans)))
        self._fans[name] = fan  # last in line to be let go
        return fan

    def patterns(self, tenant: str) -> Patterns:
        found = self._patterns.get(tenant)
        if found is None:
            found = self._patterns[tenant] = Patterns(self._connection, tenant)
        return found
