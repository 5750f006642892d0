"""Cost of commands: the pure stages, `POST /v1/commands` beside `POST …/messages`, and the start with a large registry.

    .venv/bin/python -m benchmarks.commands [requests per measurement] [--rounds 20] [--pure] [--http] [--sync] [--registry]

Without a choice of parts it measures all of them.

*pure*: shield and fast stage decide a command of about 500 bytes, with ten routes and with 100,000 routes and 1,000,000 grants,
in turns; `look-up` is the fast stage alone, which finds route and grant.

*http*: 64 connections send to one installation, all kinds in turns. `slow` is a route whose grant is read from the engine for
every command; `limited` has a rate limit that is never exhausted, `cold-only` without tokens in memory; `strict` delivers each id
once, of which a tenth was sent before in the last kind; `keyed` messages have idempotency keys. The cost is the processor time of
worker and engine, `ratio` the median of the rounds' ratios of another kind's cost in the same round to this one's, beside the aim
for it. Each request is signed by the client, whose time is not counted. The time of a response is that of 64 clients which wait
for the same processors as the server; the outcome of a command is durable when it comes.

*sync*: messages and commands again, with a sync of the disk every two seconds.

*registry*: the start of a worker with an empty registry and with a large one, from a snapshot and without.
"""

import argparse
import asyncio
import itertools
import os
import random
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvloop

from benchmarks.harness import Server, postroad, table
from benchmarks.peers.peer import PAYLOAD
from benchmarks.topics import processes, processor_seconds
from postroad.client.command_signer import NewCommand, envelope
from postroad.commands.capability import cache_policy
from postroad.commands.fast import CacheAges, Dispatch, decide
from postroad.commands.packed_routes import PackedRoutes
from postroad.commands.records import (
    ROUTES_BUCKET,
    SERVICES_BUCKET,
    GrantRecord,
    RouteRecord,
    SecretRecord,
    ServiceRecord,
)
from postroad.commands.registry_view import KnownSecret, RegistryView, Sender
from postroad.commands.settings import CommandsSettings
from postroad.commands.shield import Accepted, ShieldPolicy, inspect
from postroad.commands.snapshot_store import SNAPSHOTS_BUCKET
from postroad.container import platform_keys
from postroad.crypto.secret_encryption import SecretCipher
from postroad.jetstream.commit import CommitPolicy, Committers, PendingMessage
from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.management import purge_stream
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.clock import now_ms
from postroad.kernel.ids import new_id
from postroad.runtime.supervisor import with_platform_key
from postroad.settings import Settings

CONNECTIONS = 64
ROUNDS = 5
_REGISTRY_REQUESTS = 4000
SECRET = "s" * 64
LEAD = 100
HEAD = ("µs of a request", "worker", "engine", "response, p95 (ms)", "beside", "ratio", "middle half", "aim")
_GRANTS = 10
_BATCH = 500


def route_records(routes: int) -> Iterator[RouteRecord]:
    """Routes with ten grants each."""
    for number in range(routes):
        service, command = f"service-{number // 100}", f"command-{number % 100}"
        grants = tuple(GrantRecord(f"bench/sender-{number + one}", 0, "key_0123456789") for one in range(_GRANTS))
        yield RouteRecord(
            tenant="bench", service=service, command=command, queue="q", grants=grants, created_at_ms=0, updated_at_ms=0
        )


def registry(routes: int) -> RegistryView:
    """A registry in memory, as workers have it."""
    packed = PackedRoutes()
    for record in route_records(routes):
        packed[record.key] = record
    return RegistryView(packed.known, lambda _key: None, lambda _record, _secret: None)


def pure_microseconds(view: RegistryView, routes: int, rounds: int = 20_000) -> tuple[float, float]:
    """Processor time of a decision, over commands for different routes, and the 95th percentile of the look-ups' times."""
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
    spent = (time.process_time() - started) / rounds * 1e6
    look_ups = []
    for body, sender in made * 20:
        found = inspect(body, sender, now, shield_policy)
        began = time.perf_counter()
        decide(found, sender.source, view, ages, now, policy)  # type: ignore[arg-type]
        look_ups.append((time.perf_counter() - began) * 1e6)
    return spent, percentile(look_ups, 95)


def percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100)[percent - 1]


