"""The last pull and ack of a consumer are known although its processes forget idle keys."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

from postroad.jetstream.connection import Connection
from postroad.queues.consumer_activity import ConsumerReports
from postroad.queues.lease_states import Step, Transition
from tests.virtual_time import in_virtual_time


class Broadcasts:
    """A connection whose messages arrive at once."""

    def __init__(self) -> None:
        self._listeners: list[Callable[[bytes], None]] = []

    def listen(self, _subject: str, listener: Callable[[bytes], None]) -> Callable[[], Awaitable[None]]:
        self._listeners.append(listener)

        async def stop() -> None:
            self._listeners.remove(listener)

        return stop

    def publish(self, _subject: str, payload: bytes) -> None:
        for listener in self._listeners:
            listener(payload)


def leased(sequence: int) -> Transition:
    return Transition(sequence, 1, Step.LEASED, 0)


@in_virtual_time
async def test_a_message_after_a_long_wait_leaves_the_last_pull_and_ack_known() -> None:
    """A process forgets the key while its pull waits, and begins anew with the message."""
    settled: set[int] = set()

    def state_of(_incarnation: str, sequence: int, _attempt: int) -> str:
        return "settled" if sequence in settled else "leased"

    reports = ConsumerReports(cast(Connection, Broadcasts()), state_of)
    running: asyncio.Task[Any] = asyncio.create_task(reports.run())
    reports.record_pull("Q", "k", 1_000)
    reports.record_leases("Q", "i", "k", [leased(1)])
    settled.add(1)
    reports.record_acks("Q", "k", 2_000, [1_500])
    reports.record_pull("Q", "k", 3_000)  # waits
    await asyncio.sleep(20)
    reports.record_leases("Q", "i", "k", [leased(2)])
    await asyncio.sleep(3)
    [found] = reports.of("Q")
    assert (found.last_pull_ms, found.last_ack_ms, found.in_flight) == (3_000, 2_000, 1)
    await asyncio.sleep(1_000)
    assert [one.in_flight for one in reports.of("Q")] == [1], "an open lease is reported for as long as it is open"
    running.cancel()
