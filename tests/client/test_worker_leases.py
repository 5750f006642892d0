"""Lease renewal and acks of a worker, with a fake client: the calls, their order, and the reported outcomes."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from postroad.api.problems import Problem
from postroad.api.receipts import Acked, ExtendedItem, ExtendedMany, ReceiptResult
from postroad.client import Message
from postroad.client.errors import EngineUnavailable, QueueNotFound, Unauthenticated
from postroad.client.worker.acker import Acker
from postroad.client.worker.leases import Lease, LeaseRenewer
from postroad.client.worker.outcomes import Outcome, reason_of
from postroad.client.worker.workers import WorkerSettings
from tests.virtual_time import in_virtual_time
from tests.waiting import eventually

EXPIRED = Problem(type="", code="lease-expired", status=409, title="Lease expired", detail="expired", retryable=False)


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


class FakeClient:
    """A client whose `queues` records its calls and responds as the test demands."""

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
def fake() -> FakeClient:
    return FakeClient()


@pytest.fixture
def run() -> Callable[[Any], None]:
    """Run coroutines until the test ends."""
    tasks: list[asyncio.Task[None]] = []
    return lambda coroutine: tasks.append(asyncio.create_task(coroutine))


def no_pauses() -> Iterator[float]:
    while True:
        yield 0.001


# Renewal


@in_virtual_time
async def test_a_lease_is_extended_after_a_third_of_its_time(fake: FakeClient, run: Callable[[Any], None]) -> None:
    renewer = LeaseRenewer(fake, "q", 900, lambda *_: None)  # type: ignore[arg-type]
    run(renewer.run())
    began = asyncio.get_running_loop().time()
    lease = renewer.add(message())
    await eventually(lambda: lease.extensions == 2)
    took = asyncio.get_running_loop().time() - began
    assert took >= 0.6
    assert (lease.receipt, [receipts for _, receipts in fake.calls]) == ("r-0++", [["r-0"], ["r-0+"]])
    renewer.remove(lease)


@in_virtual_time
async def test_leases_of_similar_age_are_extended_together(fake: FakeClient, run: Callable[[Any], None]) -> None:
    renewer = LeaseRenewer(fake, "q", 300, lambda *_: None)  # type: ignore[arg-type]
    run(renewer.run())
    leases = [renewer.add(message(number)) for number in range(5)]
    await eventually(lambda: all(lease.extensions for lease in leases))
    assert sorted(fake.calls[0][1]) == ["r-0", "r-1", "r-2", "r-3", "r-4"]


@in_virtual_time
async def test_a_removed_lease_is_not_extended(fake: FakeClient, run: Callable[[Any], None]) -> None:
    renewer = LeaseRenewer(fake, "q", 900, lambda *_: None)  # type: ignore[arg-type]
    run(renewer.run())
    removed, kept = renewer.add(message(1)), renewer.add(message(2))
    renewer.remove(removed)
    await eventually(lambda: kept.extensions >= 2)
    assert removed.extensions == 0
    assert not any("r-1" in receipts for _, receipts in fake.calls)


@in_virtual_time
async def test_release_waits_for_an_extension_in_flight(fake: FakeClient, run: Callable[[Any], None]) -> None:
    """Otherwise the extension could arrive after the nack and replace the retry delay."""
    renewer = LeaseRenewer(fake, "q", 600, lambda *_: None)  # type: ignore[arg-type]
    run(renewer.run())
    fake.gate.clear()
    lease = renewer.add(message())
    await eventually(lambda: fake.calls)
    releasing = asyncio.create_task(renewer.release(lease))
    await asyncio.wait({releasing}, timeout=0.05)
    assert not releasing.done()
    fake.gate.set()
    await releasing
    assert lease.receipt == "r-0+"


@pytest.mark.parametrize("problem", [EngineUnavailable("away"), Unauthenticated("no")])
@in_virtual_time
async def test_a_failed_extension_is_retried_until_the_lease_ends(
    fake: FakeClient, run: Callable[[Any], None], problem: Exception
) -> None:
    lost: list[Lease] = []
    renewer = LeaseRenewer(fake, "q", 300, lambda lease, _: lost.append(lease))  # type: ignore[arg-type]
    run(renewer.run())
    fake.problems = [problem] * 2
    lease = renewer.add(message())
    await eventually(lambda: lease.extensions == 1)
    assert lost == []
    fake.problems = [problem] * 1000
    await eventually(lambda: lost == [lease])


@in_virtual_time
async def test_a_call_without_a_response_ends_with_the_lease(fake: FakeClient, run: Callable[[Any], None]) -> None:
    lost: list[Lease] = []
    renewer = LeaseRenewer(fake, "q", 150, lambda lease, _: lost.append(lease))  # type: ignore[arg-type]
    run(renewer.run())
    fake.gate.clear()
    lease = renewer.add(message())
    await eventually(lambda: lost == [lease])


@in_virtual_time
async def test_only_expired_leases_are_lost(fake: FakeClient, run: Callable[[Any], None]) -> None:
    lost: list[Lease] = []
    renewer = LeaseRenewer(fake, "q", 150, lambda lease, _: lost.append(lease))  # type: ignore[arg-type]
    run(renewer.run())
    fake.expired = {"r-1"}
    bad, good = renewer.add(message(1)), renewer.add(message(2))
    await eventually(lambda: good.extensions >= 2)
    assert lost == [bad]


@in_virtual_time
async def test_all_leases_of_a_deleted_queue_are_lost_at_once(fake: FakeClient, run: Callable[[Any], None]) -> None:
    lost: list[Lease] = []
    renewer = LeaseRenewer(fake, "q", 300, lambda lease, _: lost.append(lease))  # type: ignore[arg-type]
    run(renewer.run())
    fake.problems = [QueueNotFound("gone")]
    leases = {renewer.add(message(1)), renewer.add(message(2))}
    await eventually(lambda: set(lost) == leases)
    assert len(fake.calls) == 1


# Acks and nacks


def lease_of(number: int, seconds: float = 5) -> Lease:
    now = asyncio.get_running_loop().time()
    return Lease(message(number), now + seconds, now)


@in_virtual_time
async def test_acks_during_a_request_are_sent_together(fake: FakeClient, run: Callable[[Any], None]) -> None:
    acker = Acker(fake, "q", no_pauses)  # type: ignore[arg-type]
    run(acker.run())
    fake.gate.clear()
    first = asyncio.create_task(acker.ack(lease_of(0)))
    await eventually(lambda: fake.calls)
    rest = [asyncio.create_task(acker.ack(lease_of(number))) for number in range(1, 6)]
    fake.expired = {"r-3"}
    await asyncio.sleep(0)
    fake.gate.set()
    assert await first
    assert await asyncio.gather(*rest) == [True, True, False, True, True]
    assert [len(receipts) for _, receipts in fake.calls] == [1, 5]


@in_virtual_time
async def test_acks_and_nacks_are_retried_until_the_lease_ends(fake: FakeClient, run: Callable[[Any], None]) -> None:
    acker = Acker(fake, "q", no_pauses)  # type: ignore[arg-type]
    run(acker.run())
    fake.problems = [EngineUnavailable("away")] * 3
    assert await acker.ack(lease_of(0))
    fake.problems = [EngineUnavailable("away")] * 3
    assert await acker.nack(lease_of(1), "retry", None, None)
    assert [name for name, _ in fake.calls] == ["ack"] * 4 + ["nack"] * 4


@in_virtual_time
async def test_acks_and_nacks_fail_with_the_lease_or_a_permanent_error(fake: FakeClient, run: Callable[[Any], None]) -> None:
    acker = Acker(fake, "q", no_pauses)  # type: ignore[arg-type]
    run(acker.run())
    fake.problems = [EngineUnavailable("away")] * 10_000
    assert not await acker.ack(lease_of(0, 0.05))
    assert not await acker.nack(lease_of(1, 0.05), "retry", None, None)
    fake.problems = [QueueNotFound("gone")]
    assert not await acker.nack(lease_of(2), "retry", None, None)
    fake.gate.clear()
    assert not await acker.nack(lease_of(3, 0.05), "retry", None, None)


# Rules


def test_pauses_grow_to_the_limit() -> None:
    pauses = WorkerSettings(pause_first=1, pause_max=4).pauses()
    found = [next(pauses) for _ in range(6)]
    assert all(top / 2 <= pause <= top for pause, top in zip(found, [1, 2, 4, 4, 4, 4], strict=True))


def test_the_first_outcome_of_a_lease_counts() -> None:
    lease = Lease(message(), 0, 0)
    lease.check()
    lease.end(Outcome.LOST)
    lease.end(Outcome.REQUEUED)
    assert lease.ended_by is Outcome.LOST


def test_a_reason_is_the_last_line_of_a_traceback() -> None:
    assert reason_of(KeyError("order")) == "KeyError: 'order'"
    assert reason_of(ValueError()) == "ValueError"
