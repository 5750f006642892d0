"""Clients that publish, pull, ack and nack through two gateways, and what must hold whatever is killed meanwhile."""

import asyncio
import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.waiting import eventually

QUEUE = "/v1/queues/q"
_OVER, _ABSENT = 409, {502, 503}  # a lease that is over: nothing was done; a part is not there: it may have been done


class Ledger:
    """What clients were answered. Times are those of `time.monotonic`."""

    def __init__(self) -> None:
        self.published: dict[str, str] = {}  # id of the message: of its job
        self.acked: dict[str, float] = {}  # id: when its ack was answered
        self.seen: set[str] = set()
        self.maybe_acked: set[str] = set()
        self.dead: dict[str, float] = {}  # id: when its nack was answered
        self.statuses: Counter[int] = Counter()
        self.faults: list[str] = []

    def deliver(self, message: str, asked_at: float) -> None:
        self.seen.add(message)
        for ended, what in ((self.acked, "acknowledged"), (self.dead, "a dead letter")):
            if message in ended and asked_at > ended[message]:
                self.faults.append(f"{message} was {what} and was delivered again")


class RabbitLoad:
    """Each request goes to one of the gateways in turn, so most leases are settled by another one than their owner."""

    def __init__(self, urls: Sequence[str], headers: dict[str, str], *, clients: int, seed: int = 30) -> None:
        self._urls, self._headers, self._clients = itertools.cycle(urls), headers, clients
        self.ledger, self._random, self._is_publishing = Ledger(), random.Random(seed), True
        self._session: aiohttp.ClientSession | None = None
        self._number = 0

    async def call(self, method: str, path: str, body: object = None) -> dict[str, Any] | None:
        """The response; None if there was none, or an error."""
        return (await self.send(method, path, body))[1]

    async def send(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any] | None]:
        """Status and response; 0 if there was none."""
        assert self._session is not None
        try:
            async with self._session.request(method, next(self._urls) + path, json=body) as answer:
                self.ledger.statuses[answer.status] += 1
                if answer.status >= 300:
                    if answer.status != _OVER and answer.status not in _ABSENT:
                        self.ledger.faults.append(f"{method} {path}: {answer.status} {(await answer.text())[:200]}")
                    return answer.status, None
                return answer.status, await answer.json() if answer.status != 204 else {}
        except (aiohttp.ClientError, TimeoutError):
            return 0, None

    @asynccontextmanager
    async def running(self) -> Any:
        timeout, connector = aiohttp.ClientTimeout(total=30), aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout, connector=connector) as self._session:
            tasks = [asyncio.create_task(self._work()) for _ in range(self._clients)]
            try:
                yield self
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    def stop_publishing(self) -> None:
        self._is_publishing = False

    async def _work(self) -> None:
        while True:
            if self._is_publishing:
                await self._publish()
            await self._consume()
            await asyncio.sleep(0.01)

    async def _publish(self) -> None:
        self._number += 1
        body: dict[str, object] = {"payload": self._number}
        kind = self._random.random()
        if kind < 0.2:
            body["delayMs"] = self._random.randrange(50, 2000)
        if 0.1 < kind < 0.3:
            body["idempotencyKey"] = f"key-{self._number}"
        for _ in range(3 if "idempotencyKey" in body else 1):  # the same message, however often it is sent
            made = await self.call("POST", f"{QUEUE}/messages", body)
            if made is not None:
                self.ledger.published[made["messageId"]] = made["jobId"]
                return

    async def _consume(self) -> None:
        asked_at = time.monotonic()
        wanted = {"maxMessages": self._random.choice((1, 3, 10)), "waitMs": 500, "visibilityTimeoutMs": 5000}
        for message in ((await self.call("POST", f"{QUEUE}/pull", wanted)) or {}).get("messages", ()):
            self.ledger.deliver(message["messageId"], asked_at)
            await self._settle(message["messageId"], message["receiptId"])

    async def _settle(self, message: str, receipt: str) -> None:
        chosen = self._random.random()
        if chosen < 0.2:
            body: dict[str, object] = {"receiptId": receipt, "action": "requeue"}
            if chosen < 0.1:
                body |= {"action": "retry", "delayMs": self._random.randrange(500)}
            await self.call("POST", f"{QUEUE}/nack", body)
        elif chosen < 0.22:
            if await self.call("POST", f"{QUEUE}/nack", {"receiptId": receipt, "action": "dlq"}) is not None:
                self.ledger.dead.setdefault(message, time.monotonic())
        elif chosen < 0.97:  # else its lease ends
            await self._ack(message, receipt)

    async def _ack(self, message: str, receipt: str) -> None:
        """A refused ack has had no effect: the message must come again, or it is lost."""
        was_uncertain = message in self.ledger.maybe_acked
        self.ledger.maybe_acked.add(message)
        status, answer = await self.send("POST", f"{QUEUE}/ack", {"receiptId": receipt})
        if answer is not None:
            self.ledger.acked.setdefault(message, time.monotonic())
        elif status == _OVER and not was_uncertain:
            self.ledger.maybe_acked.discard(message)

    async def progresses(self, count: int, seconds: float) -> None:
        """Return once as many further acks were answered, or something is wrong."""
        target = len(self.ledger.acked) + count
        await eventually(lambda: len(self.ledger.acked) >= target or bool(self.ledger.faults), seconds)

    async def drained(self, seconds: float) -> None:
        """Return once the queue is empty by its own counts."""
        self.stop_publishing()

        async def is_empty() -> bool:
            stats = ((await self.call("GET", QUEUE)) or {}).get("stats", {})
            left = [stats.get(name, 1) for name in ("ready", "leased", "retrying", "delayed")]
            return bool(self.ledger.faults) or not any(left)

        await eventually(is_empty, seconds)

    async def dead_letters(self) -> set[str]:
        found: set[str] = set()
        path = f"{QUEUE}/dlq?limit=1000"
        while path:
            page = await self.call("GET", path)
            assert page is not None
            found |= {one["messageId"] for one in page["messages"]}
            path = f"{QUEUE}/dlq?limit=1000&cursor={page['nextCursor']}" if page.get("nextCursor") else ""
        return found

    async def check(self, seconds: float = 120) -> None:
        """Nothing that was acknowledged is lost: what was published was acked, or is a dead letter, or one of both unanswered.

        The clients still consume: a message on its way back to the queue is in no count for a moment.
        """
        ledger = self.ledger
        dead: set[str] = set()

        async def is_settled() -> bool:
            dead.update(await self.dead_letters())
            return bool(ledger.faults) or not self._unsettled(dead)

        with contextlib.suppress(AssertionError):
            await eventually(is_settled, seconds)
        assert not ledger.faults, ledger.faults[:10]
        lost = self._unsettled(dead)
        assert not lost, f"{len(lost)} lost, such as {sorted(lost)[:3]}; seen: {len(lost & ledger.seen)}"
        assert ledger.dead.keys() <= dead

    def _unsettled(self, dead: set[str]) -> set[str]:
        return self.ledger.published.keys() - self.ledger.acked.keys() - self.ledger.maybe_acked - dead

    async def unended_jobs(self) -> set[str]:
        """Jobs of published messages that are neither done nor dead."""
        unended: set[str] = set()
        for status in ("queued", "leased", "retrying", "delayed"):
            page = await self.call("GET", f"/v1/jobs?queue=q&status={status}&limit=1000")
            unended |= {status} if page is None else {one["jobId"] for one in page["jobs"]}
        return unended
