import asyncio
import os
import signal
import sys

import pytest
from tests.waiting import eventually

from postroad.runtime.process_supervisor import Command, SupervisedProcess
from postroad.runtime.watchdog import HeartbeatDeadline, Watchdog


@pytest.fixture
def deadline() -> HeartbeatDeadline:
    """Limits of 10 seconds, and 60 for the start; the process starts at 100."""
    deadline = HeartbeatDeadline(10, 60, 1)
    deadline.restart(100)
    return deadline


def _first_expiry(deadline: HeartbeatDeadline, start: int, end: int) -> int | None:
    """Tick every second without a heartbeat."""
    return next((now for now in range(start, end) if deadline.silence(now, is_received=False)), None)


def test_a_process_that_stops_sending_heartbeats_is_detected(deadline: HeartbeatDeadline) -> None:
    assert deadline.silence(101, is_received=True) is None
    assert _first_expiry(deadline, 102, 200) == 112


def test_a_process_that_starts_has_more_time(deadline: HeartbeatDeadline) -> None:
    assert _first_expiry(deadline, 101, 200) == 161


def test_heartbeats_postpone_the_deadline(deadline: HeartbeatDeadline) -> None:
    assert not [now for now in range(101, 300) if deadline.silence(now, is_received=now % 9 == 0)]


def test_after_a_suspension_of_the_observer_the_process_gets_the_whole_time_again(deadline: HeartbeatDeadline) -> None:
    deadline.silence(101, is_received=True)

    assert deadline.silence(500, is_received=False) is None
    assert _first_expiry(deadline, 501, 600) == 511


def test_each_process_starts_with_the_longer_limit(deadline: HeartbeatDeadline) -> None:
    deadline.silence(101, is_received=True)
    deadline.restart(200)

    assert _first_expiry(deadline, 201, 300) == 261


_PROCESS = """
import asyncio, sys
from postroad.runtime.watchdog import send_heartbeats
asyncio.run(send_heartbeats(int(sys.argv[1]), 1.0))
"""


@pytest.mark.engine
async def test_a_stopped_process_is_killed_and_restarted() -> None:
    watchdog = Watchdog(1.0, 60.0)
    ends: list[tuple[int, bool]] = []
    command = Command("beating", (sys.executable, "-c", _PROCESS, str(watchdog.descriptor)), {}, (watchdog.descriptor,))
    process = SupervisedProcess(command, watchdog=watchdog, on_end=lambda *end: ends.append(end))
    running = asyncio.create_task(process.run())
    try:
        first = await eventually(lambda: process.pid)
        assert first is not None
        await eventually(lambda: watchdog._deadline._limit == 1.0)  # it has sent a heartbeat
        os.kill(first, signal.SIGSTOP)

        await eventually(lambda: process.pid not in (None, first))

        assert ends == [(first, True)]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        watchdog.close()
