"""Messages that a filter cannot be compared with, or that cannot be sent: dead letters, while all others are delivered."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest

from postroad.subscriptions import log_reader, topic_followers
from postroad.subscriptions.endpoint_rules import Outcome
from postroad.subscriptions.received_message import ReceivedMessage
from tests.subscriptions.simulation import Engine, Process, Request, SimulatedFollower, SimulatedStreamReader, new_record


@pytest.fixture
def engine() -> Iterator[Engine]:
    with (
        patch.object(log_reader, "stream_reader", SimulatedStreamReader),
        patch.object(topic_followers, "TopicFollower", SimulatedFollower),
    ):
        made = Engine(new_record())
        made.on_request = lambda request: request.respond(Outcome.DELIVERED, 200)
        yield made
        made.loop.close()


def _publish(engine: Engine, count: int) -> None:
    for _ in range(count):
        engine.publish("key.a")


@pytest.fixture
def failing_filter() -> Iterator[set[int]]:
    """The sequences that the filters of a subscription cannot be compared with."""
    sequences: set[int] = set()
    passes = ReceivedMessage.passes

    def failing(self: ReceivedMessage, filters: Any) -> bool:
        if self.stored.sequence in sequences:
            raise OverflowError("int too large to convert to float: \ud800")
        return passes(self, filters)

    with patch.object(ReceivedMessage, "passes", failing):
        yield sequences


@pytest.mark.parametrize("is_live", [True, False])
def test_a_message_that_the_filter_cannot_judge_is_a_dead_letter(engine: Engine, failing_filter: set[int], is_live: bool) -> None:
    """Handed out by the follower, and read from the log. All others are delivered, in order."""
    failing_filter.add(2)

    async def work() -> None:
        if is_live:
            engine.start().begin()
            await engine.run_for(1)
            _publish(engine, 3)
        else:
            _publish(engine, 3)
            engine.start().begin()
        await engine.run_for(2)
        assert engine.dead == {2} and set(engine.delivered) == {1, 3}
        [reason] = engine.dead_reasons
        assert reason == "not sent: the filter failed: OverflowError: int too large to convert to float: \\ud800"
        await engine.living[0].stop()

    engine.loop.run(work())


def test_a_message_in_quarantine_is_not_delivered_by_the_next_process(engine: Engine, failing_filter: set[int]) -> None:
    """The process ended after it had opened the message: the next one, whose filter could judge it, does not send it."""

    async def work() -> None:
        process: Process = engine.start().begin()
        await engine.run_for(1)
        failing_filter.add(1)
        engine.holds_dead_letters = True
        _publish(engine, 2)
        await engine.run_for(2)
        await process.crash()
        failing_filter.clear()
        engine.holds_dead_letters = False
        engine.start().begin()
        await engine.run_for(10)
        assert engine.dead == {1} and set(engine.delivered) == {2}
        await engine.living[0].stop()

    engine.loop.run(work())


def test_a_message_that_cannot_be_sent_is_a_dead_letter_and_does_not_hold_up_its_key(engine: Engine) -> None:
    def answer(request: Request) -> None:
        if request.sequence == 1:
            "\ud800".encode()
        request.respond(Outcome.DELIVERED, 200)

    engine.on_request = answer

    async def work() -> None:
        engine.start().begin()
        _publish(engine, 3)
        await engine.run_for(2)
        assert engine.dead == {1} and set(engine.delivered) == {2, 3}
        assert "the message cannot be sent: UnicodeEncodeError" in engine.dead_reasons[0]
        [owned] = engine.living[0].dispatcher._owned.values()
        assert owned.live.cursor.open_count == owned.live.cursor.in_flight == 0
        assert not owned.breaker.has_failures, "it says nothing about the endpoint"
        await engine.living[0].stop()

    engine.loop.run(work())


def test_a_dead_letter_that_cannot_be_stored_is_tried_again(engine: Engine, failing_filter: set[int]) -> None:
    """A bug there neither loses the message nor ends the process, and does not hold up the messages of other keys."""
    failing_filter.add(1)

    async def work() -> None:
        engine.dead_letter_problem = RuntimeError("a bug")
        engine.start().begin()
        _publish(engine, 1)
        engine.publish("key.b")
        await engine.run_for(10)
        assert not engine.dead and set(engine.delivered) == {2}
        engine.dead_letter_problem = None
        await engine.run_for(40)
        assert engine.dead == {1}
        await engine.living[0].stop()

    engine.loop.run(work())


def test_a_follower_that_fails_is_replaced_and_skips_no_message(engine: Engine) -> None:
    failures = [RuntimeError("a bug")]
    deliver = SimulatedFollower._deliver

    async def failing(self: SimulatedFollower, entry: Any) -> None:
        if entry.sequence == 2 and failures:
            raise failures.pop()
        await deliver(self, entry)

    async def work() -> None:
        engine.start().begin()
        await engine.run_for(1)
        with patch.object(SimulatedFollower, "_deliver", failing):
            _publish(engine, 3)
            await engine.run_for(6)
        _publish(engine, 1)
        await engine.run_for(1)
        assert not failures and dict(engine.delivered) == {1: 1, 2: 1, 3: 1, 4: 1}
        await engine.living[0].stop()

    engine.loop.run(work())


def test_a_takeover_that_fails_is_tried_again_and_not_at_once(engine: Engine) -> None:
    problems = [RuntimeError("a bug"), RuntimeError("a bug")]
    process = engine.start()
    take = process.dispatcher._takeover.take

    async def failing(*arguments: Any) -> Any:
        if problems:
            raise problems.pop()
        return await take(*arguments)

    async def work() -> None:
        with patch.object(process.dispatcher._takeover, "take", failing):
            process.begin()
            _publish(engine, 1)
            await engine.run_for(0.5)
            assert len(problems) == 1, "one attempt in half a second"
            await engine.run_for(10)
        assert set(engine.delivered) == {1}
        await process.stop()

    engine.loop.run(work())
