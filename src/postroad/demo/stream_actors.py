"""Producers and readers of the demo's streams, and its sessions."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postroad.client import AsyncPostroad
from postroad.client.errors import StreamNotFound
from postroad.demo.clock import DemoClock
from postroad.demo.plan import PlannedSession, arrivals, seeded_random
from postroad.demo.scenarios import RATE, TenantScenario

_CATCH_UP_SECONDS = 3.0


@asynccontextmanager
async def _live_reader(
    client: AsyncPostroad, stream: str, offset: str, counts: Counter[str], name: str
) -> AsyncIterator[asyncio.Event]:
    """Follow the stream from the offset and count its messages. The event is set with each message."""
    received = asyncio.Event()

    async def read() -> None:
        with contextlib.suppress(StreamNotFound):  # the stream of a session that was deleted
            async with contextlib.aclosing(client.streams.follow(stream, offset)) as messages:
                async for _ in messages:
                    counts[name] += 1
                    received.set()

    reading = asyncio.create_task(read())
    try:
        yield received
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def append(clock: DemoClock, client: AsyncPostroad, scenario: TenantScenario, counts: Counter[str]) -> None:
    """Append to the tenant's feed as an idempotent producer, with a live reader that may catch up at the end."""
    random = seeded_random(clock.seed, scenario.name, "feed")
    producer = client.streams.producer(scenario.feed, f"demo-{clock.run}")
    end = (await client.streams.info(scenario.feed)).offset
    async with _live_reader(client, scenario.feed, end, counts, "read") as received:
        for number, at in enumerate(arrivals(random, scenario.appends_per_second * clock.rate / RATE, clock.seconds)):
            size = random.choice((1, 1, 1, 2, 5))
            if not await clock.wait_until(at):
                break
            await clock.throttle()
            await producer.append_many([{"number": number, "part": part, "run": clock.run} for part in range(size)])
            counts["appends"] += 1
            counts["appended"] += size
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                while counts["read"] < counts["appended"]:
                    received.clear()
                    await received.wait()


async def publish_to_sessions(clock: DemoClock, client: AsyncPostroad, scenario: TenantScenario, counts: Counter[str]) -> None:
    """Publish to the streams that sessions subscribe to."""
    random = seeded_random(clock.seed, scenario.name, "rooms")
    sequences: Counter[str] = Counter()
    for at in arrivals(random, scenario.publishes_per_second * clock.rate / RATE, clock.seconds):
        stream = random.choice(scenario.session_streams)
        if not await clock.wait_until(at):
            return
        await clock.throttle()
        sent = await client.sessions.publish(
            stream,
            {"stream": stream, "number": sequences[stream], "run": clock.run},
            producer_id=f"demo-{clock.run}",
            producer_seq=sequences[stream],
        )
        sequences[stream] += 1
        counts["said"] += 1
        counts["copied"] += sent.successes


async def run_session(clock: DemoClock, client: AsyncPostroad, planned: PlannedSession, counts: Counter[str]) -> None:
    """Run a planned session to its end. When the run drains before, the session is left to expire."""
    if not await clock.wait_until(planned.at):
        return
    session = f"demo-{clock.run}-{planned.number}"
    for stream in planned.streams:
        await clock.throttle()
        subscribed = await client.sessions.subscribe(stream, session)
        counts["subscribed"] += 1
        counts["sessions"] += subscribed.is_new_session
    async with contextlib.AsyncExitStack() as reading:
        if planned.reads:
            await reading.enter_async_context(_live_reader(client, f"session:{session}", "-1", counts, "heard"))
        is_complete = await _run_steps(clock, client, session, planned, counts)
    if is_complete and planned.is_deleted:
        await clock.throttle()
        await client.sessions.delete(session)
        counts["deleted"] += 1
    else:
        counts["left"] += 1


async def _run_steps(
    clock: DemoClock, client: AsyncPostroad, session: str, planned: PlannedSession, counts: Counter[str]
) -> bool:
    """Touch and unsubscribe as planned. Returns False if the run drains before the session's end."""
    steps = [(at, "touched") for at in planned.touches]
    if planned.unsubscribes_at is not None:
        steps.append((planned.unsubscribes_at, "unsubscribed"))
    for at, step in sorted(steps):
        if not await clock.wait_until(at):
            return False
        await clock.throttle()
        if step == "touched":
            await client.sessions.touch(session)
        else:
            await client.sessions.unsubscribe(session, planned.streams[0])
        counts[step] += 1
    return await clock.wait_until(planned.ends_at)
