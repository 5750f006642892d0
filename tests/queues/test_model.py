"""Random operations on a queue, compared with a model: no message is lost or delivered twice, and the counts are right. The model
is the same for both backends; `features` of the queue says what differs.

The model uses the clock of the gateway, but leases expire by the clock of JetStream: the model expires them with a timeout of 0.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.api.queues import ENGINE, RABBITMQ
from postroad.container import Role
from postroad.kernel.configuration import Secret
from postroad.runtime.embedded_server import EmbeddedServerSettings
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.rabbitmq_server import BACKENDS, RabbitServer
from tests.servers import Server
from tests.tiers import long_runs
from tests.waiting import eventually

pytestmark = pytest.mark.slow

ATTEMPTS = 3

NAMES = (
    *["publish"] * 4,
    *["publish_again", "pull", "expire", "ack", "requeue", "retry", "dlq"] * 2,
    *["extend", "retry_late", "publish_late", "contradict", "redrive", "restart", "purge", "other_gateway"],
)
STEPS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 5)), min_size=12, max_size=40)


@dataclass
class Model:
    """Expected state: messages waiting (with their number of deliveries), leased, retrying, delayed, dead and done. Those in
    `overdue` are waiting because their lease has ended."""

    waiting: dict[str, int] = field(default_factory=dict)
    leased: dict[str, tuple[str, int]] = field(default_factory=dict)
    overdue: set[str] = field(default_factory=set)
    retrying: set[str] = field(default_factory=set)
    delayed: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    done: set[str] = field(default_factory=set)
    keys: dict[str, str] = field(default_factory=dict)


class Engine:
    """A NATS server that can be restarted while gateways use it."""

    def __init__(self, settings: EmbeddedServerSettings) -> None:
        self.server = Server(settings).start()

    def restart(self) -> None:
        self.server.stop()
        self.server = Server(self.server.settings).start()


class Player:
    """Applies each step to the queue and to the model, and compares."""

    def __init__(
        self,
        engine: Engine,
        tenant: Tenant,
        elsewhere: Tenant,
        queue: str,
        priorities: list[str],
        features: Sequence[str] = ("priority",),
    ) -> None:
        self.engine, self.tenant, self.elsewhere, self.queue = engine, tenant, elsewhere, queue
        self.priorities = priorities if "priority" in features else ["normal"]
        self.has_overdue = "amqp" not in features  # RabbitMQ has a message again when its lease ends
        self.model = Model()
        self.nacked: list[tuple[str, str]] = []
        self.difference: object = None
        self.count = 0

    async def play(self, step: str, number: int) -> None:
        await getattr(self, step)(number)
        await self.check()

    async def restart(self, _number: int) -> None:
        """Restart the server; leases survive. Skipped while a redelivery is pending, which would take the whole ack wait."""
        if any(self.model.waiting.values()):
            return
        await asyncio.to_thread(self.engine.restart)

    async def other_gateway(self, _number: int) -> None:
        self.tenant, self.elsewhere = self.elsewhere, self.tenant

    async def publish(self, number: int) -> None:
        for _ in range(number):
            self.count += 1
            published = await self.tenant.publish(self.queue, self.count, **self._fields(self.count))
            self.model.waiting[published["messageId"]] = 0
            self.model.keys[f"key-{self.count}"] = published["messageId"]

    def _fields(self, count: int) -> dict[str, object]:
        """Of the message with this number: a key, and in most cases a priority."""
        return {"idempotencyKey": f"key-{count}", "priority": self.priorities[count % len(self.priorities)]}

    async def publish_again(self, number: int) -> None:
        """The same key and body return the ids of the first message, whatever its state."""
        if self.count:
            chosen = number % self.count + 1
            published = await self.tenant.publish(self.queue, chosen, **self._fields(chosen))
            assert published["messageId"] == self.model.keys[f"key-{chosen}"]

    async def _lease(self, count: int, lease_ms: int) -> list[dict[str, Any]]:
        """Pull until all expected messages are delivered: a requeued one may take a moment."""
        live = {one for one, attempts in self.model.waiting.items() if attempts < ATTEMPTS}
        expected = min(count, len(live))
        leased: list[dict[str, Any]] = []

        async def enough() -> bool:
            leased.extend(await self.tenant.pull(self.queue, count - len(leased), visibilityTimeoutMs=lease_ms, waitMs=200))
            return len(leased) >= expected

        if expected:
            await eventually(enough)
        else:
            assert await self.tenant.pull(self.queue, count, visibilityTimeoutMs=lease_ms) == []
        for message in leased:
            attempts = self.model.waiting.pop(message["messageId"])
            assert message["attempt"] == attempts + 1, "each delivery counts once"
            assert attempts < ATTEMPTS
            self.model.overdue.discard(message["messageId"])
        return leased

    async def pull(self, number: int) -> None:
        for message in await self._lease(number, 600_000):
            self.model.leased[message["messageId"]] = (message["receiptId"], message["attempt"])

    async def expire(self, number: int) -> None:
        """Lease, then end the leases: with a lease of 0 ms, the next of several pulls could return the same message."""
        for message in await self._lease(number, 600_000):
            body = {"receiptId": message["receiptId"], "visibilityTimeoutMs": 0}
            (await self.tenant.client.post(f"{self.queue}/extend", body)).ok()
            self.model.waiting[message["messageId"]] = message["attempt"]
            self.model.overdue.add(message["messageId"])

    async def _chosen(self, number: int) -> tuple[str, str, int] | None:
        """A leased message; if there is none, pull one."""
        if not self.model.leased:
            await self.pull(1)
        if not self.model.leased:
            return None
        message = sorted(self.model.leased)[number % len(self.model.leased)]
        return message, *self.model.leased[message]

    async def ack(self, number: int) -> None:
        if chosen := await self._chosen(number):
            message, receipt, _ = chosen
            (await self.elsewhere.ack(self.queue, receipt)).ok()
            (await self.tenant.ack(self.queue, receipt)).ok()
            del self.model.leased[message]
            self.model.done.add(message)

    async def _nack(self, number: int, action: str, **more: object) -> tuple[str, int] | None:
        chosen = await self._chosen(number)
        if chosen is None:
            return None
        message, receipt, attempt = chosen
        body = {"receiptId": receipt, "action": action, "reason": "test", **more}
        for tenant in (self.elsewhere, self.tenant):  # repeated elsewhere, it has no further effect
            (await tenant.client.post(f"{self.queue}/nack", body)).ok()
        del self.model.leased[message]
        self.nacked.append((receipt, action))
        return message, attempt

    async def retry_late(self, number: int) -> None:
        """A retry that is not due before the end of the test."""
        if nacked := await self._nack(number, "retry", delayMs=3_600_000):
            (self.model.dead if nacked[1] >= ATTEMPTS else self.model.retrying).add(nacked[0])

    async def publish_late(self, number: int) -> None:
        for _ in range(number):
            priority = self.priorities[number % len(self.priorities)]
            published = await self.tenant.publish(self.queue, "late", delayMs=3_600_000, priority=priority)
            self.model.delayed.add(published["messageId"])

    async def contradict(self, number: int) -> None:
        """After a nack, every other operation with its receipt is refused."""
        if self.nacked:
            receipt, action = self.nacked[number % len(self.nacked)]
            body = {"receiptId": receipt}
            others = [("ack", body), ("extend", {**body, "visibilityTimeoutMs": 1000})]
            others += [("nack", {**body, "action": one}) for one in ("requeue", "retry", "dlq") if one != action]
            for operation, sent in others:
                (await self.tenant.client.post(f"{self.queue}/{operation}", sent)).problem(409, "already-settled")

    async def requeue(self, number: int) -> None:
        if nacked := await self._nack(number, "requeue"):
            self.model.waiting[nacked[0]] = nacked[1]

    async def retry(self, number: int) -> None:
        if nacked := await self._nack(number, "retry"):
            if nacked[1] >= ATTEMPTS:
                self.model.dead.add(nacked[0])
            else:
                self.model.waiting[nacked[0]] = nacked[1]

    async def dlq(self, number: int) -> None:
        if nacked := await self._nack(number, "dlq"):
            self.model.dead.add(nacked[0])

    async def extend(self, number: int) -> None:
        if chosen := await self._chosen(number):
            message, receipt, attempt = chosen
            body = {"receiptId": receipt, "visibilityTimeoutMs": 600_000}
            answer = (await self.tenant.client.post(f"{self.queue}/extend", body)).ok()
            self.model.leased[message] = (answer["newReceiptId"], attempt)

    async def redrive(self, _number: int) -> None:
        await self._dead_letter_exhausted()
        answer = (await self.tenant.client.post(f"{self.queue}/dlq/redrive", {"ratePerSecond": 10_000})).ok(202)

        async def ended() -> bool:
            return bool((await self.tenant.client.get(f"/v1/tasks/{answer['task']['id']}")).ok()["endedAt"])

        await eventually(ended)
        self.model.waiting.update(dict.fromkeys(self.model.dead, 0))
        self.model.dead.clear()

    async def _dead_letter_exhausted(self) -> None:
        """Pull, which dead-letters the messages without attempts left."""
        exhausted = {one for one, attempts in self.model.waiting.items() if attempts >= ATTEMPTS}
        live = [one for one in self.model.waiting if one not in exhausted]
        for message in await self._lease(len(live), 600_000) if live else []:
            self.model.leased[message["messageId"]] = (message["receiptId"], message["attempt"])

        async def are_dead_lettered() -> bool:
            await self.tenant.pull(self.queue, 10)
            return await self._dead_ids() == self.model.dead | exhausted

        await eventually(are_dead_lettered)
        self.model.dead |= exhausted
        self.model.overdue -= exhausted
        for one in exhausted:
            del self.model.waiting[one]

    async def purge(self, _number: int) -> None:
        (await self.tenant.client.post(f"{self.queue}/purge", {})).ok()
        self.model.dead |= await self._dead_ids() & self.model.waiting.keys()  # spent, and in the dead letters before the purge
        for one in (self.model.waiting, self.model.leased, self.model.retrying, self.model.delayed, self.model.overdue):
            one.clear()
        self.nacked.clear()

    async def _dead_ids(self) -> set[str]:
        listed = (await self.tenant.client.get(f"{self.queue}/dlq?limit=1000")).ok()["messages"]
        assert all(count == 1 for count in Counter(one["messageId"] for one in listed).values())
        return {one["messageId"] for one in listed}

    async def check(self) -> None:
        """The stats of both gateways are those of the model. A long poll that was answered may be counted for a moment."""
        exhausted = {one for one, attempts in self.model.waiting.items() if attempts >= ATTEMPTS}

        async def is_true(tenant: Tenant) -> bool:
            stats = (await tenant.client.get(self.queue)).ok()["stats"]
            dead_lettered = await self._dead_ids() - self.model.dead
            assert dead_lettered <= exhausted, "only messages without attempts left"
            overdue = self.model.overdue & self.model.waiting.keys() - dead_lettered
            expected = {
                "ready": len(self.model.waiting) - len(dead_lettered),
                "overdue": len(overdue) if self.has_overdue else 0,
                "leased": len(self.model.leased),
                "retrying": len(self.model.retrying),
                "delayed": len(self.model.delayed),
                "dead": len(self.model.dead) + len(dead_lettered),
                "waiting": 0,
            }
            found = {name: stats[name] for name in expected}
            self.difference = found, expected
            return found == expected

        for tenant in (self.tenant, self.elsewhere):
            try:
                await eventually(lambda tenant=tenant: is_true(tenant), 10)  # type: ignore[misc]
            except AssertionError as error:
                raise AssertionError(f"stats, and the model: {self.difference}") from error


async def play(
    steps: list[tuple[str, int]], priorities: list[str], engine: Engine, first: Gateway, second: Gateway, backend: str
) -> None:
    tenant = await first.tenant()
    queue = await tenant.queue(maxAttempts=ATTEMPTS, retryDelaysMs=[0], backend=backend)
    features = (await tenant.client.get(queue)).ok()["features"]
    player = Player(engine, tenant, second.seen_by(tenant), queue, priorities, features)
    for step, number in steps:
        await player.play(step, number)
    # The remaining messages can all be acknowledged, once.
    await player._dead_letter_exhausted()
    assert await player._dead_ids() == player.model.dead
    for receipt, _ in player.model.leased.values():
        (await player.tenant.ack(queue, receipt)).ok()
    player.model.leased.clear()
    await player.check()


@asynccontextmanager
async def two_gateways(url: str, rabbit: RabbitServer | None = None) -> AsyncIterator[tuple[Gateway, Gateway]]:
    chosen = gateway_settings(url, rabbitmq_url=None if rabbit is None else Secret(rabbit.url))
    async with running_gateway(chosen, Role.ALL) as first, running_gateway(chosen) as second:
        yield first, second


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_queue_behaves_like_its_model(tmp_path: Path, backend: str) -> None:
    """Hypothesis is synchronous, so the test has its own loop in its own thread; the main thread has that of pytest."""
    rabbit = RabbitServer(tmp_path / "rabbitmq")
    try:
        if backend == RABBITMQ:
            rabbit.start()
        with ThreadPoolExecutor(1) as executor:
            executor.submit(run_examples, Engine(EmbeddedServerSettings(tmp_path)), rabbit, backend).result()
    finally:
        rabbit.stop()


def run_examples(engine: Engine, rabbit: RabbitServer, backend: str) -> None:
    with asyncio.Runner() as runner:
        gateways = two_gateways(engine.server.url, rabbit)
        first, second = runner.run(gateways.__aenter__())

        @long_runs(12 if backend == ENGINE else 6)
        @given(STEPS, st.lists(st.sampled_from(["normal", "high", "low"]), min_size=1, max_size=5))
        def run_example(steps: list[tuple[str, int]], priorities: list[str]) -> None:
            runner.run(play(steps, priorities, engine, first, second, backend))

        try:
            run_example()
        finally:
            runner.run(gateways.__aexit__(None, None, None))
            engine.server.stop()
