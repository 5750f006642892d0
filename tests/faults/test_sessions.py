"""Fan-out to many sessions through kill -9 of gateways, the delivery process and the engine: every subscriber gets every
acknowledged message once, in the order of its source.

`SESSIONS=5000 pytest tests/faults/test_sessions.py --timeout 900` is the long run.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import aiohttp

from tests.faults.conftest import Install
from tests.faults.stream_clients import producer_headers
from tests.installation import Installation
from tests.waiting import eventually

SESSIONS = int(os.environ.get("SESSIONS", "500"))
FEW = 100  # of them also subscribe to a stream whose fan-out is done within the publish
LATE = 20  # others come while all this goes on
PRODUCERS = 4  # of each stream
MESSAGES = 20  # by each of them
KILLS = 5
AT_ONCE = 24
LARGE, SMALL = "news", "chat"


class Caller:
    """Asks again until it is answered, as the SDK does; what is refused in between is counted."""

    def __init__(self, running: Installation) -> None:
        self._url = f"{running.url}/v1/default"
        self._session = aiohttp.ClientSession(headers=running.headers, timeout=aiohttp.ClientTimeout(total=20))
        self.refused: Counter[int] = Counter()

    async def __aenter__(self) -> "Caller":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def call(self, method: str, path: str, **more: Any) -> tuple[Any, dict[str, str]]:
        while True:
            try:
                async with self._session.request(method, f"{self._url}/{path}", **more) as answer:
                    body = await answer.read()
                    if answer.status < 300:
                        return (await answer.json() if body else None), {k.lower(): v for k, v in answer.headers.items()}
                    assert answer.status in (409, 503), (method, path, answer.status, body)
                    self.refused[answer.status] += 1
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(0.05)

    async def subscribe(self, session: str, stream: str) -> None:
        await self.call("POST", "subscribe", json={"sessionId": session, "streamId": stream})

    async def read(self, stream: str) -> list[Any]:
        found: list[Any] = []
        offset = "-1"
        while True:
            some, headers = await self.call("GET", f"stream/{stream}?offset={offset}")
            found += some
            offset = headers["stream-next-offset"]
            if headers.get("stream-up-to-date") == "true":
                return found

    async def is_complete(self, stream: str) -> bool:
        view, _ = await self.call("GET", f"fanout/{stream}")
        return bool(view["outstanding"] == 0)


class Publisher:
    """Publishes 0, 1, 2 … with its name as a producer: to send one again must not store it again."""

    def __init__(self, caller: Caller, stream: str, name: str) -> None:
        self._caller, self.stream, self.name = caller, stream, name
        self.acknowledged = 0
        self.modes: Counter[str] = Counter()

    async def run(self) -> None:
        for number in range(MESSAGES):
            headers = {"Content-Type": "application/json", **producer_headers(self.name, number)}
            body = {"data": b'{"stream":"%s","from":"%s","number":%d}' % (self.stream.encode(), self.name.encode(), number)}
            _, answered = await self._caller.call("POST", f"publish/{self.stream}", headers=headers, **body)
            self.modes[answered["stream-fanout-mode"]] += 1
            self.acknowledged += 1


async def in_parts(work: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Some at a time."""
    left = iter(list(work))

    async def do_some() -> None:
        for one in left:
            await one()

    async with asyncio.TaskGroup() as run_together:
        for _ in range(AT_ONCE):
            run_together.create_task(do_some())


async def kill_at_times(running: Installation, publishers: list[Publisher]) -> None:
    """A worker, the engine, the delivery process, and again, spread over the run."""
    for number in range(1, KILLS + 1):
        due = len(publishers) * MESSAGES * number // (KILLS + 1)
        await eventually(lambda due=due: sum(one.acknowledged for one in publishers) >= due, 600)  # type: ignore[misc]
        which = {1: lambda: running.worker_pids, 2: lambda: running.children("nats-server")}
        victims = await eventually(which.get(number % 3, lambda: running.background_pids[1:]))
        os.kill(victims[0], signal.SIGKILL)


async def read_late(caller: Caller, publishers: list[Publisher]) -> dict[str, set[tuple[str, int]]]:
    """More sessions, one after the other. What was acknowledged when each was about to come, and what when it was there."""
    known: dict[str, set[tuple[str, int]]] = {}
    for number in range(LATE):
        due = len(publishers) * MESSAGES * number // LATE
        await eventually(lambda due=due: sum(one.acknowledged for one in publishers) >= due, 600)  # type: ignore[misc]
        await caller.subscribe(f"late-{number}", LARGE)
        known[f"late-{number}"] = {(one.name, one.acknowledged) for one in publishers if one.stream == LARGE}
    return known


async def test_every_session_has_every_message_once_through_kills(install: Install) -> None:
    running = await install(POSTROAD_WORKERS="2", POSTROAD_FANOUT_COMPLETE_SECONDS="1").start().ready()
    async with Caller(running) as caller:
        for stream in (LARGE, SMALL):
            await caller.call("PUT", f"stream/{stream}", headers={"Content-Type": "application/json"})
        sessions = [f"s-{number}" for number in range(SESSIONS)]
        by_name, by_pattern, few = sessions[: SESSIONS // 2], sessions[SESSIONS // 2 :], sessions[:FEW]
        wanted = [*((one, LARGE) for one in by_name), *((one, "ne*") for one in by_pattern), *((one, SMALL) for one in few)]
        await in_parts(lambda pair=pair: caller.subscribe(*pair) for pair in wanted)  # type: ignore[misc]
        publishers = [Publisher(caller, stream, f"{stream}-{n}") for stream in (LARGE, SMALL) for n in range(PRODUCERS)]
        async with asyncio.TaskGroup() as everyone:
            for publisher in publishers:
                everyone.create_task(publisher.run())
            everyone.create_task(kill_at_times(running, publishers))
            late = everyone.create_task(read_late(caller, publishers))
        for stream in (LARGE, SMALL):
            await eventually(lambda stream=stream: caller.is_complete(stream), 60)  # type: ignore[misc]
        await check(caller, sessions, few, late.result())
    modes = {stream: sum((one.modes for one in publishers if one.stream == stream), Counter()) for stream in (LARGE, SMALL)}
    assert modes[LARGE]["queued"] and modes[SMALL]["inline"], "both ways were taken"


async def check(caller: Caller, sessions: list[str], few: list[str], late: dict[str, set[tuple[str, int]]]) -> None:
    sources = {stream: await caller.read(stream) for stream in (LARGE, SMALL)}
    for stream, content in sources.items():
        for name in (f"{stream}-{number}" for number in range(PRODUCERS)):
            assert [one["number"] for one in content if one["from"] == name] == list(range(MESSAGES))

    async def check_one(session: str) -> None:
        got = await caller.read(f"session:{session}")
        assert [one for one in got if one["stream"] == LARGE] == sources[LARGE], session
        assert [one for one in got if one["stream"] == SMALL] == (sources[SMALL] if session in few else []), session

    async def check_late(session: str) -> None:
        got = await caller.read(f"session:{session}")
        assert got == (sources[LARGE][-len(got) :] if got else []), "what came since, in order, without a gap"
        numbers = {name: [one["number"] for one in got if one["from"] == name] for name, _ in late[session]}
        for name, acknowledged in late[session]:
            assert set(range(acknowledged + 1, MESSAGES)) <= set(numbers[name]), "all that was sent when it was there"

    few_set = set(few)
    assert few_set <= set(sessions)
    await in_parts(lambda session=session: check_one(session) for session in sessions)  # type: ignore[misc]
    await in_parts(lambda session=session: check_late(session) for session in late)  # type: ignore[misc]
