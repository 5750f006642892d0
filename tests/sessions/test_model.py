"""Sessions compared with a model: for random operations through two gateways that may be interrupted at any request, no message
is lost, repeated or out of order, and ended sessions do not reappear.

`HYPOTHESIS_PROFILE=thorough pytest tests/sessions/test_model.py --timeout 3600` is the long run.
"""

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from postroad.api.sessions import SessionNotFound
from postroad.api.streams import StreamNotFound
from postroad.sessions import fanout, subscribers
from postroad.sessions.rules import pattern_matches
from tests.gateway import ShiftedClock
from tests.sessions.interrupted import interrupted
from tests.sessions.processes import JSON, TTL_SECONDS, Process, decoded, open_process, restarted
from tests.tiers import long_runs

pytestmark = pytest.mark.slow

SESSIONS = ["s1", "s2", "s3", "s4", "s5"]
SOURCES = ["a1", "a2", "b"]
WANTED = [*SOURCES, "a*", "*"]

NAMES = (
    *["subscribe"] * 5,
    *["publish"] * 6,
    *["crash"] * 4,
    *["unsubscribe", "append", "interrupt"] * 2,
    *["touch", "later", "end", "drop", "clean", "complete"],
)
STEPS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 1), st.integers(0, 4), st.integers(0, 4), st.integers(1, 14)),
    min_size=10,
    max_size=35,
)


@dataclass
class ModelSession:
    """Subscriptions with their start, and the messages it must have of each source; messages it may have are marked."""

    expires_ms: int
    since: dict[str, int] = field(default_factory=dict)
    got: dict[str, list[tuple[int, bool]]] = field(default_factory=lambda: {source: [] for source in SOURCES})

    def join_payloads(self, source: str) -> int | None:
        found = [since for wanted, since in self.since.items() if wanted == source or pattern_matches(wanted, source)]
        return min(found, default=None)

    def lacks(self, source: str, messages: list[int]) -> list[int]:
        joined = self.join_payloads(source)
        has = {message for message, _ in self.got[source]}
        return [] if joined is None else [message for message in messages if message > joined and message not in has]


