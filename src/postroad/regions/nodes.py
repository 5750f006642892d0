"""The servers of the engine as this process knows them. They are asked for when they are needed, and remembered for a while."""

import asyncio

from postroad.jetstream.cluster_info import find_servers
from postroad.jetstream.connection import Connection
from postroad.regions.rules import Node

_FRESH_SECONDS = 5.0
_KNOWN_SECONDS = 60.0
_FORGET_SECONDS = 3600.0  # a server that has not answered for so long does not count any more


class NodeDirectory:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._seen: dict[str, tuple[float, Node]] = {}
        self._asked_at = float("-inf")
        self._lock = asyncio.Lock()

    async def fresh(self) -> list[Node]:
        """The servers as of some seconds ago at most, for decisions; none if they cannot be asked for."""
        return await self._nodes(_FRESH_SECONDS)

    async def known(self) -> list[Node]:
        """The servers as of a minute ago at most, for display."""
        return await self._nodes(_KNOWN_SECONDS)

    async def _nodes(self, age_max: float) -> list[Node]:
        loop = asyncio.get_running_loop()
        async with self._lock:
            if loop.time() - self._asked_at > age_max:
                await self._ask(loop.time())
        return [node for _, node in self._seen.values()]

    async def _ask(self, now: float) -> None:
        servers = await find_servers(self._connection)
        if not servers:
            return  # asked again next time
        self._asked_at = now
        answered = {one.name: (now, Node(one.name, one.tags)) for one in servers}
        missing = {
            name: (at, Node(name, node.tags, is_up=False))
            for name, (at, node) in self._seen.items()
            if name not in answered and now - at <= _FORGET_SECONDS
        }
        self._seen = dict(sorted((answered | missing).items()))
