"""What keeps and settles leases, with a server that a test plays: when it is called, in which order, and what is told of it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest

from postroad.api.problems import Problem
from postroad.api.queues import Acked, ExtendedItem, ExtendedMany, ReceiptResult
from postroad.client import Message
from postroad.client.errors import EngineUnavailable, QueueNotFound, Unauthenticated
from postroad.client.worker.acker import Settler
from postroad.client.worker.leases import Lease, LeaseRenewer
from postroad.client.worker.outcomes import Outcome, reason_of
from postroad.client.worker.workers import WorkerSettings
from tests.waiting import eventually

EXPIRED = Problem(type="", code="lease-expired", status=409, title="Lease expired", retryable=False)


def message(number: int = 0) -> Message:
    return Message(
        receipt_id=f"r-{number}",
        message_id=str(number),
        job_id="j",
        raw_payload=msgspec.Raw(b"1"),
        headers={},
        attempt=1,
        enqueued_at="",
    )


class Played:
    """A client whose `queues` writes down what it is asked, and does as it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.problems: list[Exception] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.expired: set[str] = set()
        self.queues = self

    async def _called(self, name: str, receipts: list[str]) -> None:
        self.calls.append((name, receipts))
        await self.gate.wait()
        if self.problems:
            raise self.problems.pop(0)

    async def extend_many(self, queue: str, receipts: list[str], lease_ms: int) -> ExtendedMany:
        await self._called("extend", receipts)
        results = [
            ExtendedItem(receipt_id=one, ok=False, problem=EXPIRED)
            if one in self.expired
            else ExtendedItem(receipt_id=one, ok=True, new_receipt_id=one + "+")
            for one in receipts
        ]
        return ExtendedMany(ok=True, results=results)

    async def ack_many(self, queue: str, receipts: list[str]) -> Acked:
        await self._called("ack", receipts)
        return Acked(ok=True, results=[ReceiptResult(receipt_id=one, ok=one not in self.expired) for one in receipts])

    async def nack(self, queue: str, receipt: str, **_: Any) -> Acked:
        await self._called("nack", [receipt])
        return Acked(ok=True)


@pytest.fixture
def played() -> Played:
    return Played()


@pytest.fixture
async def run() -> AsyncIterator[Callable[[Any], None]]:
    """Runs what is given until the test ends."""
    tasks: list[asyncio.Task[None]] = []
    yield lambda coroutine: tasks.append(asyncio.create_task(coroutine))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def no_pauses() -> Iterator[float]:
    while True:
        yield 0.001


# Keeping


async def test_a_lease_is_extended_when_a_third_of_it_is_over(played: Played, run: Callable[[Any], None]) -> None:
    keeper = LeaseRenewer(played, "q", 900, lambda _: None)  # type: ignore[arg-type]
    run(keeper.run())
    began = asyncio.get_running_loop().time()
    lease = keeper.hold(message())
    await eventually(lambda: lease.extensions == 2)
    took = asyncio.get_running_loop().time() - began
    assert took >= 0.6
    assert (lease.receipt, [receipts for _, receipts in played.calls]) == ("r-0++", [["r-0"], ["r-0+"]])
    keeper.drop(lease)


async def test_leases_of_about_the_same_age_are_extended_together(played: Played, run: Callable[[Any], None]) -> None:
    keeper = LeaseRenewer(played, "q", 300, lambda _: None)  # type: ignore[arg-type]
    run(keeper.run())
    leases = [keeper.hold(message(number)) for number in range(5)]
    await eventually(lambda: all(lease.extensions for lease in leases))
    assert sorted(played.calls[0][1]) == ["r-0", "r-1", "r-2", "r-3", "r-4"]


async def test_a_dropped_lease_is_extended_no_more(played: Played, run: Callable[[Any], None]) -> None:
    keeper = LeaseRenewer(played, "q", 90, lambda _: None)  # type: ignore[arg-type]
    run(keeper.run())
    gone, kept = keeper.hold(message(1)), keeper.hold(message(2))
    keeper.drop(gone)
    await eventually(lambda: kept.extensions >= 2)
    assert gone.extensions == 0
    assert not any("r-1" in receipts for _, receipts in played.calls)


async def test_releasing_waits_for_an_extension_that_is_on_its_way(played: Played, run: Callable[[Any], None]) -> None:
    """Or the extension, arriving after the nack, would put its delay in place of the retry's."""
    keeper = LeaseRenewer(played, "q", 600, lambda _: None)  # type: ignore[arg-type]
    run(keeper.run())
    played.gate.clear()
    lease = keeper.hold(message())
    await eventually(lambda: played.calls)
    releasing = asyncio.create_task(keeper.release(lease))
    await asyncio.wait({releasing}, timeout=0.05)
    assert not releasing.done()
    played.gate.set()
    await releasing
    assert lease.receipt == "r-0+"


