"""A model of whole delivery processes: whatever endpoint, processes and users do, nothing is lost, and order and limits hold."""

from collections.abc import Callable, Coroutine
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from postroad.api.subscriptions import Ordering, SubscriptionState
from postroad.subscriptions import log_reader, topic_followers
from postroad.subscriptions.endpoint_rules import Outcome
from postroad.subscriptions.records import ReplayRange
from tests.subscriptions.simulation import (
    Engine,
    Process,
    Request,
    SimulatedFollower,
    SimulatedStreamReader,
    new_record,
)
from tests.tiers import long_runs

pytestmark = pytest.mark.slow

KEYS = ("key.a", "key.b", "other.c")
ANSWERS = {
    "succeed": (Outcome.DELIVERED, 200),
    "fail": (Outcome.TRANSIENT, 500),
    "refuse": (Outcome.REFUSED, 400),
    "gone": (Outcome.GONE, 410),
}
PROCESSES_MAX = 3


class DispatcherModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.patches: list[Any] = [
            patch.object(log_reader, "stream_reader", SimulatedStreamReader),
            patch.object(topic_followers, "TopicFollower", SimulatedFollower),
        ]
        for one in self.patches:
            one.start()
        self.engine = Engine(new_record())
        self.engine.on_request = self.check_request
        self.replay_count = 0
        self.problems: list[str] = []
        self.is_healthy = False
        self.was_changed = False  # limits or ordering, while requests were in flight that follow the earlier ones

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.engine.loop.run(work)
        assert self.problems == []

    def check_request(self, request: Request) -> None:
        """Called when the endpoint receives a request."""
        engine, record = self.engine, request.record
        self.was_changed = self.was_changed and len(engine.requests) > 1
        of_process = [one for one in engine.requests if one.process is request.process]
        if len(of_process) > record.max_in_flight and not self.was_changed:
            self.problems.append(f"{len(of_process)} requests in flight, {record.max_in_flight} are allowed")
        if record.ordering is Ordering.KEY and not self.was_changed:
            earlier = {one.sequence for one in engine.log[: request.sequence - 1] if one.subject.endswith(f".{request.key}")}
            if earlier - engine.settled():
                self.problems.append(f"{request.sequence} was sent before {earlier - engine.settled()} of its key")
        if request.attempt > record.max_deliver:
            self.problems.append(f"attempt {request.attempt} of {record.max_deliver}")
        if self.is_healthy:
            request.respond(Outcome.DELIVERED, 200)

    @initialize()
    def begin(self) -> None:
        self.start_process()

    # Publisher and time

    @rule(subjects=st.lists(st.sampled_from(KEYS), min_size=1, max_size=6))
    def publish(self, subjects: list[str]) -> None:
        async def work() -> None:
            for subject in subjects:
                self.engine.publish(subject)
            await self.engine.run_for(0.05)

        self.run(work())

    @rule(seconds=st.sampled_from([0.1, 0.6, 3.0, 8.0, 40.0]))
    def wait(self, seconds: float) -> None:
        self.run(self.engine.run_for(seconds))

    # The endpoint; without an answer a request runs into its timeout

    @precondition(lambda self: self.engine.requests)
    @rule(data=st.data(), answer=st.sampled_from([*ANSWERS, "succeed", "succeed"]))
    def answer(self, data: st.DataObject, answer: str) -> None:
        request = self.engine.requests[data.draw(st.integers(0, len(self.engine.requests) - 1))]

        async def work() -> None:
            request.respond(*ANSWERS[answer])
            await self.engine.run_for(0.02)

        self.run(work())

    @precondition(lambda self: self.engine.requests)
    @rule(ms=st.integers(0, 20_000))
    def ask_to_wait(self, ms: int) -> None:
        async def work() -> None:
            self.engine.requests[0].respond(Outcome.TRANSIENT, 429, ms)
            await self.engine.run_for(0.02)

        self.run(work())

    @rule(count=st.integers(1, 8))
    def succeed_for_a_while(self, count: int) -> None:
        async def work() -> None:
            for _ in range(count):
                for request in list(self.engine.requests):
                    request.respond(*ANSWERS["succeed"])
                await self.engine.run_for(0.02)

        self.run(work())

    # Users

    @rule(state=st.sampled_from([SubscriptionState.ACTIVE, SubscriptionState.PAUSED]))
    def set_state(self, state: SubscriptionState) -> None:
        self.change(state=state)

    @rule(max_in_flight=st.integers(1, 4), max_per_second=st.sampled_from([None, 5]), url=st.sampled_from("ab"))
    def change_settings(self, max_in_flight: int, max_per_second: int | None, url: str) -> None:
        self.was_changed = True
        self.change(max_in_flight=max_in_flight, max_per_second=max_per_second, url=f"https://{url}.example/")

    @rule(ordering=st.sampled_from(Ordering))
    def change_ordering(self, ordering: Ordering) -> None:
        self.was_changed = True
        self.change(ordering=ordering)

    @precondition(lambda self: self.engine.log and self.replay_count < 2)
    @rule()
    def replay(self) -> None:
        made = ReplayRange(task=f"t{self.replay_count}", first=1, last=len(self.engine.log), rate_per_second=20)
        self.replay_count += 1
        assert self.engine.record is not None
        self.change(replays=(*self.engine.record.replays, made))

    @precondition(lambda self: self.engine.record.replays)
    @rule()
    def cancel_replay(self) -> None:
        """Its progress is deleted, whatever the owner is about to store."""
        assert self.engine.record is not None
        first, *others = self.engine.record.replays
        self.engine.progress.pop(f"progress.acme.sub-1.{first.cursor}", None)
        self.change(replays=tuple(others))

    def change(self, **changes: Any) -> None:
        async def work() -> None:
            self.engine.change(**changes)
            await self.engine.run_for(0.02)

        self.run(work())

    # Processes

    @precondition(lambda self: len(self.engine.living) < PROCESSES_MAX)
    @rule()
    def start_process(self) -> None:
        async def work() -> None:
            self.engine.start().begin()
            await self.engine.run_for(0.1)

        self.run(work())

    @precondition(lambda self: self.engine.living)
    @rule(data=st.data(), how=st.sampled_from(["stop", "crash", "cut off", "reconnect"]))
    def end_process(self, data: st.DataObject, how: str) -> None:
        process = data.draw(st.sampled_from(self.engine.living))
        actions: dict[str, Callable[[Process], Coroutine[Any, Any, None]]] = {
            "stop": Process.stop,
            "crash": Process.crash,
            "cut off": self.cut_off,
            "reconnect": self.reconnect,
        }
        self.run(actions[how](process))

    async def cut_off(self, process: Process) -> None:
        process.is_cut_off = True

    async def reconnect(self, process: Process) -> None:
        process.is_cut_off = False
        process.table.notify()

    def teardown(self) -> None:
        """Everything recovers: all messages are delivered or dead, and all replays end."""
        try:
            self.run(self.recover())
            engine = self.engine
            assert engine.matching() <= engine.settled(), f"lost: {engine.matching() - engine.settled()}"
            assert engine.record is not None
            for replay in engine.record.replays:
                assert engine.stored(replay.cursor).settled_to >= replay.last, f"{replay} did not end"
        finally:
            self.run(self.end())
            self.engine.loop.close()
            for one in self.patches:
                one.stop()

    async def recover(self) -> None:
        engine = self.engine
        self.is_healthy, self.was_changed = True, True
        for request in list(engine.requests):
            request.respond(*ANSWERS["succeed"])
        for process in engine.living:
            await self.reconnect(process)
        if not engine.living:
            engine.start().begin()
        engine.change(state=SubscriptionState.ACTIVE, url="https://healthy.example/", max_per_second=None)
        await engine.run_for(400)

    async def end(self) -> None:
        for process in self.engine.living:
            await process.stop()


TestDispatcher = DispatcherModel.TestCase
TestDispatcher.settings = settings(long_runs(10), stateful_step_count=30)
