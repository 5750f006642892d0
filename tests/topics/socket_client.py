"""A WebSocket client for tests of live reading."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from tests.gateway import Gateway, Tenant


class Socket:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, op: str, **more: object) -> None:
        await self.connection.send(msgspec.json.encode({"op": op, **more}).decode())

    async def next(self, seconds: float = 30) -> dict[str, Any]:
        async with asyncio.timeout(seconds):
            message: dict[str, Any] = msgspec.json.decode(await self.connection.recv())
        return message

    async def expect(self, op: str, ref: str | None = None) -> dict[str, Any]:
        found = await self.next()
        assert (found["op"], found.get("ref")) == (op, ref), found
        return found

    async def problem(self, code: str, ref: str | None = None) -> dict[str, Any]:
        found = await self.expect("error", ref)
        assert found["problem"]["code"] == code, found
        return found

    async def messages(self, count: int, ref: str | None = None) -> list[int]:
        return [(await self.expect("message", ref))["sequence"] for _ in range(count)]

    async def subscribe(self, ref: str = "a", topic: str = "orders", **more: object) -> dict[str, Any]:
        """Subscribe, and wait until it is live."""
        await self.send("subscribe", ref=ref, topic=topic, **more)
        subscribed = await self.expect("subscribed", ref)
        if not subscribed["pending"]:
            await self.expect("ready", ref)
        return subscribed

    async def closed_with(self, seconds: float = 30) -> tuple[int, str]:
        try:
            async with asyncio.timeout(seconds):
                while True:
                    await self.connection.recv()
        except ConnectionClosed as closed:
            assert closed.rcvd is not None
            return closed.rcvd.code, closed.rcvd.reason


@asynccontextmanager
async def socket(
    gateway: Gateway, key: str | None, path: str = "/v1/ws", subprotocol: str | None = "postroad.v1", **more: Any
) -> AsyncIterator[Socket]:
    url = gateway.url.replace("http", "ws", 1) + path
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    subprotocols = None if subprotocol is None else [Subprotocol(subprotocol)]
    async with connect(url, additional_headers=headers, subprotocols=subprotocols, **more) as connection:
        yield Socket(connection)


def socket_of(tenant: Tenant, path: str = "/v1/ws") -> Any:
    return socket(tenant.gateway, tenant.key, path)
