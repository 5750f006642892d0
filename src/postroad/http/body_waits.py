"""Connections that wait a moment for the rest of a body. One timer serves all of them: one for each request would cost as much as
the task that the wait saves."""

import asyncio
from typing import Protocol

_TICK_SECONDS = 0.025  # a wait ends with the second tick


class WaitingConnection(Protocol):
    def end_body_wait(self) -> None:
        """The body was not complete in time."""


class BodyWaits:
    def __init__(self) -> None:
        self._new: dict[WaitingConnection, None] = {}
        self._old: dict[WaitingConnection, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: WaitingConnection) -> None:
        self._new[connection] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)

    def remove(self, connection: WaitingConnection) -> None:
        if connection in self._new:
            del self._new[connection]
        else:
            self._old.pop(connection, None)

    def _tick(self) -> None:
        overdue, self._old, self._new = self._old, self._new, {}
        is_used = bool(overdue or self._old)
        self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick) if is_used else None
        for connection in overdue:
            connection.end_body_wait()
