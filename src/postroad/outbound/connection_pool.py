"""Idle connections for reuse, per tenant and origin."""

import asyncio

from postroad.outbound.http_connection import HttpConnection

_KEEPALIVE_SECONDS = 4.0  # many servers close after five; a request on a connection that is being closed would fail

Key = tuple[str, str]  # tenant and origin: a tenant's server cannot prepare a response for another tenant


class ConnectionPool:
    def __init__(self, connections_max: int) -> None:
        self._connections_max = connections_max
        self._by_key: dict[Key, list[HttpConnection]] = {}
        self._idle_since: dict[HttpConnection, tuple[float, Key]] = {}  # oldest first
        self._sweep: asyncio.TimerHandle | None = None

    def take(self, key: Key) -> HttpConnection | None:
        """The connection that was used last, if one is still open."""
        connections = self._by_key.get(key, [])
        while connections:
            connection = connections[-1]
            self._remove(connection)
            if connection.is_idle:
                return connection
        return None

    def put(self, key: Key, connection: HttpConnection) -> None:
        """Keep the connection for a while, or close it if it cannot be reused."""
        if not connection.is_idle:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        self._by_key.setdefault(key, []).append(connection)
        self._idle_since[connection] = (loop.time(), key)
        if self._sweep is None:
            self._sweep = loop.call_later(_KEEPALIVE_SECONDS, self._close_expired)

    def make_space(self, in_use: int) -> None:
        """Close the oldest idle connections, so that all together are within the limit."""
        while self._idle_since and in_use + len(self._idle_since) > self._connections_max:
            self._close_oldest()

    def close(self) -> None:
        while self._idle_since:
            self._close_oldest()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def _close_expired(self) -> None:
        loop = asyncio.get_running_loop()
        expired = loop.time() - _KEEPALIVE_SECONDS
        while self._idle_since and next(iter(self._idle_since.values()))[0] <= expired:
            self._close_oldest()
        oldest = next(iter(self._idle_since.values()), None)
        self._sweep = None if oldest is None else loop.call_at(oldest[0] + _KEEPALIVE_SECONDS, self._close_expired)

    def _close_oldest(self) -> None:
        connection = next(iter(self._idle_since))
        self._remove(connection)
        connection.close()

    def _remove(self, connection: HttpConnection) -> None:
        _, key = self._idle_since.pop(connection)
        self._by_key[key].remove(connection)
        if not self._by_key[key]:
            del self._by_key[key]
