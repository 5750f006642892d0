"""kill -9 of gateways and of the engine while boto3 sends, receives and deletes: nothing is lost; FIFO stays in order, once.

`POSTROAD_TEST_SQS=20000 POSTROAD_TEST_KILLS=50` runs it with that many messages and kills.
"""

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.aws_clients import UNCERTAIN, client, killing, persistently
from tests.faults.conftest import Install
from tests.installation import Installation

MESSAGES = int(os.environ.get("POSTROAD_TEST_SQS", "1200"))
SENDERS, CONSUMERS, GROUPS = 4, 6, 12
DEADLINE_SECONDS = 400 + MESSAGES / 10
VISIBILITY_SECONDS = "10"
KILLED = ("postroad.runtime.worker gateway", "postroad.runtime.worker gateway", "nats-server")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600 + MESSAGES // 4)]


class Ledger:
    """Bodies of messages as consumers received them for the first time, and whose delete was certain, or perhaps done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.seen: dict[str, list[int]] = {}
        self.deleted: set[tuple[str, int]] = set()
        self.maybe_deleted: set[tuple[str, int]] = set()  # it comes again, or only the response was lost
        self.faults: list[str] = []

    def receive(self, group: str, number: int, *, is_ordered: bool) -> None:
        with self._lock:
            seen = self.seen.setdefault(group, [])
            if is_ordered and (group, number) in self.deleted:
                self.faults.append(f"{group}/{number} was deleted and returned")
            if is_ordered and number not in seen and seen and number != seen[-1] + 1:
                self.faults.append(f"{group}/{number} came after {seen[-1]}")
            if number not in seen:
                seen.append(number)

    def delete(self, group: str, number: int, *, is_certain: bool) -> None:
        with self._lock:
            (self.deleted if is_certain else self.maybe_deleted).add((group, number))

    @property
    def count(self) -> int:
        with self._lock:
            return len(self.deleted | self.maybe_deleted)


def send_all(running: Installation, url: str, sender: int, deadline: float, *, is_fifo: bool) -> None:
    """Send the messages of this sender's groups, each group in order."""
    sqs = client(running, "sqs")
    for number in range(MESSAGES // GROUPS):
        for group in range(sender, GROUPS, SENDERS):
            ids = {"MessageGroupId": f"g{group}", "MessageDeduplicationId": f"{group}-{number}"} if is_fifo else {}
            persistently(sqs.send_message, deadline, QueueUrl=url, MessageBody=f"g{group} {number}", **ids)


def consume(running: Installation, url: str, ledger: Ledger, total: int, deadline: float, *, is_fifo: bool) -> None:
    sqs = client(running, "sqs")
    while ledger.count < total and time.monotonic() < deadline:
        try:
            found = sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages", [])
        except UNCERTAIN:
            continue
        for one in found:
            group, number = one["Body"].split()
            ledger.receive(group, int(number), is_ordered=is_fifo)
            try:
                sqs.delete_message(QueueUrl=url, ReceiptHandle=one["ReceiptHandle"])
                ledger.delete(group, int(number), is_certain=True)
            except UNCERTAIN:  # an expired handle of a FIFO queue, or no answer
                ledger.delete(group, int(number), is_certain=False)
                if is_fifo:
                    break


@pytest.mark.parametrize("is_fifo", [False, True], ids=["standard", "fifo"])
async def test_nothing_is_lost_through_kill_9(install: Install, is_fifo: bool) -> None:
    running = await install(POSTROAD_WORKERS="3").start().ready(120)
    total, deadline = MESSAGES // GROUPS * GROUPS, time.monotonic() + DEADLINE_SECONDS
    name, kind = ("q.fifo", {"FifoQueue": "true"}) if is_fifo else ("q", {})
    attributes = {"VisibilityTimeout": VISIBILITY_SECONDS, **kind}
    ledger = Ledger()

    def work() -> list[str]:
        url = client(running, "sqs").create_queue(QueueName=name, Attributes=attributes)["QueueUrl"]
        kills = killing(running, seed=28, words=KILLED, progress=lambda: ledger.count / total)
        with kills as killed, ThreadPoolExecutor(SENDERS + CONSUMERS) as pool:
            jobs = [
                *(pool.submit(send_all, running, url, sender, deadline, is_fifo=is_fifo) for sender in range(SENDERS)),
                *(pool.submit(consume, running, url, ledger, total, deadline, is_fifo=is_fifo) for _ in range(CONSUMERS)),
            ]
            for job in jobs[:SENDERS]:
                job.result()
        for job in jobs:
            job.result()
        return killed

    killed = await asyncio.to_thread(work)
    assert killed
    assert ledger.faults == []
    expected = {f"g{group}": list(range(MESSAGES // GROUPS)) for group in range(GROUPS)}
    assert {group: sorted(numbers) for group, numbers in ledger.seen.items()} == expected, f"killed: {killed}"
    if is_fifo:
        assert ledger.seen == expected
