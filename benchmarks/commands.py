"""Processor time of commands: the pure stages, and `POST /v1/commands` beside `POST …/messages`.

    .venv/bin/python -m benchmarks.commands [requests per measurement] [--pure]

The pure stages (shield and fast) decide a command of about 500 bytes, with ten routes and with 100,000 routes and 1,000,000
grants, in turns. Over HTTP 64 connections send to one installation, in turns with plain messages; `slow` is a route whose grant
is read from the engine for every command. Each request is signed by the client, whose time is not counted.
"""

import argparse
import asyncio
import statistics
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import aiohttp
import msgspec
import uvloop

from benchmarks.harness import Server, postroad, table
from benchmarks.peers.peer import PAYLOAD
from benchmarks.topics import processes, processor_seconds
from postroad.client.command_signer import NewCommand, envelope
from postroad.commands.capability import cache_policy
from postroad.commands.fast import CacheAges, Dispatch, decide
from postroad.commands.records import GrantRecord, RouteRecord, route_key
from postroad.commands.registry_view import KnownSecret, RegistryView, Sender
from postroad.commands.settings import CommandsSettings
from postroad.commands.shield import Accepted, ShieldPolicy, inspect

CONNECTIONS = 64
ROUNDS = 5
SECRET = "s" * 64
_GRANTS = 10


def registry(routes: int) -> RegistryView:
    """A registry in memory, with ten grants per route."""
    records: dict[str, RouteRecord] = {}
    for number in range(routes):
        service, command = f"service-{number // 100}", f"command-{number % 100}"
        grants = tuple(GrantRecord(f"bench/sender-{number + one}", 0) for one in range(_GRANTS))
        records[route_key("bench", service, command)] = RouteRecord(
            tenant="bench", service=service, command=command, queue="q", grants=grants, created_at_ms=0, updated_at_ms=0
        )
    return RegistryView(records.get, lambda _key: None, lambda _record, _secret: None)


