"""Publishers and recording consumers of an ordered queue, over HTTP, and what must hold whatever is killed meanwhile."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.management import subject_counts
from postroad.kernel.names import unescape
from postroad.kernel.rendezvous import owner_of
from postroad.queues.capability import MEMBERS_BUCKET
from tests.installation import Installation
from tests.waiting import eventually

_REPEATED = 5  # every fifth batch is published a second time, although it was acknowledged


class Ledger:
    """What consumers saw. A group is held until the ack of its message is sent, or its lease may have ended."""

    def __init__(self, groups: int) -> None:
        self.acked: dict[int, set[int]] = {group: set() for group in range(groups)}
        self.done = 0
        self.maybe_acked: set[tuple[int, int]] = set()  # held, or the response to an ack was lost, or is on its way
        self.lost_answers: set[tuple[int, int]] = set()
        self.holders: Counter[tuple[int, int]] = Counter()  # consumers that have the message, or whose ack is on its way
        self.held: dict[int, tuple[int, float]] = {}  # group: consumer, end of its lease
        self.ids: dict[tuple[int, int], str] = {}
        self.first_missing: dict[int, int] = {}  # group: all numbers before it are acknowledged
        self.faults: list[str] = []

    def deliver(self, consumer: int, group: int, number: int, message_id: str, asked_at: float) -> None:
        holder, until = self.held.get(group, (consumer, 0.0))
        if holder != consumer and asked_at < until and time.monotonic() < until:
            self.faults.append(f"group {group} is held by {holder} and was delivered to {consumer}")
        if number in self.acked[group]:
            self.faults.append(f"{group}/{number} was acknowledged and returned")
        if self.ids.setdefault((group, number), message_id) != message_id:
            self.faults.append(f"{group}/{number} was stored twice")
        missing = [one for one in self._missing(group, number) if (group, one) not in self.maybe_acked]
        if missing:
            self.faults.append(f"{group}/{number} came before {missing[0]}")

    def _missing(self, group: int, number: int) -> list[int]:
        first = self.first_missing.get(group, 0)
        while first in self.acked[group]:
            first += 1
        self.first_missing[group] = first
        return [one for one in range(first, number) if one not in self.acked[group]]

    def received(self, group: int, number: int) -> None:
        """The next message of the group may follow from now on."""
        self.maybe_acked.add((group, number))
        self.holders[group, number] += 1

    def refused(self, group: int, number: int) -> None:
        """The message was not acknowledged, unless another ack of it is on its way, or its response was lost."""
        if (group, number) not in self.lost_answers and not self.holders[group, number]:
            self.maybe_acked.discard((group, number))

    def ack(self, group: int, number: int) -> None:
        if number in self.acked[group]:
            self.faults.append(f"{group}/{number} was acknowledged twice")
            return
        self.acked[group].add(number)
        self.done += 1


class OrderedLoad:
    """`urls`: of the gateways, of which each request takes one."""

    def __init__(
        self,
        urls: Sequence[str],
        headers: dict[str, str],
        *,
        messages: int,
        groups: int,
        consumers: int,
        lease_ms: int = 3000,
        seed: int = 27,
    ) -> None:
        self._urls, self._headers = itertools.cycle(urls), headers
        self.messages, self.groups, self.consumers, self.lease_ms = messages, groups, consumers, lease_ms
        self.ledger, self._random = Ledger(groups), random.Random(seed)
        self.last_delivery = (0.0, 0.0)  # when it was asked for, and when it arrived
        self._session: aiohttp.ClientSession | None = None

    async def _send(self, method: str, path: str, body: object) -> tuple[int, dict[str, Any]]:
        """Status 0 if there was no response."""
        assert self._session is not None
        try:
            async with self._session.request(method, f"{next(self._urls)}/v1/queues/q{path}", json=body) as answer:
                return answer.status, await answer.json()
        except (aiohttp.ClientError, TimeoutError):
            return 0, {}

    async def call(self, method: str, path: str, body: object = None) -> dict[str, Any] | None:
        """None if it did not succeed, or perhaps not."""
        status, answer = await self._send(method, path, body)
        return answer if status in (200, 201) else None

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        """Consumers run until the end of the context; the task publishes."""
        timeout, connector = aiohttp.ClientTimeout(total=30), aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout, connector=connector) as self._session:
            made = await self.call("PUT", "", {"ordered": True, "maxAttempts": 0, "retryDelaysMs": [0]})
            assert made is not None
            consumers = [asyncio.create_task(self._consume(number)) for number in range(self.consumers)]
            publishing = asyncio.create_task(self._publish())
            try:
                yield publishing
            finally:
                for task in (publishing, *consumers):
                    task.cancel()
                await asyncio.gather(publishing, *consumers, return_exceptions=True)

    async def _publish(self) -> None:
        for start in range(0, self.messages, 100):
            messages = [
                {"payload": [n % self.groups, n // self.groups], "groupId": str(n % self.groups), "dedupeId": str(n)}
                for n in range(start, min(start + 100, self.messages))
            ]
            for _ in range(2 if start // 100 % _REPEATED == 0 else 1):
                while True:
                    result = await self.call("POST", "/messages/batch", {"messages": messages})
                    if result is not None and result["failed"] == 0:
                        break
                    await asyncio.sleep(0.1)

    async def _consume(self, consumer: int) -> None:
        ledger = self.ledger
        while ledger.done < self.messages:
            asked_at = time.monotonic()
            count = self._random.choice((1, 3, 10))
            per_group = 10 if consumer % 3 == 0 else 1  # a third holds several messages of a group
            body = {"maxMessages": count, "maxPerGroup": per_group, "waitMs": 1000, "visibilityTimeoutMs": self.lease_ms}
            messages = ((await self.call("POST", "/pull", body)) or {}).get("messages", ())
            received_at = time.monotonic()
            if messages:
                self.last_delivery = asked_at, received_at
            for message in messages:
                group, number = message["payload"]
                ledger.deliver(consumer, group, number, message["messageId"], asked_at)
                ledger.held[group] = consumer, asked_at + self.lease_ms / 1000
                ledger.received(group, number)
            held = Counter(message["payload"][0] for message in messages)
            for message in messages:
                group, number = message["payload"]
                held[group] -= 1
                if not held[group]:
                    ledger.held.pop(group, None)  # the next message may be delivered before the response arrives
                sent_at = time.monotonic()
                status, _ = await self._send("POST", "/ack", {"receiptId": message["receiptId"]})
                ledger.holders[group, number] -= 1
                if status == 200:
                    ledger.ack(group, number)
                elif 400 <= status < 500 and sent_at > received_at + self.lease_ms / 1000:
                    ledger.refused(group, number)
                else:  # a lease that ends while the engine does not answer: the ack may have been written before
                    ledger.lost_answers.add((group, number))

    async def reached(self, share: float, seconds: float) -> None:
        """Return once this share of the messages was acknowledged, or something is wrong."""
        target = share * self.messages
        await eventually(lambda: self.ledger.done >= target or bool(self.ledger.faults), seconds)

    async def drained(self, seconds: float) -> None:
        async def is_drained() -> bool:
            stats: dict[str, int] = ((await self.call("GET", "")) or {}).get("stats", {})
            return bool(self.ledger.faults) or (bool(stats) and stats["ready"] + stats["leased"] + stats["retrying"] == 0)

        await eventually(is_drained, seconds)

    async def seconds_until_delivery(self, since: float) -> float:
        """How long after `since` a pull got a message for which it asked after it."""
        await eventually(lambda: self.last_delivery[0] >= since or bool(self.ledger.faults), 120)
        return self.last_delivery[1] - since

    def check(self) -> None:
        ledger = self.ledger
        assert not ledger.faults, ledger.faults[:10]
        seen = {(group, number) for group, numbers in ledger.acked.items() for number in numbers} | ledger.lost_answers
        assert seen == {(n % self.groups, n // self.groups) for n in range(self.messages)}


async def dispatcher_pid(running: Installation, engine: ConnectionSettings, stream: str) -> int | None:
    """The gateway that dispatches an ordered queue; None while its members are not known."""
    connection = Connection(engine)
    await connection.open()
    try:
        subject, names = f"$KV.{MEMBERS_BUCKET}.*", list[str]()
        async for page in subject_counts(connection, f"KV_{MEMBERS_BUCKET}", subject):
            names += [unescape(one.rpartition(".")[2]) for one in page]
    finally:
        await connection.close()
    living = {name: pid for name in names for pid in running.worker_pids if f"-{pid}-" in name}
    owner = owner_of(stream, living)
    return None if owner is None else living[owner]