@pytest.mark.parametrize("problem", [EngineUnavailable("away"), Unauthenticated("no")])
async def test_what_cannot_be_extended_now_is_tried_again_until_its_time_is_over(
    played: Played, run: Callable[[Any], None], problem: Exception
) -> None:
    lost: list[Lease] = []
    keeper = LeaseRenewer(played, "q", 300, lost.append)  # type: ignore[arg-type]
    run(keeper.run())
    played.problems = [problem] * 2
    lease = keeper.hold(message())
    await eventually(lambda: lease.extensions == 1)
    assert lost == []
    played.problems = [problem] * 1000
    await eventually(lambda: lost == [lease])


async def test_a_call_without_an_answer_does_not_outlast_the_lease(played: Played, run: Callable[[Any], None]) -> None:
    lost: list[Lease] = []
    keeper = LeaseRenewer(played, "q", 150, lost.append)  # type: ignore[arg-type]
    run(keeper.run())
    played.gate.clear()
    lease = keeper.hold(message())
    await eventually(lambda: lost == [lease])


async def test_only_what_is_expired_is_lost(played: Played, run: Callable[[Any], None]) -> None:
    lost: list[Lease] = []
    keeper = LeaseRenewer(played, "q", 150, lost.append)  # type: ignore[arg-type]
    run(keeper.run())
    played.expired = {"r-1"}
    bad, good = keeper.hold(message(1)), keeper.hold(message(2))
    await eventually(lambda: good.extensions >= 2)
    assert lost == [bad]


async def test_all_of_a_deleted_queue_are_lost_at_once(played: Played, run: Callable[[Any], None]) -> None:
    lost: list[Lease] = []
    keeper = LeaseRenewer(played, "q", 300, lost.append)  # type: ignore[arg-type]
    run(keeper.run())
    played.problems = [QueueNotFound("gone")]
    leases = {keeper.hold(message(1)), keeper.hold(message(2))}
    await eventually(lambda: set(lost) == leases)
    assert len(played.calls) == 1


# Settling


def lease_of(number: int, seconds: float = 5) -> Lease:
    now = asyncio.get_running_loop().time()
    return Lease(message(number), now + seconds, now)


async def test_acks_that_come_while_one_is_on_its_way_go_together(played: Played, run: Callable[[Any], None]) -> None:
    settler = Settler(played, "q", no_pauses)  # type: ignore[arg-type]
    run(settler.run())
    played.gate.clear()
    first = asyncio.create_task(settler.ack(lease_of(0)))
    await eventually(lambda: played.calls)
    rest = [asyncio.create_task(settler.ack(lease_of(number))) for number in range(1, 6)]
    played.expired = {"r-3"}
    await asyncio.sleep(0)
    played.gate.set()
    assert await first
    assert await asyncio.gather(*rest) == [True, True, False, True, True]
    assert [len(receipts) for _, receipts in played.calls] == [1, 5]


async def test_settling_is_tried_again_while_the_lease_lasts(played: Played, run: Callable[[Any], None]) -> None:
    settler = Settler(played, "q", no_pauses)  # type: ignore[arg-type]
    run(settler.run())
    played.problems = [EngineUnavailable("away")] * 3
    assert await settler.ack(lease_of(0))
    played.problems = [EngineUnavailable("away")] * 3
    assert await settler.nack(lease_of(1), "retry", None, None)
    assert [name for name, _ in played.calls] == ["ack"] * 4 + ["nack"] * 4


async def test_settling_ends_with_the_lease_or_a_clear_no(played: Played, run: Callable[[Any], None]) -> None:
    settler = Settler(played, "q", no_pauses)  # type: ignore[arg-type]
    run(settler.run())
    played.problems = [EngineUnavailable("away")] * 10_000
    assert not await settler.ack(lease_of(0, 0.05))
    assert not await settler.nack(lease_of(1, 0.05), "retry", None, None)
    played.problems = [QueueNotFound("gone")]
    assert not await settler.nack(lease_of(2), "retry", None, None)
    played.gate.clear()
    assert not await settler.nack(lease_of(3, 0.05), "retry", None, None)


# Rules


def test_pauses_grow_to_their_limit() -> None:
    pauses = WorkerSettings(pause_first=1, pause_max=4).pauses()
    found = [next(pauses) for _ in range(6)]
    assert all(top / 2 <= pause <= top for pause, top in zip(found, [1, 2, 4, 4, 4, 4], strict=True))


def test_a_lease_is_taken_once() -> None:
    lease = Lease(message(), 0, 0)
    lease.check()
    lease.take(Outcome.LOST)
    lease.take(Outcome.GIVEN_BACK)
    assert lease.taken_by is Outcome.LOST


def test_a_reason_is_the_last_line_of_a_traceback() -> None:
    assert reason_of(KeyError("order")) == "KeyError: 'order'"
    assert reason_of(ValueError()) == "ValueError"
