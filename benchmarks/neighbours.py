"""Noisy neighbours: the publish latency of one tenant, alone and while another one attacks, and how fast the attacker's key ends.

    python -m benchmarks.neighbours [--seconds 5] [--rounds 3] [--attack flood --attack pulls]

The publisher sends at a steady rate and measures from the moment each request is due. Each attack runs in a process of its own.
Rounds alternate: alone, then under attack. The table has the medians of the rounds' p99, and the median of their ratios.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import tomllib
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import aiohttp

from benchmarks.harness import Server, postroad, table
from postroad.api.access import IssuedKey
from postroad.client import Postroad

PUBLISHES_PER_SECOND = 50
_MIB = 1024 * 1024

Attack = Callable[[str, str], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Result:
    attack: str
    rounds: list[tuple[float, float]]  # p99 in milliseconds alone, and under attack
    failed: int
    revoked_after_ms: float

    @property
    def ratio(self) -> float:
        return statistics.median(attacked / alone for alone, attacked in self.rounds)


# The victim


async def publish_latencies(url: str, key: str, seconds: float) -> tuple[list[float], int]:
    """Milliseconds of each publish, from the moment it was due; and the number of failures."""
    latencies: list[float] = []
    failed = 0
    headers = {"Authorization": f"Bearer {key}"}
    connector = aiohttp.TCPConnector(limit=0)

    async def publish(session: aiohttp.ClientSession, due: float) -> None:
        nonlocal failed
        try:
            async with session.post(f"{url}/v1/queues/orders/messages", json={"payload": {"id": 1}}) as response:
                await response.read()
                failed += response.status != 201
        except (aiohttp.ClientError, TimeoutError):
            failed += 1
        latencies.append((time.monotonic() - due) * 1000)

    timeout = aiohttp.ClientTimeout(total=20)
    async with (
        aiohttp.ClientSession(headers=headers, connector=connector, timeout=timeout) as session,
        asyncio.TaskGroup() as group,
    ):
        start = time.monotonic()
        for number in range(int(seconds * PUBLISHES_PER_SECOND)):
            due = start + number / PUBLISHES_PER_SECOND
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(publish(session, due))
    return latencies, failed


def p99(latencies: list[float]) -> float:
    return statistics.quantiles(latencies, n=100)[98]


# Attacks. Each goes on until its process is ended.


async def repeat(workers: int, work: Callable[[aiohttp.ClientSession], Awaitable[None]], key: str) -> None:
    async def forever(session: aiohttp.ClientSession) -> None:
        while True:
            try:
                await work(session)
            except (aiohttp.ClientError, TimeoutError, OSError):
                await asyncio.sleep(0.05)

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}, connector=connector) as session:
        await asyncio.gather(*(forever(session) for _ in range(workers)))


async def _post(session: aiohttp.ClientSession, url: str, body: object) -> int:
    async with session.post(url, json=body) as response:
        await response.read()
        if response.status in (401, 429, 503):  # a client that goes on at once measures its own processor
            await asyncio.sleep(0.02)
        return response.status


async def flood(url: str, key: str) -> None:
    """Publishes on 64 connections, as fast as they are answered."""

    async def publish(session: aiohttp.ClientSession) -> None:
        await _post(session, f"{url}/v1/queues/orders/messages", {"payload": {"id": 1}})

    await repeat(64, publish, key)


async def large(url: str, key: str) -> None:
    """Publishes of 200 KiB until the tenant's storage quota is used, and on."""
    body = {"payload": "x" * 200 * 1024}

    async def publish(session: aiohttp.ClientSession) -> None:
        await _post(session, f"{url}/v1/queues/large/messages", body)

    await repeat(8, publish, key)


async def pulls(url: str, key: str) -> None:
    """Pulls of a hundred messages of 200 KiB, which are returned at once."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session:
        for _ in range(200):
            await _post(session, f"{url}/v1/queues/fat/messages", {"payload": "x" * 200 * 1024})

    async def pull(session: aiohttp.ClientSession) -> None:
        await _post(session, f"{url}/v1/queues/fat/pull", {"maxMessages": 100, "visibilityTimeoutMs": 1000})

    await repeat(8, pull, key)


async def schemas(url: str, key: str) -> None:
    """A schema whose validation takes exponential time, set and used again and again."""
    chain = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    schema = {"$defs": {**chain, "d40": {"type": "object", "required": ["never"]}}, "$ref": "#/$defs/d0"}

    async def use(session: aiohttp.ClientSession) -> None:
        async with session.put(f"{url}/v1/queues/schema", json={"schema": schema}) as response:
            await response.read()
        await _post(session, f"{url}/v1/queues/schema/messages", {"payload": {"a": [1, 2, 3]}})

    await repeat(8, use, key)


async def bodies(url: str, _key: str) -> None:
    """A hundred strangers that send 8 MiB to a route that needs no key."""

    async def send(session: aiohttp.ClientSession) -> None:
        async with session.post(f"{url}/api/control/claim", data=b"x" * 8 * _MIB) as response:
            await response.read()

    await repeat(100, send, "")


async def connections(url: str, key: str) -> None:
    """A thousand idle connections and a thousand live readers."""
    host, port = url.removeprefix("http://").split(":")
    idle: list[asyncio.StreamWriter] = []
    for number in range(2000):
        reader_head = f"GET /v1/telemetry/stream HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n" if number % 2 else ""
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(reader_head.encode())
            idle.append(writer)
    await asyncio.Event().wait()


async def names(url: str, key: str) -> None:
    """Webhooks to names that no name server answers for."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with aiohttp.ClientSession(headers=headers) as session:
        for number in range(200):
            async with session.put(f"{url}/v1/stream/s{number}", data=b"[]") as response:
                await response.read()
            hook = {"url": f"https://host{number}.dead.example/hook"}
            body = {"type": "webhook", "streams": [f"s{number}"], "webhook": hook, "lease_ttl_ms": 1000}
            async with session.put(f"{url}/v1/stream/__ds/subscriptions/n{number}", json=body) as response:
                await response.read()

    async def append(session: aiohttp.ClientSession) -> None:
        for number in range(200):
            async with session.post(f"{url}/v1/stream/s{number}", data=b"[1]", headers=headers) as response:
                await response.read()
        await asyncio.sleep(0.5)

    await repeat(1, append, key)


