"""Progress of a delivery process on a simulated engine: stores at once, lost answers, replays, records that are not in memory."""

import asyncio
from collections.abc import Iterator
from unittest.mock import patch

import msgspec
import pytest

from postroad.api.subscriptions import SubscriptionState
from postroad.kernel.errors import Conflict, EngineUnavailable
from postroad.subscriptions import log_reader, topic_followers
from postroad.subscriptions.delivery_cursor import CursorState, DeliveryCursor
from postroad.subscriptions.endpoint_rules import BREAKER_FAILURES, Outcome
from postroad.subscriptions.owned_subscription import OwnedCursor, OwnedSubscription
from postroad.subscriptions.records import LIVE_CURSOR, ProgressRecord, ReplayRange
from tests.subscriptions.simulation import Engine, Process, Request, SimulatedFollower, SimulatedStreamReader, new_record


@pytest.fixture
def engine() -> Iterator[Engine]:
    with (
        patch.object(log_reader, "stream_reader", SimulatedStreamReader),
        patch.object(topic_followers, "TopicFollower", SimulatedFollower),
    ):
        made = Engine(new_record())
        yield made
        made.loop.close()


def _owned() -> OwnedSubscription:
    return OwnedSubscription(new_record(), {LIVE_CURSOR: OwnedCursor(LIVE_CURSOR, DeliveryCursor(CursorState(read_to=0)))})


def test_two_stores_at_once_follow_each_other(engine: Engine) -> None:
    """A release begins while the progress of the last half second is being stored."""
    process, owned = engine.start(), _owned()

    async def work() -> None:
        takeover = process.dispatcher._takeover
        await asyncio.gather(takeover.store(owned, owned.live), takeover.store(owned, owned.live, is_release=True))

    engine.loop.run(work())
    assert owned.live.revision == engine.revision == 2


def test_after_a_lost_answer_the_owner_stores_again(engine: Engine) -> None:
    process, owned = engine.start(), _owned()

    async def work() -> None:
        takeover = process.dispatcher._takeover
        storing = asyncio.create_task(takeover.store(owned, owned.live))
        await asyncio.sleep(0.003)  # stored, and not answered
        process.is_cut_off = True
        with pytest.raises(EngineUnavailable):
            await storing
        process.is_cut_off = False
        await takeover.store(owned, owned.live)
        other = engine.start().dispatcher._takeover
        with pytest.raises(Conflict):
            await other.store(owned, OwnedCursor(LIVE_CURSOR, owned.live.cursor))

    engine.loop.run(work())


def test_the_deleted_progress_of_a_cancelled_replay_loses_nothing_else(engine: Engine) -> None:
    """The task of a replay deletes its progress; the owner, which may not know yet, keeps its subscription."""
    deliveries: list[int] = []

    def succeed(request: Request) -> None:
        deliveries.append(request.sequence)
        request.respond(Outcome.DELIVERED, 200)

    async def work() -> None:
        engine.on_request = succeed
        process: Process = engine.start().begin()
        for _ in range(30):
            engine.publish("key.a")
        await engine.run_for(2)
        replay = ReplayRange(task="t", first=1, last=30, rate_per_second=5)
        engine.change(replays=(replay,))
        await engine.run_for(2)
        owned = process.dispatcher._owned["acme.sub"]
        del engine.progress[f"progress.acme.sub-1.{replay.cursor}"]
        await engine.run_for(1)
        assert process.dispatcher._owned["acme.sub"] is owned
        engine.change(replays=())
        await engine.run_for(5)
        assert deliveries[:30] == list(range(1, 31))
        assert len(deliveries) < 60
        await process.stop()

    engine.loop.run(work())


def test_messages_whose_topic_is_not_in_memory_wait_for_it(engine: Engine) -> None:
    """The registry drops a record while it is read again. That is not the removal of a message."""

    async def work() -> None:
        engine.on_request = lambda request: request.respond(Outcome.DELIVERED, 200)
        process = engine.start().begin()
        await engine.run_for(1)
        process.dispatcher._reader._cache._bytes_max = 0  # every message is read from the log
        process.knows_topic = False
        engine.publish("key.a")
        await engine.run_for(0.5)
        assert not engine.delivered
        process.knows_topic = True
        await engine.run_for(5)
        assert engine.delivered == {1: 1}
        await process.stop()

    engine.loop.run(work())


