"""Shared by the benchmarks of commands: a session, senders and routes, signed envelopes, processor time by role."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from benchmarks.harness import Server
from benchmarks.processor_time import process_seconds
from postroad.client.command_signer import NewCommand, envelope

CONNECTIONS = 64
_ATTEMPTS = 20
_ROLES = ("gateway", "control", "delivery", "nats-server")


def seconds_by_role(server: Server) -> dict[str, float]:
    """Processor seconds of the supervisor's children so far."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    found = dict.fromkeys(_ROLES, 0.0)
    for pid in map(int, children):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        for role in _ROLES:
            if f"postroad.runtime.worker\0{role}" in line or (role == "nats-server" and role in line.partition("\0")[0]):
                found[role] += process_seconds(pid)
    return found


@dataclass(frozen=True, slots=True)
class Api:
    """JSON requests to an installation. Repeats those that the engine did not execute; ends the program if one is refused."""

    session: aiohttp.ClientSession

    async def call(self, method: str, path: str, body: object = None, *, service: str = "sender") -> Any:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"X-Postroad-Service": service}
        for _ in range(_ATTEMPTS):
            async with self.session.request(method, path, data=data, headers=headers) as answer:
                text = await answer.read()
                if answer.status < 300:
                    return msgspec.json.decode(text) if text else None
                if answer.status != 503:
                    break
            await asyncio.sleep(1)
        raise SystemExit(f"{method} {path}: {answer.status} {text.decode()}")

    async def register_sender(self, name: str = "sender") -> str:
        """Register a service that the key may send as; return its secret."""
        key = (await self.call("GET", "/v1/whoami"))["keyId"]
        await self.call("PUT", f"/v1/services/{name}", {"trustedKeys": [key]})
        services = (await self.call("GET", "/v1/tenant-config"))["services"]
        return next(str(one["secrets"][0]["secret"]) for one in services if one["name"] == name)

    async def register_route(self, command: str, *, senders: tuple[str, ...] = ("sender",), **route: object) -> None:
        await self.call("PUT", "/v1/services/bot", {})
        await self.call("PUT", f"/v1/queues/bot-{command}", {"maxAttempts": 5})
        await self.call("PUT", f"/v1/routes/bot/{command}", {"queue": f"bot-{command}", **route})
        for sender in senders:
            await self.call("PUT", f"/v1/grants/bot/{command}/{sender}", {})

    async def send(self, secret: str, command: str, count: int, payload: object, *, connections: int = CONNECTIONS) -> None:
        """Send commands over several connections, each as a request of its own."""
        left = iter(range(count))

        async def client() -> None:
            for _ in left:
                body = signed(secret, command, payload)
                async with self.session.post("/v1/commands", data=body, headers={"X-Postroad-Service": "sender"}) as answer:
                    if answer.status != 202:
                        raise SystemExit(f"{answer.status} {await answer.text()}")
                    await answer.read()

        await asyncio.gather(*(client() for _ in range(connections)))


def signed(secret: str, command: str, payload: object) -> bytes:
    return envelope(NewCommand(target="bot", name=command, payload=payload, id=str(uuid.uuid4())), secret, "hmac-v1")


@contextlib.asynccontextmanager
async def api_of(server: Server) -> AsyncIterator[Api]:
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        server.url, headers=headers, connector=aiohttp.TCPConnector(limit=0), timeout=timeout
    ) as session:
        yield Api(session)


def in_turns(names: list[str], rounds: int) -> Iterator[str]:
    """Each name once per round, in alternating order."""
    for number in range(rounds):
        yield from names if number % 2 == 0 else names[::-1]