def measure_pure() -> None:
    sizes = {"10 routes, 100 grants": 10, "100,000 routes, 1,000,000 grants": 100_000}
    views = {name: registry(routes) for name, routes in sizes.items()}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in sizes}
    for _ in range(ROUNDS):
        for name, routes in sizes.items():
            found[name].append(pure_microseconds(views[name], routes))
    rows: list[list[object]] = []
    for name, some in found.items():
        spent, look_up = (statistics.median(one[index] for one in some) for index in (0, 1))
        rows.append([name, f"{spent:.1f}", f"{look_up:.1f}"])
    print(table(["shield and fast", "processor time (µs), aim < 20", "look-up, p95 (µs), aim < 10,000"], rows))


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests of one kind. `beside`: the kind whose cost is compared with theirs, and the least ratio that is aimed at."""

    name: str
    path: str
    statuses: tuple[int, ...]
    body: Callable[[], bytes]
    beside: tuple[str, float] | None = None


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
    limit: dict[str, Any] = {"rate_limit": {"max": 1_000_000, "interval_seconds": 1}}
    routes: dict[str, dict[str, Any]] = {
        "post": {},
        "check": {"acl_check": "sync"},
        "limited": limit,
        "cold": limit,
        "strict": {"dedupe_mode": "strict"},
    }
    for command, fields in routes.items():
        await put(f"/v1/queues/bot-{command}", {"maxAttempts": 5})
        await put(f"/v1/routes/bot/{command}", {"queue": f"bot-{command}", **fields})
        await put(f"/v1/grants/bot/{command}/sender", {})
    ban = {"source": "sender", "kind": "cold-only", "target": "bot", "command": "cold", "reason": "benchmark"}
    async with session.post("/v1/bans", data=msgspec.json.encode({**ban, "duration_seconds": 86_400})) as answer:
        if answer.status != 201:
            raise SystemExit(await answer.text())
    await put("/v1/queues/plain", {"maxAttempts": 5})
    async with session.get("/v1/tenant-config") as answer:
        secret: str = (await answer.json())["services"][0]["secrets"][0]["secret"]
    return secret


def kinds(secret: str) -> list[Kind]:
    payload = msgspec.json.decode(PAYLOAD)

    def command(name: str, next_id: Callable[[], str]) -> Callable[[], bytes]:
        return lambda: envelope(NewCommand(target="bot", name=name, payload=payload, id=next_id()), secret, "hmac-v1")

    def message(next_key: Callable[[], str]) -> Callable[[], bytes]:
        return lambda: f'{{"idempotencyKey":"{next_key()}","payload":{PAYLOAD}}}'.encode()

    plain, commands, fast = "/v1/queues/plain/messages", "/v1/commands", "command, fast"
    return [
        Kind("message", plain, (201,), f'{{"payload":{PAYLOAD}}}'.encode),
        Kind(fast, commands, (202,), command("post", new_uuid), ("message", 0.75)),
        Kind("command, slow", commands, (202,), command("check", new_uuid), ("message", 0.5)),
        Kind("command, limited", commands, (202,), command("limited", new_uuid), (fast, 0.9)),
        Kind("command, limited, cold-only", commands, (202,), command("cold", new_uuid), (fast, 0.5)),
        Kind("command, strict", commands, (202,), command("strict", new_uuid), (fast, 0.4)),
        Kind("command, strict, 10 % repeated", commands, (202, 200), command("strict", a_tenth_repeated()), (fast, 0.3)),
        Kind("message, keyed", plain, (201,), message(new_uuid)),
        Kind("message, keyed, 10 % repeated", plain, (201, 200), message(a_tenth_repeated()), ("message, keyed", 0.4)),
    ]


def new_uuid() -> str:
    return str(uuid.uuid4())


def a_tenth_repeated() -> Callable[[], str]:
    """Ids of which each tenth is one of those before it that have been answered."""
    used, chance, calls = deque[str](maxlen=10 * CONNECTIONS), random.Random(1), itertools.count(1)

    def next_id() -> str:
        if next(calls) % 10 == 0 and len(used) > 2 * CONNECTIONS:
            return used[chance.randrange(len(used) - 2 * CONNECTIONS)]
        used.append(new_uuid())
        return used[-1]

    return next_id


async def send(session: aiohttp.ClientSession, kind: Kind, count: int) -> list[float]:
    """Send requests; returns the times until their responses, in milliseconds."""
    left, times = [count], list[float]()

    async def client() -> None:
        while left[0] > 0:
            left[0] -= 1
            body, began = kind.body(), time.perf_counter()
            async with session.post(kind.path, data=body) as answer:
                if answer.status not in kind.statuses:
                    raise SystemExit(f"{kind.name}: {answer.status} {await answer.text()}")
                await answer.read()
            times.append((time.perf_counter() - began) * 1000)

    await asyncio.gather(*[client() for _ in range(CONNECTIONS)])
    return times


async def measure(server: Server, count: int, rounds: int, names: Sequence[str] | None = None) -> list[list[object]]:
    """The costs of the kinds with these names; of all without."""
    found = processes(server.pid)
    headers = {
        "Authorization": f"Bearer {server.key}",
        "Content-Type": "application/json",
        "X-Postroad-Service": "sender",
    }
    costs: dict[str, list[tuple[float, float]]] = {}
    times: dict[str, list[float]] = {}
    async with aiohttp.ClientSession(server.url, headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
        every = [one for one in kinds(await set_up(session, server)) if names is None or one.name in names]
        for kind in every:
            await send(session, kind, 500)
        for number in range(rounds):
            for kind in every if number % 2 == 0 else every[::-1]:
                await send(session, kind, LEAD)  # demand that is known, as under a steady load
                before = {name: processor_seconds(pids) for name, pids in found.items()}
                times.setdefault(kind.name, []).extend(await send(session, kind, count))
                used = {name: (processor_seconds(pids) - before[name]) / count * 1e6 for name, pids in found.items()}
                costs.setdefault(kind.name, []).append((used["worker"], used["engine"]))
    rows: list[list[object]] = []
    for kind in every:
        some = costs[kind.name]
        worker, engine = (statistics.median(one[index] for one in some) for index in (0, 1))
        row: list[object] = [kind.name, f"{worker:.0f}", f"{engine:.0f}", f"{percentile(times[kind.name], 95):.0f}"]
        if kind.beside is not None:
            beside, aim = kind.beside
            quarters = statistics.quantiles([sum(a) / sum(b) for a, b in zip(costs[beside], some, strict=True)], n=4)
            row += [beside, f"{quarters[1]:.2f}", f"{quarters[0]:.2f} to {quarters[2]:.2f}", f"{aim:g}"]
        rows.append(row + [""] * (len(HEAD) - len(row)))
    return rows


# Start with a large registry


async def fill(server: Server, routes: int) -> None:
    """Write the records of routes, and of a hundredth as many services, in batches."""
    connection, cipher = (
        Connection(server.engine),
        SecretCipher(platform_keys(with_platform_key(Settings.of(data_dir=server.home)))),
    )

    def secret_of(service: ServiceRecord) -> SecretRecord:
        return SecretRecord(number=1, locked=cipher.encrypt(service.secret_owner(1), SECRET), created_at_ms=now_ms())

    await connection.open()
    try:
        committers = Committers(connection, CommitPolicy(), WriteBufferLimit(1 << 30))
        services = [
            ServiceRecord(
                tenant="bench",
                name=f"service-{number}",
                incarnation="i",
                secrets=(),
                created_at_ms=0,
                updated_at_ms=0,
            )
            for number in range(routes // 100)
        ]
        services = [msgspec.structs.replace(one, secrets=(secret_of(one),)) for one in services]
        tables: list[tuple[str, Iterator[ServiceRecord | RouteRecord]]] = [
            (SERVICES_BUCKET, iter(services)),
            (ROUTES_BUCKET, route_records(routes)),
        ]
        for bucket, records in tables:
            while part := list(itertools.islice(records, _BATCH)):
                pending = [PendingMessage(f"$KV.{bucket}.{one.key}", msgspec.json.encode(one), new_id()) for one in part]
                await committers.of(f"KV_{bucket}").append_together(pending)
    finally:
        await connection.close()


async def without_snapshots(engine: ConnectionSettings) -> None:
    connection = Connection(engine)
    await connection.open()
    try:
        await purge_stream(connection, f"OBJ_{SNAPSHOTS_BUCKET}")
    finally:
        await connection.close()


@dataclass(frozen=True, slots=True)
class Start:
    """Of a worker, from the start of its process until it is ready: time by the clock and of the processor, and its memory."""

    seconds: float
    processor_seconds: float
    megabytes: float


def started(server: Server) -> Start:
    """End the gateway's worker and wait for the next one. Includes the interpreter's start and imports, but not the supervisor's
    pause, which grows with each end."""
    [before] = processes(server.pid)["worker"]
    os.kill(before, signal.SIGKILL)
    while True:
        try:
            with urllib.request.urlopen(f"{server.url}/readyz", timeout=60) as answer:
                if answer.status == 200:
                    break
        except OSError:
            time.sleep(0.01)
    ready_at = time.clock_gettime(time.CLOCK_BOOTTIME)
    [worker] = processes(server.pid)["worker"]
    kilobytes = int(Path(f"/proc/{worker}/status").read_text().partition("VmRSS:")[2].split()[0])
    ticks = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[19])
    return Start(ready_at - ticks / os.sysconf("SC_CLK_TCK"), processor_seconds([worker]), kilobytes / 1000)


def snapshot(server: Server, *words: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "postroad", "snapshot", *words, "--data", str(server.home), "--json"]
    found: dict[str, Any] = msgspec.json.decode(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def measure_registry(routes: int, count: int) -> None:
    """The start of a worker and the cost of a command with an empty registry, then with a large one."""
    rows: dict[str, Start] = {}
    costs: dict[str, float] = {}
    with postroad() as server:
        rows["empty"] = min((started(server) for _ in range(ROUNDS)), key=lambda one: one.processor_seconds)
        costs["empty"] = uvloop.run(command_microseconds(server, count))
        uvloop.run(fill(server, routes))
        for name in ("snapshot", "whole registry"):
            found = []
            for _ in range(3):
                if name == "snapshot":
                    snapshot(server, "write")
                else:
                    uvloop.run(without_snapshots(server.engine))
                found.append(started(server))
            rows[name] = min(found, key=lambda one: one.processor_seconds)
        snapshot(server, "write")
        started(server)
        costs["snapshot"] = uvloop.run(command_microseconds(server, count))
        shown = snapshot(server, "show")
    print(
        f"{shown['routes']:,} routes, {shown['grants']:,} grants; stored: {shown['stored'][-1]['bytes'] / 1e6:.1f} MB compressed"
    )
    aims = {"empty": "", "snapshot": "at most 3 s and 150 MB more, commands within 20 %", "whole registry": "at most 20 s more"}
    print(
        table(
            ["start of a worker", "seconds", "processor seconds", "memory (MB)", "command (µs of the worker)", "aim"],
            [
                [
                    name,
                    f"{one.seconds:.2f}",
                    f"{one.processor_seconds:.2f}",
                    f"{one.megabytes:.0f}",
                    f"{costs[name]:.0f}" if name in costs else "",
                    aims[name],
                ]
                for name, one in rows.items()
            ],
        )
    )


async def command_microseconds(server: Server, count: int) -> float:
    """Processor time of the worker for a command on the fast path: the least of some rounds.

    A round is long beside what the worker does at intervals, which with a large registry is a third of a short round.
    """
    count = max(count, _REGISTRY_REQUESTS)
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json", "X-Postroad-Service": "sender"}
    async with aiohttp.ClientSession(server.url, headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
        secret = await set_up(session, server)
        kind = next(one for one in kinds(secret) if one.name == "command, fast")
        await send(session, kind, 500)
        found = []
        for _ in range(ROUNDS):
            workers = processes(server.pid)["worker"]
            before = processor_seconds(workers)
            await send(session, kind, count)
            found.append((processor_seconds(workers) - before) / count * 1e6)
    return min(found)


_PARTS = {
    "pure": "the pure stages",
    "http": "requests over HTTP",
    "sync": "requests with a sync every two seconds",
    "registry": "the start with a large registry",
}


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("requests", nargs="?", type=int, default=400)
    arguments.add_argument("--rounds", type=int, default=20, help="measurements of each kind, in turns")
    for part, what in _PARTS.items():
        arguments.add_argument(f"--{part}", dest="parts", action="append_const", const=part, help=f"measure {what}")
    arguments.add_argument("--routes", type=int, default=100_000, help="of the large registry, with ten grants each")
    given = arguments.parse_args()
    parts = given.parts or _PARTS
    if "pure" in parts:
        measure_pure()
    if "http" in parts:
        with postroad() as server:
            print(table(HEAD, uvloop.run(measure(server, given.requests, given.rounds))))
    if "sync" in parts:
        with postroad(POSTROAD_SYNC="2s") as server:
            rows = uvloop.run(measure(server, given.requests, given.rounds, ("message", "command, fast")))
            print(table([f"{HEAD[0]}, sync every 2 s", *HEAD[1:]], rows))
    if "registry" in parts:
        measure_registry(given.routes, given.requests)


if __name__ == "__main__":
    main()
