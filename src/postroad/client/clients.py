"""The two clients: the same namespaces, one that waits and one that is awaited."""

import os
from types import TracebackType
from typing import Any, Self

from postroad.client.health import AsyncHealth, Health
from postroad.client.queues import AsyncQueues, Queues
from postroad.client.transport import AsyncTransport, ClientSettings, SyncTransport


def client_settings(url: str | None, key: str | None, tenant: str | None, deadline: float) -> ClientSettings:
    """What is not given comes from POSTROAD_URL, POSTROAD_KEY and POSTROAD_TENANT."""
    key = key or os.environ.get("POSTROAD_KEY")
    if not key:
        raise ValueError("no API key: pass key=…, or set POSTROAD_KEY")
    address = url or os.environ.get("POSTROAD_URL") or "http://127.0.0.1:8080"
    return ClientSettings(address.rstrip("/"), key, tenant or os.environ.get("POSTROAD_TENANT"), deadline)


class Postroad:
    """Postroad over HTTP, from synchronous code.

        with Postroad(key=…) as postroad:
            postroad.queues.publish("orders", {"id": 1})

    Each call is tried again while that is safe and can help, within `deadline` seconds. Errors are those of
    `postroad.client.errors`. It may be shared by threads.
    """

    def __init__(
        self, url: str | None = None, key: str | None = None, *, tenant: str | None = None, deadline: float = 30.0
    ) -> None:
        self._transport = SyncTransport(client_settings(url, key, tenant, deadline))
        self.queues = Queues(self._transport)
        self.health = Health(self._transport)

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class AsyncPostroad:
    """As `Postroad`, from asynchronous code: every method returns an awaitable, every list an asynchronous iterator."""

    def __init__(
        self, url: str | None = None, key: str | None = None, *, tenant: str | None = None, deadline: float = 30.0
    ) -> None:
        self._transport = AsyncTransport(client_settings(url, key, tenant, deadline))
        self.queues = AsyncQueues(self._transport)
        self.health = AsyncHealth(self._transport)

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: Any) -> None:
        await self.close()
