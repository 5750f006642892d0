"""Streams through kill -9, and under two workers that write to the same ones.

`STREAM_APPENDS=2000 STREAM_SECONDS=60 pytest tests/faults/test_streams.py --timeout 900` is the long run.
"""

import asyncio
import contextlib
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import Install
from tests.faults.stream_clients import Caller, Follower, Producer, SharedStream, Watcher
from tests.installation import Installation
from tests.waiting import eventually

PRODUCERS = 32
STREAMS = 4
APPENDS = int(os.environ.get("STREAM_APPENDS", "80"))  # by each producer
SECONDS = float(os.environ.get("STREAM_SECONDS", "8"))  # of writing with two workers
KILLS = 4
CHECKED_MAX = 12  # offsets of each kind per stream that are read from again


async def kill_at_times(running: Installation, producers: list[Producer]) -> None:
    """A worker and the engine in turns, spread over the run."""
    for number in range(1, KILLS + 1):
        due = PRODUCERS * APPENDS * number // (KILLS + 1)
        await eventually(lambda due=due: sum(one.acknowledged for one in producers) >= due, 600)  # type: ignore[misc]
        await eventually(lambda: running.worker_pids)
        os.kill(running.engine_pid if number % 2 == 0 else running.worker_pids[0], signal.SIGKILL)


def some(things: list[Any]) -> list[Any]:
    return things[:: max(1, len(things) // CHECKED_MAX)]


@pytest.mark.parametrize("workers", [1, 2])
async def test_appends_survive_kills_once_and_in_order(install: Install, workers: int) -> None:
    running = await install(POSTROAD_WORKERS=str(workers)).start().ready()
    refused: Counter[int] = Counter()
    async with contextlib.AsyncExitStack() as stack:

        async def caller(stream: int) -> Caller:
            return await stack.enter_async_context(Caller(running.url, running.headers, f"kills/{stream}"))

        for stream in range(STREAMS):
            assert (await (await caller(stream)).create()).status == 201
        producers = [Producer(await caller(number % STREAMS), f"producer-{number}", refused) for number in range(PRODUCERS)]
        followers = [Follower(await caller(stream)) for stream in range(STREAMS)]
        watchers = [Watcher(await caller(stream)) for stream in range(STREAMS)]
        watching = [asyncio.create_task(one.run()) for one in followers]
        watching += [asyncio.create_task(one.run()) for one in watchers]
        async with asyncio.TaskGroup() as both:
            for producer in producers:
                both.create_task(producer.run(APPENDS))
            both.create_task(kill_at_times(running, producers))
        for stream in range(STREAMS):
            writers = {one.name: one for one in producers[stream::STREAMS]}
            await check_stream(await caller(stream), writers, followers[stream], watchers[stream])
        for task in watching:
            task.cancel()
    assert set(refused) <= {503}, "who was refused was told to try again"


async def check_stream(caller: Caller, writers: dict[str, Producer], follower: Follower, watcher: Watcher) -> None:
    content, end = await caller.read()
    for name, one in writers.items():
        assert one.acknowledged == APPENDS
        assert [number for writer, number in content if writer == name] == list(range(APPENDS)), f"{name}: each once, in order"
    assert len(content) == len(writers) * APPENDS, "and nothing else is there"
    assert watcher.seen == content[: len(watcher.seen)], "what was read before the kills is still what comes first"
    for offset, count in some(watcher.marks):
        assert await caller.read(offset) == (content[count:], end), "an offset that was read means the same"
    for writer, number, offset in some([(name, *item) for name, one in writers.items() for item in one.ends.items()]):
        rest, _ = await caller.read(offset)
        assert rest == content[content.index([writer, number]) + 1 :], "so does one that an append answered"
    await eventually(lambda: len(follower.seen) >= len(content))
    assert follower.seen == content, f"a follower saw each once, over {follower.connections} connections"


# Two workers


def seconds_used(pid: int) -> float:
    """Of the processor, since the process began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def keep_writing(stream: SharedStream, *, incarnations: int, is_closed_first: bool) -> None:
    """All kinds of writers at once. Each incarnation of the stream but the last is deleted while they write."""
    async with stream.caller() as caller:
        await stream.begin(caller)
        async with asyncio.TaskGroup() as writers:
            for writer in ("plain-1", "plain-2"):
                writers.create_task(stream.write_unguarded(writer))
            writers.create_task(stream.write_concurrently("twins"))
            writers.create_task(stream.write_with_seq("turn"))
            if incarnations == 1:
                writers.create_task(stream.write_in_flight("flight"))
            for _ in range(incarnations - 1):
                await asyncio.sleep(SECONDS / incarnations)
                await stream.end(caller, is_closed_first=is_closed_first)
                await asyncio.sleep(0.1)  # for appends to what is not there
                await stream.begin(caller)
            await asyncio.sleep(SECONDS / incarnations)
            stream.has_ended = True
        await stream.read(caller)


async def test_two_workers_keep_order_and_fences_on_the_same_streams(install: Install) -> None:
    running = await install(POSTROAD_WORKERS="2").start().ready()
    workers = running.worker_pids
    before = [seconds_used(pid) for pid in workers]
    streams = [SharedStream(running.url, running.headers, f"shared/{number}", is_steady=number < 3) for number in range(8)]
    async with asyncio.TaskGroup() as everyone:
        for number, stream in enumerate(streams):
            incarnations = 1 if number < 3 else 6
            everyone.create_task(keep_writing(stream, incarnations=incarnations, is_closed_first=number < 6))
    used = [seconds_used(pid) - already for pid, already in zip(workers, before, strict=True)]
    assert min(used) > max(used) / 4, f"both workers had their part: {used}"
    for stream in streams:
        stream.check()