def pure_microseconds(view: RegistryView, routes: int, rounds: int = 20_000) -> float:
    """Processor time of a decision, over commands for different routes."""
    sender_of = {
        number: Sender(
            "bench",
            f"sender-{number}",
            "i",
            frozenset({"key"}),
            {"hmac-v1": KnownSecret(SECRET.encode(), None, True)},
            0,
        )
        for number in range(0, routes, max(1, routes // 100))
    }
    now = int(time.time() * 1000)
    stamp = datetime.fromtimestamp(now / 1000, UTC).isoformat()
    made = []
    for number, sender in sender_of.items():
        command = NewCommand(target=f"service-{number // 100}", name=f"command-{number % 100}", payload={"text": "x" * 220})
        made.append((envelope(command, SECRET, "hmac-v1", timestamp=stamp), sender))
    policy, shield_policy, ages = cache_policy(CommandsSettings()), ShieldPolicy(262_144, 60_000), CacheAges(0.1, 0.1)
    for body, sender in made:  # prepares the routes
        found = inspect(body, sender, now, shield_policy)
        if not isinstance(found, Accepted) or not isinstance(decide(found, sender.source, view, ages, now, policy), Dispatch):
            raise SystemExit(f"not dispatched: {found}")
    started = time.process_time()
    for index in range(rounds):
        body, sender = made[index % len(made)]
        found = inspect(body, sender, now, shield_policy)
        decide(found, sender.source, view, ages, now, policy)  # type: ignore[arg-type]
    return (time.process_time() - started) / rounds * 1e6


def measure_pure() -> None:
    sizes = {"10 routes, 100 grants": 10, "100,000 routes, 1,000,000 grants": 100_000}
    views = {name: registry(routes) for name, routes in sizes.items()}
    found: dict[str, list[float]] = {name: [] for name in sizes}
    for _ in range(ROUNDS):
        for name, routes in sizes.items():
            found[name].append(pure_microseconds(views[name], routes))
    rows: list[list[object]] = [[name, f"{statistics.median(some):.1f}"] for name, some in found.items()]
    print(table(["shield and fast", "processor time (µs)"], rows))


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    path: str
    status: int
    body: Callable[[], bytes]


async def set_up(session: aiohttp.ClientSession, server: Server) -> str:
    """Register sender and target; return the secret."""

    async def put(path: str, body: object) -> None:
        async with session.put(path, data=msgspec.json.encode(body)) as answer:
            if answer.status not in (200, 201):
                raise SystemExit(f"{path}: {answer.status} {await answer.text()}")

    async with session.get("/v1/whoami") as answer:
        key_id = (await answer.json())["keyId"]
    await put("/v1/services/sender", {"trustedKeys": [key_id]})
    await put("/v1/services/bot", {})
    for command, check in (("post", "cached"), ("check", "sync")):
        await put(f"/v1/queues/bot-{command}", {"maxAttempts": 5})
        await put(f"/v1/routes/bot/{command}", {"queue": f"bot-{command}", "acl_check": check})
        await put(f"/v1/grants/bot/{command}/sender", {})
    await put("/v1/queues/plain", {"maxAttempts": 5})
    async with session.get("/v1/tenant-config") as answer:
        secret: str = (await answer.json())["services"][0]["secrets"][0]["secret"]
    return secret


def kinds(secret: str) -> list[Kind]:
    payload = msgspec.json.decode(PAYLOAD)

    def command(name: str) -> Callable[[], bytes]:
        return lambda: envelope(NewCommand(target="bot", name=name, payload=payload, id=str(uuid.uuid4())), secret, "hmac-v1")

    return [
        Kind("message", "/v1/queues/plain/messages", 201, f'{{"payload":{PAYLOAD}}}'.encode),
        Kind("command, fast", "/v1/commands", 202, command("post")),
        Kind("command, slow", "/v1/commands", 202, command("check")),
    ]


async def send(session: aiohttp.ClientSession, kind: Kind, count: int) -> None:
    left = [count]

    async def client() -> None:
        while left[0] > 0:
            left[0] -= 1
            async with session.post(kind.path, data=kind.body()) as answer:
                if answer.status != kind.status:
                    raise SystemExit(f"{kind.name}: {answer.status} {await answer.text()}")
                await answer.read()

    await asyncio.gather(*[client() for _ in range(CONNECTIONS)])


async def measure(server: Server, count: int) -> list[list[object]]:
    found = processes(server.pid)
    headers = {
        "Authorization": f"Bearer {server.key}",
        "Content-Type": "application/json",
        "X-Postroad-Service": "sender",
    }
    costs: dict[str, list[tuple[float, float]]] = {}
    async with aiohttp.ClientSession(server.url, headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
        every = kinds(await set_up(session, server))
        for kind in every:
            await send(session, kind, 500)
        for number in range(ROUNDS):
            for kind in every if number % 2 == 0 else every[::-1]:
                before = {name: processor_seconds(pids) for name, pids in found.items()}
                await send(session, kind, count)
                used = {name: (processor_seconds(pids) - before[name]) / count * 1e6 for name, pids in found.items()}
                costs.setdefault(kind.name, []).append((used["worker"], used["engine"]))
    medians = {
        name: (statistics.median(one[0] for one in some), statistics.median(one[1] for one in some))
        for name, some in costs.items()
    }
    whole = sum(medians["message"])
    return [
        [name, f"{worker:.0f}", f"{engine:.0f}", f"{whole / (worker + engine):.2f}"] for name, (worker, engine) in medians.items()
    ]


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("requests", nargs="?", type=int, default=1500)
    arguments.add_argument("--pure", action="store_true", help="only the pure stages")
    given = arguments.parse_args()
    measure_pure()
    if not given.pure:
        with postroad() as server:
            rows = uvloop.run(measure(server, given.requests))
        print(table(["processor time per request (µs)", "worker", "engine", "messages' cost / this"], rows))


if __name__ == "__main__":
    main()
