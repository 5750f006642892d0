"""Watchdog: detects a process whose event loop no longer runs, by the heartbeats that the loop writes to a pipe."""

import asyncio
import contextlib
import os
from dataclasses import dataclass, field

_BEAT_SECONDS_MAX = 1.0
_TICKS_LATE_MAX = 3  # a longer delay between two ticks means that this process or the machine was suspended


@dataclass(slots=True)
class HeartbeatDeadline:
    """Decides whether a process has missed its heartbeats. Until the first one, the longer `start_seconds` apply."""

    seconds: float
    start_seconds: float
    tick_seconds: float
    _limit: float = field(init=False, default=0.0)
    _beat_at: float = field(init=False, default=0.0)
    _ticked_at: float = field(init=False, default=0.0)

    def restart(self, now: float) -> None:
        self._limit, self._beat_at, self._ticked_at = max(self.seconds, self.start_seconds), now, now

    def silence(self, now: float, *, is_received: bool) -> float | None:
        """The seconds without a heartbeat if they exceed the limit, else None.

        A late tick restarts the measurement: if the observer was suspended, the process had no chance to be seen alive.
        """
        is_late = now - self._ticked_at > _TICKS_LATE_MAX * self.tick_seconds
        self._ticked_at = now
        if is_received:
            self._limit = self.seconds
        if is_received or is_late:
            self._beat_at = now
        return now - self._beat_at if now - self._beat_at > self._limit else None


class Watchdog:
    """Holds the pipe of one process across its restarts; `descriptor` is the end that the process writes to."""

    def __init__(self, seconds: float, start_seconds: float) -> None:
        self._deadline = HeartbeatDeadline(seconds, start_seconds, _interval(seconds))
        self._reader, self.descriptor = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self.descriptor, False)

    async def wait_hung(self) -> float:
        """Return the seconds of silence once a process that starts now has missed its heartbeats."""
        loop = asyncio.get_running_loop()
        self._is_received()  # of the previous process
        self._deadline.restart(loop.time())
        while True:
            await asyncio.sleep(self._deadline.tick_seconds)
            silence = self._deadline.silence(loop.time(), is_received=self._is_received())
            if silence is not None:
                return silence

    def _is_received(self) -> bool:
        try:
            return bool(os.read(self._reader, 65536))
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._reader)
        os.close(self.descriptor)


def _interval(watchdog_seconds: float) -> float:
    return min(_BEAT_SECONDS_MAX, watchdog_seconds / 4)


async def send_heartbeats(descriptor: int, watchdog_seconds: float) -> None:
    """Write a byte at least every second from the event loop, until cancelled."""
    while True:
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the supervisor is suspended
            os.write(descriptor, b".")
        await asyncio.sleep(_interval(watchdog_seconds))