def test_a_changed_pattern_applies_to_a_catch_up_that_is_running(engine: Engine) -> None:
    async def work() -> None:
        engine.on_request = lambda request: request.respond(Outcome.DELIVERED, 200)
        process = engine.start().begin()
        engine.change(state=SubscriptionState.PAUSED)
        await engine.run_for(1)
        for subject in ("key.a", "other.c", "key.a", "other.c"):
            engine.publish(subject)
        before = engine.reads
        engine.change(state=SubscriptionState.ACTIVE)
        while engine.reads == before:  # noqa: ASYNC110  # virtual time
            await asyncio.sleep(0.0005)
        engine.change(patterns=(">",))
        await engine.run_for(5)
        assert set(engine.delivered) == {1, 2, 3, 4}
        await process.stop()

    engine.loop.run(work())


def _attempts_of(engine: Engine, process: Process) -> list[int]:
    """The sequences that a process attempts from now on; all attempts fail."""
    found: list[int] = []

    def fail(request: Request) -> None:
        if request.process is process:
            found.append(request.sequence)
        request.respond(Outcome.TRANSIENT, 500)

    engine.on_request = fail
    return found


@pytest.mark.parametrize("is_crash", [True, False], ids=["after a crash", "after a stop"])
def test_the_next_owner_keeps_the_pause_that_the_endpoint_asked_for(engine: Engine, is_crash: bool) -> None:
    async def work() -> None:
        engine.on_request = lambda request: request.respond(Outcome.TRANSIENT, 429, retry_after_ms=600_000)
        first = engine.start().begin()
        engine.publish("key.a")
        await engine.run_for(5)
        await (first.crash() if is_crash else first.stop())
        second = engine.start()
        attempted = _attempts_of(engine, second)
        second.begin()
        for key in "bcd":
            engine.publish(f"key.{key}")
        await engine.run_for(500)
        assert not attempted
        await engine.run_for(120)
        assert attempted
        await second.stop()

    engine.loop.run(work())


def test_the_endpoint_gets_its_pause_also_after_the_last_attempt_of_a_message(engine: Engine) -> None:
    async def work() -> None:
        engine.change(max_deliver=1)
        engine.on_request = lambda request: request.respond(Outcome.TRANSIENT, 429, retry_after_ms=600_000)
        process = engine.start().begin()
        engine.publish("key.a")
        await engine.run_for(5)
        assert engine.dead == {1}
        attempted = _attempts_of(engine, process)
        engine.publish("key.b")
        await engine.run_for(500)
        assert not attempted
        await engine.run_for(120)
        assert attempted == [2]
        await process.stop()

    engine.loop.run(work())


def test_the_next_owner_keeps_the_breaker(engine: Engine) -> None:
    async def work() -> None:
        engine.change(max_deliver=100)
        first = engine.start()
        attempted = _attempts_of(engine, first)
        first.begin()
        for number in range(20):
            engine.publish(f"key.{number}")
        await engine.run_for(20)
        assert len(attempted) >= BREAKER_FAILURES
        await first.stop()
        second = engine.start()
        attempted = _attempts_of(engine, second)
        second.begin()
        await engine.run_for(5)
        owned = second.dispatcher._owned["acme.sub"]
        assert not attempted and owned.is_failing
        await engine.run_for(30)
        assert len(attempted) == 1, "the probe"
        await second.stop()

    engine.loop.run(work())


def test_a_changed_endpoint_gets_a_new_chance_from_the_next_owner(engine: Engine) -> None:
    async def work() -> None:
        engine.on_request = lambda request: request.respond(Outcome.TRANSIENT, 429, retry_after_ms=600_000)
        first = engine.start().begin()
        engine.publish("key.a")
        await engine.run_for(5)
        await first.stop()
        engine.change(url="https://other.example/")
        second = engine.start()
        attempted = _attempts_of(engine, second)
        second.begin()
        engine.publish("key.b")
        await engine.run_for(5)
        assert 2 in attempted
        await second.stop()

    engine.loop.run(work())


def test_progress_of_before_is_readable(engine: Engine) -> None:
    stored = msgspec.to_builtins(_owned().progress(_owned().live, "p", 5))
    for name in ("pausedUntilMs", "isFailing", "breakerCounts"):
        del stored[name]
    owned = _owned()
    owned.continue_from(msgspec.convert(stored, ProgressRecord))
    assert (owned.paused_until_ms, owned.is_failing, owned.breaker.counts) == (0, False, None)
