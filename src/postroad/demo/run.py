"""Playing the stories: everybody on, until the time is over or somebody stops it; then the numbers."""

import asyncio
import contextlib
import logging
import signal
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from postroad.client import AsyncPostroad
from postroad.client.errors import PostroadError
from postroad.demo.clock import OVERTIME_SECONDS, Stage
from postroad.demo.counters import TenantTally
from postroad.demo.plan import sessions
from postroad.demo.queue_actors import consume, publish, redrive
from postroad.demo.scenarios import STORIES
from postroad.demo.stream_actors import append, attend, say
from postroad.demo.tenants import DEADLINE_SECONDS, Guest, guest

_LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was asked for."""

    url: str
    admin_key: str
    seconds: float
    seed: int
    rate: float
    is_deleted: bool


@dataclass(frozen=True, slots=True)
class Played:
    """What came of it. `ended_by` is `time`, `signal` or `problem`."""

    wanted: Wanted
    tallies: tuple[TenantTally, ...]
    began_at: datetime
    ended_at: datetime
    calls: int
    ended_by: str
    problem: PostroadError | None

    def view(self) -> dict[str, Any]:
        return {
            "seed": self.wanted.seed,
            "seconds": self.wanted.seconds,
            "rate": self.wanted.rate,
            "beganAt": self.began_at.isoformat().replace("+00:00", "Z"),
            "endedAt": self.ended_at.isoformat().replace("+00:00", "Z"),
            "endedBy": self.ended_by,
            "calls": self.calls,
            "tenants": {tally.tenant: tally.view() for tally in self.tallies},
        }


Look = Callable[[Stage, tuple[TenantTally, ...]], None]


def play(wanted: Wanted, look: Look) -> Played:
    """Raises PostroadError if it cannot begin, KeyboardInterrupt if it may not finish. `look` is called a few times a second."""
    logging.getLogger("postroad.streams").addHandler(logging.NullHandler())  # a server that is gone is told of once, at the end
    try:
        return asyncio.run(_play(wanted, look))
    except asyncio.CancelledError:  # by a second signal
        raise KeyboardInterrupt from None


async def _play(wanted: Wanted, look: Look) -> Played:
    async with contextlib.AsyncExitStack() as opened:
        platform = await opened.enter_async_context(
            AsyncPostroad(wanted.url, wanted.admin_key, tenant="", deadline=DEADLINE_SECONDS)
        )
        guests = [
            await opened.enter_async_context(guest(platform, wanted.url, wanted.admin_key, story, wanted.seconds))
            for story in STORIES
        ]
        stage = Stage(wanted.seconds, wanted.rate, wanted.seed, uuid.uuid4().hex[:12])
        tallies = tuple(TenantTally(one.tenant) for one in guests)
        began_at = datetime.now(UTC)
        with _signals_heard(stage) as heard:
            await _everybody(stage, guests, tallies, look)
        if wanted.is_deleted and stage.problem is None:
            for one in guests:
                await platform.tenants.delete(one.tenant)
    ended_by = "problem" if stage.problem else "signal" if heard else "time"
    return Played(wanted, tallies, began_at, datetime.now(UTC), stage.calls, ended_by, stage.problem)


async def _everybody(stage: Stage, guests: list[Guest], tallies: tuple[TenantTally, ...], look: Look) -> None:
    """The planned ones end with their plan, the consumers when there is nothing left to do, and all when it is enough."""
    with_plan: list[Coroutine[Any, Any, None]] = []
    consumers: list[Coroutine[Any, Any, None]] = []
    for one, tally in zip(guests, tallies, strict=True):
        story, client = one.story, one.client
        for queue in story.queues:
            counted = tally.queue(queue.name)
            with_plan.append(publish(stage, client, story.name, queue, counted))
            hands = 0 if queue.consumer is None else 1 if queue.consumer.keeps_up < 1 else queue.consumer.hands
            consumers += [consume(stage, client, story.name, queue, hand, counted) for hand in range(hands)]
        with_plan += [redrive(stage, client, again, tally.queue(again.queue)) for again in story.redrives]
        with_plan += [append(stage, client, story, tally.counts), say(stage, client, story, tally.counts)]
        planned = sessions(stage.seed, story, stage.seconds, stage.rate)
        with_plan += [attend(stage, client, session, tally.counts) for session in planned]

    async with asyncio.TaskGroup() as actors:
        looking = asyncio.create_task(_look(stage, tallies, look))
        plan = [actors.create_task(stage.played(actor)) for actor in with_plan]
        for actor in consumers:
            actors.create_task(stage.played(actor))
        end = asyncio.get_running_loop().call_later(stage.seconds + OVERTIME_SECONDS, stage.end)
        await asyncio.wait({*plan, actors.create_task(stage.rest(stage.seconds))})
        stage.quieten()
    end.cancel()
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)


async def _look(stage: Stage, tallies: tuple[TenantTally, ...], look: Look) -> None:
    while True:
        look(stage, tallies)
        await asyncio.sleep(_LOOK_SECONDS)


@contextlib.contextmanager
def _signals_heard(stage: Stage) -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM: what is in hand is finished, and counted. A second one does not wait for that.

    Only the main thread is told of signals."""
    heard: list[int] = []
    playing = asyncio.current_task()

    def stop(number: int) -> None:
        if heard and playing is not None:
            playing.cancel()
        heard.append(number)
        stage.end()

    loop, numbers = asyncio.get_running_loop(), (signal.SIGINT, signal.SIGTERM)
    is_main = threading.current_thread() is threading.main_thread()
    for number in numbers if is_main else ():
        loop.add_signal_handler(number, stop, number)
    try:
        yield heard
    finally:
        for number in numbers if is_main else ():
            loop.remove_signal_handler(number)
