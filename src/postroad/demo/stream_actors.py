"""Those who append to the demo's streams and follow them, and the sessions that come and go."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from postroad.client import AsyncPostroad
from postroad.client.errors import StreamNotFound
from postroad.demo.clock import Stage
from postroad.demo.plan import PlannedSession, arrivals, draws
from postroad.demo.scenarios import RATE, TenantStory

_CATCH_UP_SECONDS = 3.0


@asynccontextmanager
async def _followed(
    client: AsyncPostroad, stream: str, offset: str, counts: Counter[str], name: str
) -> AsyncIterator[asyncio.Event]:
    """Somebody reads the stream live from the offset on, and counts what comes. The event is set when something has come."""
    has_come = asyncio.Event()

    async def read() -> None:
        with contextlib.suppress(StreamNotFound):  # a session that is over
            async with contextlib.aclosing(client.streams.follow(stream, offset)) as coming:
                async for _ in coming:
                    counts[name] += 1
                    has_come.set()

    reading = asyncio.create_task(read())
    try:
        yield has_come
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def append(stage: Stage, client: AsyncPostroad, story: TenantStory, counts: Counter[str]) -> None:
    """To the tenant's feed, as a numbered producer, with a live reader who is given the time to see the last of it."""
    draw = draws(stage.seed, story.name, "feed")
    producer = client.streams.producer(story.feed, f"demo-{stage.run}")
    end = (await client.streams.info(story.feed)).offset
    async with _followed(client, story.feed, end, counts, "read") as has_come:
        for number, at in enumerate(arrivals(draw, story.feed_per_second * stage.rate / RATE, stage.seconds)):
            size = draw.choice((1, 1, 1, 2, 5))
            if not await stage.until(at):
                break
            await stage.turn()
            await producer.append_many([{"number": number, "part": part, "run": stage.run} for part in range(size)])
            counts["appends"] += 1
            counts["appended"] += size
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                while counts["read"] < counts["appended"]:
                    has_come.clear()
                    await has_come.wait()


async def say(stage: Stage, client: AsyncPostroad, story: TenantStory, counts: Counter[str]) -> None:
    """Publish to the rooms, for whoever is there."""
    draw = draws(stage.seed, story.name, "rooms")
    said: Counter[str] = Counter()
    for at in arrivals(draw, story.says_per_second * stage.rate / RATE, stage.seconds):
        room = draw.choice(story.rooms)
        if not await stage.until(at):
            return
        await stage.turn()
        sent = await client.sessions.publish(
            room,
            {"room": room, "number": said[room], "run": stage.run},
            producer_id=f"demo-{stage.run}",
            producer_seq=said[room],
        )
        said[room] += 1
        counts["said"] += 1
        counts["copied"] += sent.successes


async def attend(stage: Stage, client: AsyncPostroad, planned: PlannedSession, counts: Counter[str]) -> None:
    """The life of one session. When the demo is stopped before its end, it goes away as people do."""
    if not await stage.until(planned.at):
        return
    session = f"demo-{stage.run}-{planned.number}"
    for stream in planned.streams:
        await stage.turn()
        subscribed = await client.sessions.subscribe(stream, session)
        counts["subscribed"] += 1
        counts["sessions"] += subscribed.is_new_session
    async with contextlib.AsyncExitStack() as reading:
        if planned.reads:
            await reading.enter_async_context(_followed(client, f"session:{session}", "-1", counts, "heard"))
        is_leaving = await _stay(stage, client, session, planned, counts)
    if is_leaving and planned.is_deleted:
        await stage.turn()
        await client.sessions.delete(session)
        counts["deleted"] += 1
    else:
        counts["left"] += 1


async def _stay(stage: Stage, client: AsyncPostroad, session: str, planned: PlannedSession, counts: Counter[str]) -> bool:
    """True when its time is over, False when the demo is stopped before."""
    steps = [(at, "touched") for at in planned.touches]
    if planned.unsubscribes_at is not None:
        steps.append((planned.unsubscribes_at, "unsubscribed"))
    for at, step in sorted(steps):
        if not await stage.until(at):
            return False
        await stage.turn()
        if step == "touched":
            await client.sessions.touch(session)
        else:
            await client.sessions.unsubscribe(session, planned.streams[0])
        counts[step] += 1
    return await stage.until(planned.until)
