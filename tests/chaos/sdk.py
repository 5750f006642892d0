"""Clients that work through the SDK. Whatever it raises is a fault of its own: it is there to try again."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from postroad.client import AsyncPostroad
from postroad.client.errors import LeaseExpired
from tests.chaos.model import QueueModel, StreamModel, reader_violations
from tests.waiting import eventually

_PACE = 0.01


@dataclass(slots=True)
class SdkCampaign:
    """A publisher, a worker, an appender and a follower at each gateway, of one queue and one stream."""

    urls: tuple[str, ...]
    key: str
    name: str
    queue: QueueModel = field(default_factory=QueueModel)
    log: StreamModel = field(default_factory=lambda: StreamModel("log"))
    seen: dict[str, list[Any]] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    is_over: bool = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator["SdkCampaign"]:
        """Everyone works while the block lasts, then finishes. What the SDK raised, this raises."""
        numbers = itertools.count()
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(AsyncPostroad(url, self.key)) for url in self.urls]
            await clients[0].queues.put(self.name, max_attempts=0)
            await clients[0].streams.create(self.name)
            following = [asyncio.create_task(self._follow(f"follower-{at}", one)) for at, one in enumerate(clients)]
            async with asyncio.TaskGroup() as working:
                for at, one in enumerate(clients):
                    working.create_task(self._publish(f"publisher-{at}", one, numbers))
                    working.create_task(self._work(f"worker-{at}", one))
                    working.create_task(self._append(f"appender-{at}", one))
                yield self
                self.is_over = True
            await self._empty(clients[0])
            content = [message.value async for message in clients[0].streams.messages(self.name)]
            with contextlib.suppress(AssertionError):  # who has not seen all of it is told below
                await eventually(lambda: all(len(seen) >= len(content) for seen in self.seen.values()), 30)
            for task in following:
                task.cancel()
            ended = await asyncio.gather(*following, return_exceptions=True)
        found = self.queue.violations() + self.log.violations([(who, number) for who, number in content])
        for who, seen in self.seen.items():
            found += reader_violations(who, seen, content)
        found += [repr(problem) for problem in ended if not isinstance(problem, asyncio.CancelledError)]
        assert found == []

    def _is_done(self, who: str) -> None:
        self.done[who] = self.done.get(who, 0) + 1

    async def makes_progress(self, count: int = 3, seconds: float = 30) -> None:
        before = dict(self.done)
        await eventually(lambda: all(self.done[who] >= done + count for who, done in before.items()), seconds)

    async def _publish(self, who: str, client: AsyncPostroad, numbers: "itertools.count[int]") -> None:
        while not self.is_over:
            number = next(numbers)
            self.queue.sent(number, has_key=True)
            await client.queues.publish(self.name, number)
            self.queue.stored(number)
            self._is_done(who)
            await asyncio.sleep(_PACE)

    async def _work(self, who: str, client: AsyncPostroad) -> None:
        while not self.is_over:
            self.done[who] = self.done.get(who, 0) + await self._pull(client, 500)

    async def _pull(self, client: AsyncPostroad, wait_ms: int) -> int:
        known = set(self.queue.acked)
        pulled = await client.queues.pull(self.name, max_messages=10, wait_ms=wait_ms)
        for message in pulled.messages:
            self.queue.delivered(message.payload, message.message_id, known)
            try:
                await client.queues.ack(self.name, message)
            except LeaseExpired:  # it will come again, as it should
                continue
            self.queue.settled(message.message_id)
        return len(pulled.messages)

    async def _empty(self, client: AsyncPostroad) -> None:
        """What an answer that was lost had leased comes back when its lease is over."""

        async def is_empty() -> bool:
            while await self._pull(client, 200):
                pass
            stats = (await client.queues.get(self.name)).stats
            return stats is not None and stats.ready == stats.leased == stats.delayed == 0

        await eventually(is_empty, 60)

    async def _append(self, who: str, client: AsyncPostroad) -> None:
        producer = client.streams.producer(self.name, who)
        while not self.is_over:
            message = (who, producer.next_seq)
            self.log.sent(message)
            await producer.append(list(message))
            self.log.stored(message, None, is_numbered=True)
            self._is_done(who)
            await asyncio.sleep(_PACE)

    async def _follow(self, who: str, client: AsyncPostroad) -> None:
        seen = self.seen.setdefault(who, [])
        async for message in client.streams.follow(self.name):
            seen.append(message.value)
            self._is_done(who)
