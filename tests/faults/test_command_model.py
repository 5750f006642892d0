"""Random kills -9 of gateways and of the engine while senders saturate two routes, against a model of what was promised.

The steps of a run follow from its seed. One route has a limit and strict deduplication, the other a limit only. After the last
step the queues must agree with the model:

- no run of consecutive intervals admitted more commands than the limit allows in it;
- no id is in the queue of the strict route twice, also if several gateways got it, or again after a kill;
- every command that was acknowledged is in its queue, and nothing is there that was not sent.
"""

import asyncio
import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import aiohttp
import pytest

from postroad.api.commands import ID_HEADER
from postroad.client.command_signer import NewCommand, envelope
from postroad.commands.rate_rules import Limit
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.kernel.names import queue_stream, queue_subject
from postroad.queues.records import read_message
from tests.faults.conftest import Install
from tests.faults.test_commands import register
from tests.installation import Installation
from tests.waiting import eventually

STEPS = 5
SENDERS = 6  # of each route
COMMANDS = 30  # that must be accepted after each step
STRICT, PLAIN = "post", "note"
LIMITS = {STRICT: Limit(8, 2000, 4), PLAIN: Limit(14, 2000, 0)}  # small: a busy machine must saturate them
_CLOCKS_MS = 50  # that the clocks of gateways and engine may differ by


# The rule


@dataclass(frozen=True, slots=True)
class Admitted:
    """A command in a queue: it was admitted after it had arrived at a gateway, and before the engine stored it."""

    command_id: str
    arrived_ms: int
    stored_ms: int