async def guesses(url: str, _key: str) -> None:
    """Requests with wrong keys on 64 connections."""

    async def guess(session: aiohttp.ClientSession) -> None:
        await _post(session, f"{url}/v1/queues/orders/messages", {"payload": 1})

    await repeat(64, guess, "pr_live_wrong")


ATTACKS: dict[str, Attack] = {
    attack.__name__: attack for attack in (flood, large, pulls, schemas, bodies, connections, names, guesses)
}


# The measurement


@contextlib.contextmanager
def attacking(name: str, url: str, key: str) -> Iterator[None]:
    # The attacker would be on another machine: here it gets the processor time that the others leave.
    command = ["nice", "-n", "19", sys.executable, "-m", "benchmarks.neighbours", "--run", name, url]
    process = subprocess.Popen(command, env={**os.environ, "ATTACKER_KEY": key}, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def measure(server: Server, admin: Postroad, name: str, seconds: float, rounds: int) -> Result:
    admin.tenants.create(f"attacker-{name}", auto_create_queues=True)
    with Postroad(server.url, key=_platform_key(server), tenant=f"attacker-{name}") as owner:
        issued = owner.keys.create("attacker", scopes=["publish", "consume", "read", "admin"])
    measured, failed, revoked_ms = [], 0, 0.0
    for number in range(1, rounds + 1):
        time.sleep(2)  # the connections of an attack before are closed
        alone, _ = asyncio.run(publish_latencies(server.url, server.key, seconds))
        with attacking(name, server.url, issued.key):
            time.sleep(2)  # the attack reaches its full rate
            attacked, failed_now = asyncio.run(publish_latencies(server.url, server.key, seconds))
            measured.append((p99(alone), p99(attacked)))
            failed += failed_now
            if number == rounds:
                revoked_ms = _revoke(server, name, issued)
    return Result(name, measured, failed, revoked_ms)


def _revoke(server: Server, name: str, issued: IssuedKey) -> float:
    """Milliseconds until the attacker's key is refused."""
    with Postroad(server.url, key=_platform_key(server), tenant=f"attacker-{name}") as owner:
        begun = time.monotonic()
        owner.keys.delete(issued.record.id)
    _wait_refused(server.url, issued.key)
    return (time.monotonic() - begun) * 1000


def _wait_refused(url: str, key: str) -> None:
    """Each connection may reach another worker: refused means refused on eight of them in a row."""
    refused = 0
    host, port = url.removeprefix("http://").split(":")
    while refused < 8:
        with socket.create_connection((host, int(port)), timeout=20) as probe:
            probe.sendall(
                f"GET /v1/whoami HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
            )
            refused = refused + 1 if probe.recv(12)[-3:] in (b"401", b"429") else 0  # 429: the attacker's wrong credentials


def _platform_key(server: Server) -> str:
    return str(tomllib.loads((server.home / "credentials.toml").read_text())["admin_key"])


def _row(result: Result) -> list[object]:
    alone, attacked = (statistics.median(column) for column in zip(*result.rounds, strict=True))
    return [
        result.attack,
        f"{alone:.1f}",
        f"{attacked:.1f}",
        f"{result.ratio:.2f}",
        result.failed,
        f"{result.revoked_after_ms:.0f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--attack", action="append", choices=list(ATTACKS))
    parser.add_argument("--run", nargs=2, metavar=("ATTACK", "URL"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run:
        asyncio.run(ATTACKS[chosen.run[0]](chosen.run[1], os.environ["ATTACKER_KEY"]))
        return
    with postroad(POSTROAD_OUTBOUND_ALLOW="127.0.0.0/8") as server, Postroad(server.url, key=_platform_key(server)) as admin:
        results = [measure(server, admin, name, chosen.seconds, chosen.rounds) for name in chosen.attack or ATTACKS]
    head = ("attack", "p99 alone ms", "p99 attacked ms", "ratio", "failed", "key ended after ms")
    rows = [_row(one) for one in results]
    sys.stdout.write(table(head, rows) + "\n")
    sys.stdout.write(json.dumps({one.attack: round(one.ratio, 2) for one in results}) + "\n")


if __name__ == "__main__":
    main()