class Player:
    """Executes each operation on the sessions and on the model. Time in the model is a counter of operations."""

    def __init__(self, processes: list[Process], clock: ShiftedClock) -> None:
        self.processes, self.clock = processes, clock
        self.now = 0
        self.messages: dict[str, list[int]] = {source: [] for source in SOURCES}
        self.sessions: dict[str, ModelSession] = {}

    def _tick(self) -> int:
        self.now += 1
        return self.now

    def _living(self, session: str) -> ModelSession | None:
        found = self.sessions.get(session)
        return found if found is not None and found.expires_ms > self.clock() else None

    def _fan_out(self, source: str) -> None:
        for one in self.sessions.values():
            one.got[source] += [(message, True) for message in one.lacks(source, self.messages[source])]

    async def subscribe(self, gateway: int, session: int, wanted: int, _at: int) -> None:
        chosen = SESSIONS[session]
        found = self._living(chosen)
        done = await self.processes[gateway].subscribe(chosen, WANTED[wanted])
        assert done.is_new == (found is None)
        if found is None:
            found = self.sessions[chosen] = ModelSession(0)
        found.expires_ms = done.expires_at_ms
        found.since.setdefault(WANTED[wanted], self._tick())

    async def unsubscribe(self, gateway: int, session: int, wanted: int, _at: int) -> None:
        chosen = SESSIONS[session]
        found = self._living(chosen)
        if found is None:
            with pytest.raises(SessionNotFound):
                await self.processes[gateway].unsubscribe(chosen, WANTED[wanted])
            return
        await self.processes[gateway].unsubscribe(chosen, WANTED[wanted])
        before = {source: found.lacks(source, self.messages[source]) for source in SOURCES}
        found.since.pop(WANTED[wanted], None)
        for source, lacked in before.items():  # an interrupted fan-out may have made the copy
            left = found.lacks(source, self.messages[source])
            found.got[source] += [(message, False) for message in lacked if message not in left]

    async def publish(self, gateway: int, _session: int, wanted: int, _at: int) -> None:
        source = SOURCES[wanted % len(SOURCES)]
        message = self._tick()
        published = await self.processes[gateway].publish(source, b"%d" % message, JSON)
        assert published.fanout.failures == 0
        self.messages[source].append(message)
        self._fan_out(source)

    async def append(self, gateway: int, _session: int, wanted: int, _at: int) -> None:
        """Append without a fan-out, as after a crash."""
        source = SOURCES[wanted % len(SOURCES)]
        self.messages[source].append(self._tick())
        await self.processes[gateway].append(source, b"%d" % self.now, JSON)

    async def crash(self, gateway: int, session: int, wanted: int, at: int) -> None:
        """Interrupt a process at one of its requests and restart it."""
        await self.interrupt(gateway, session, wanted, at)
        self.processes[gateway] = restarted(self.processes[gateway])

    async def interrupt(self, gateway: int, session: int, wanted: int, at: int) -> None:
        """Interrupt a process at one of its requests; it continues with its caches."""
        await self.append(gateway, session, wanted, at)
        source, process = SOURCES[wanted % len(SOURCES)], self.processes[gateway]
        record = await process.streams.store.record(process.name(source))
        assert record is not None
        known = await process.streams.snapshot(process.name(source))
        with interrupted(at, is_made=session % 2 == 0) as work:
            await process.fan(source).run(record, known.tail)
        event("stopped half way" if work.calls == at else "done before")
        if work.calls < at:
            self._fan_out(source)

    async def touch(self, gateway: int, session: int, _wanted: int, _at: int) -> None:
        found = self._living(SESSIONS[session])
        if found is None:
            with pytest.raises(SessionNotFound):
                await self.processes[gateway].touch(SESSIONS[session])
        else:
            found.expires_ms = await self.processes[gateway].touch(SESSIONS[session])

    async def later(self, _gateway: int, _session: int, _wanted: int, _at: int) -> None:
        self.clock.ahead_ms += TTL_SECONDS * 600
        self.sessions = {session: found for session, found in self.sessions.items() if self._living(session)}

    async def end(self, gateway: int, session: int, _wanted: int, _at: int) -> None:
        if self._living(SESSIONS[session]) is None:
            with pytest.raises(SessionNotFound):
                await self.processes[gateway].end(SESSIONS[session])
        else:
            await self.processes[gateway].end(SESSIONS[session])
            del self.sessions[SESSIONS[session]]

    async def drop(self, gateway: int, session: int, _wanted: int, _at: int) -> None:
        """Delete the session's stream directly."""
        process = self.processes[gateway]
        if self._living(SESSIONS[session]) is None:
            with pytest.raises(StreamNotFound):
                await process.streams.delete(None, process.name(f"session:{SESSIONS[session]}"))
        else:
            await process.streams.delete(None, process.name(f"session:{SESSIONS[session]}"))
            del self.sessions[SESSIONS[session]]

    async def clean(self, gateway: int, _session: int, _wanted: int, _at: int) -> None:
        await self.processes[gateway].clean()
        for wanted in WANTED:
            listed = set(await self.processes[gateway].subscribers(wanted))
            assert listed == {session for session, found in self.sessions.items() if wanted in found.since}

    async def complete(self, gateway: int, _session: int, _wanted: int, _at: int) -> None:
        await self.processes[gateway].complete_all()
        for source in SOURCES:
            self._fan_out(source)
        await self.check()

    async def check(self) -> None:
        for session in SESSIONS:
            found = self._living(session)
            if found is None:
                with pytest.raises(StreamNotFound):
                    await self.processes[0].read(session)
                continue
            got = decoded(await self.processes[0].read(session))
            for source in SOURCES:
                mine = [message for message in got if message in self.messages[source]]
                must = [message for message, is_sure in found.got[source] if is_sure]
                may = [message for message, _ in found.got[source]]
                assert mine == [message for message in may if message in mine], f"{session} of {source}: once, in order"
                assert set(must) <= set(mine), f"{session} of {source}: all of it"
            assert set(got) <= {message for messages in self.messages.values() for message in messages}


async def play(steps: list[tuple[str, int, int, int, int]], url: str) -> None:
    clock = ShiftedClock()
    tenant = f"t{uuid.uuid4().hex[:12]}"
    processes = [await open_process(url, tenant, clock), await open_process(url, tenant, clock)]
    try:
        player = Player(processes, clock)
        for source in SOURCES:
            await processes[0].create(source, JSON)
        for step, *choices in steps:
            await getattr(player, step)(*choices)
        await player.complete(0, 0, 0, 0)
        await player.clean(1, 0, 0, 0)
        await player.check()
        assert await player.processes[1].complete_all() == 0
    finally:
        for process in processes:
            await process.close()


def test_sessions_behave_like_their_model(engine_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis is synchronous, so this test has its own event loop in its own thread."""
    monkeypatch.setattr(fanout, "_BATCH_COPIES_MAX", 2)
    monkeypatch.setattr(fanout, "_READ_MESSAGES_MAX", 2)
    monkeypatch.setattr(subscribers, "_COMPACT_FROM", 2)
    monkeypatch.setattr(subscribers, "_SNAPSHOT_PAGE", 2)
    with ThreadPoolExecutor(1) as apart:
        apart.submit(try_many, engine_url).result()


def try_many(url: str) -> None:
    with asyncio.Runner() as runner:

        @long_runs(20)
        @given(STEPS)
        def try_it(steps: list[tuple[str, int, int, int, int]]) -> None:
            runner.run(play(steps, url))

        try_it()