def excess(commands: list[Admitted], limit: Limit) -> list[tuple[int, int, int]]:
    """Runs of consecutive intervals in which more commands were admitted than `w · max + burst`, whenever exactly each one was:
    the first interval, their number, and the commands that arrived and were stored within them."""
    spans = Counter(
        ((one.arrived_ms - _CLOCKS_MS) // limit.interval_ms, (one.stored_ms + _CLOCKS_MS) // limit.interval_ms)
        for one in commands
    )
    first, last = min((start for start, _ in spans), default=0), max((end for _, end in spans), default=-1)
    found = []
    for start in range(first, last + 1):
        for end in range(start, last + 1):
            count = sum(number for (a, b), number in spans.items() if start <= a and b <= end)
            width = end - start + 1
            if count > width * limit.max + limit.burst:
                found.append((start, width, count))
    return found


def test_a_run_with_too_many_commands_is_found() -> None:
    limit = Limit(2, 1000, 1)

    def at(*times: int) -> list[Admitted]:
        return [Admitted("", one, one) for one in times]

    assert excess(at(), limit) == []
    assert excess(at(100, 100, 100, 1100, 1100), limit) == []
    assert excess(at(100, 100, 100, 100), limit) == [(0, 1, 4)]
    assert excess(at(100, 100, 100, 1100, 1100, 1100), limit) == [(0, 2, 6)]
    crossing = [*at(100, 100, 100), Admitted("", 100, 1100)]  # may have been admitted in the second interval
    assert excess(crossing, limit) == []
    assert excess([*crossing, *at(1100, 1100)], limit) == [(0, 2, 6)]


# Senders


@dataclass(slots=True)
class Model:
    """What the senders know: by route, the ids that were acknowledged, and all that were sent."""

    acknowledged: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    sent: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    statuses: Counter[int] = field(default_factory=Counter)

    def accepted(self) -> int:
        return sum(map(len, self.acknowledged.values()))


class Senders:
    """Clients that send each command again with the same id until it has an outcome, over a new connection each time: any gateway
    may get it."""

    def __init__(self, running: Installation, secret: str, model: Model) -> None:
        self._running, self._secret, self._model = running, secret, model
        self._stop = asyncio.Event()
        self._tasks = [asyncio.create_task(self._run(route)) for route in LIMITS for _ in range(SENDERS)]

    async def stop(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def _run(self, route: str) -> None:
        headers = {**self._running.headers, "X-Postroad-Service": "sender", "Content-Type": "application/json"}
        async with aiohttp.ClientSession(
            self._running.url,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=20),
            connector=aiohttp.TCPConnector(force_close=True),
        ) as session:
            while not self._stop.is_set():
                command = NewCommand(target="bot", name=route, payload=1)
                self._model.sent[route].add(command.id)
                body = envelope(command, self._secret, "hmac-v1")
                while not self._stop.is_set() and not await self._has_outcome(session, route, command.id, body):
                    await asyncio.sleep(0.01)
                    if route == STRICT:  # recognised by its id, whenever it is signed
                        body = envelope(command, self._secret, "hmac-v1")

    async def _has_outcome(self, session: aiohttp.ClientSession, route: str, command_id: str, body: bytes) -> bool:
        try:
            async with session.post("/v1/commands", data=body) as answer:
                self._model.statuses[answer.status] += 1
                if answer.status in (200, 202):
                    self._model.acknowledged[route].add(command_id)
                return answer.status in (200, 202, 400)  # 400: its time has left the window while the engine was away
        except (aiohttp.ClientError, TimeoutError):
            return False


async def register_routes(running: Installation) -> str:
    """Returns the secret of the sender."""
    secret = await register(running)
    async with aiohttp.ClientSession(running.url, headers=running.headers) as session:
        for route, limit in LIMITS.items():
            rate = {"max": limit.max, "interval_seconds": limit.interval_ms // 1000, "burst": limit.burst}
            mode = "strict" if route == STRICT else "none"
            for path, body in (
                (f"/v1/queues/bot-{route}", {"maxAttempts": 5}),
                (f"/v1/routes/bot/{route}", {"queue": f"bot-{route}", "dedupe_mode": mode, "rate_limit": rate}),
                (f"/v1/grants/bot/{route}/sender", {}),
            ):
                async with session.put(path, json=body) as answer:
                    assert answer.status in (200, 201), await answer.text()
    return secret


# Steps


def kill_gateway(running: Installation, randomness: random.Random) -> None:
    if running.worker_pids:  # else all of them are starting
        os.kill(randomness.choice(running.worker_pids), signal.SIGKILL)


def end_gateway(running: Installation, randomness: random.Random) -> None:
    """It returns its tokens."""
    if running.worker_pids:
        os.kill(randomness.choice(running.worker_pids), signal.SIGTERM)


def kill_engine(running: Installation, _randomness: random.Random) -> None:
    for pid in running.children("nats-server"):
        os.kill(pid, signal.SIGKILL)


def kill_both(running: Installation, randomness: random.Random) -> None:
    kill_engine(running, randomness)
    kill_gateway(running, randomness)


ACTIONS: list[Callable[[Installation, random.Random], None]] = [kill_gateway, kill_gateway, end_gateway, kill_engine, kill_both]


async def admitted(running: Installation, route: str) -> list[Admitted]:
    """The commands in the queue of a route, as the engine has them."""
    connection = Connection(running.engine)
    await connection.open()
    try:
        found: list[Admitted] = []
        following, is_end = 1, False
        while not is_end:
            stream, subject = queue_stream("default", f"bot-{route}"), f"{queue_subject('default', f'bot-{route}')}.ready"
            page = await stream_reader.read(connection, stream, subject, following, 1000)
            for entry in page.entries:
                message = read_message(entry.payload)
                found.append(Admitted(message.headers[ID_HEADER], message.at, entry.at_ms))
            following, is_end = page.next_sequence, page.is_end
        return found
    finally:
        await connection.close()


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(("workers", "seed"), [(2, 21), (3, 22)])
async def test_limits_deduplication_and_promises_hold_whatever_is_killed(install: Install, workers: int, seed: int) -> None:
    """Requirements 113, 130, 134"""
    running = await install(POSTROAD_WORKERS=str(workers)).start().ready(400)
    model, randomness = Model(), random.Random(seed)
    senders = Senders(running, await register_routes(running), model)
    actions = []
    await eventually(lambda: model.accepted() > COMMANDS, 180)
    for _ in range(STEPS):
        action = randomness.choice(ACTIONS)
        action(running, randomness)
        actions.append(action.__name__)
        more = model.accepted() + COMMANDS
        await eventually(lambda more=more: model.accepted() > more, 240)  # type: ignore[misc]
    await senders.stop()
    await running.ready(400)

    for route, limit in LIMITS.items():
        commands = await admitted(running, route)
        ids = [one.command_id for one in commands]
        assert model.acknowledged[route] <= set(ids) <= model.sent[route], (route, actions)
        assert excess(commands, limit) == [], (route, actions)
        assert len(ids) == len(set(ids)), (route, actions)
    assert set(model.statuses) <= {200, 202, 400, 429, 502, 503} and model.statuses[429], (model.statuses, actions)
