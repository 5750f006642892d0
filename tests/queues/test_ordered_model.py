"""Random operations on an ordered queue, compared with a model: order, one consumer of a group at a time, nothing lost.

A group of the model is the list of its messages that are not settled, in the order of their sequences. Leases last longer than
the test; one is ended by extending it to nothing. Two gateways serve the queue, and a step decides which dispatches it.
"""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.queues import group_maintenance, group_sequences
from postroad.queues.capability import QueuesCapability
from postroad.queues.dispatch_routing import DispatchRouting
from postroad.runtime.embedded_server import EmbeddedServerSettings
from tests.gateway import Gateway, Tenant
from tests.queues.test_model import Engine, two_gateways
from tests.tiers import long_runs
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ATTEMPTS, LEASE_MS, FAR_MS = 3, 600_000, 3_600_000
GROUPS = ("a", "b", "")
NAMES = (
    *["publish"] * 4,
    *["pull"] * 4,
    *["ack", "requeue", "retry", "expire", "dlq", "take_over"] * 2,
    *["publish_again", "retry_late", "extend", "redrive", "purge", "restart", "other_gateway"],
)
STEPS = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 5)), min_size=15, max_size=40)


@dataclass
class Waiting:
    """A message that is not settled. It has a receipt while it is leased; `is_late`: it waits for a retry."""

    id: str
    attempts: int = 0
    receipt: str = ""
    is_late: bool = False


class Model:
    def __init__(self) -> None:
        self.groups: dict[str, list[Waiting]] = {group: [] for group in GROUPS}
        self.group_of: dict[str, str] = {}
        self.dead: set[str] = set()

    def deliverable(self, group: str) -> list[Waiting]:
        """What the next pulls may return of the group, in order. Messages without attempts left become dead letters."""
        found: list[Waiting] = []
        if any(one.receipt for one in self.groups[group]):
            return []
        for one in self.groups[group]:
            if one.is_late:
                break
            if one.attempts < ATTEMPTS:
                found.append(one)
        return found

    @property
    def held(self) -> list[Waiting]:
        return [one for group in self.groups.values() for one in group if one.receipt]

    @property
    def exhausted(self) -> set[str]:
        """Those that a pull may dead-letter."""
        return {one.id for group in self.groups.values() for one in group if one.attempts >= ATTEMPTS and not one.receipt}

    def remove(self, ids: set[str]) -> None:
        for group, waiting in self.groups.items():
            self.groups[group] = [one for one in waiting if one.id not in ids]


class Player:
    def __init__(self, engine: Engine, tenant: Tenant, elsewhere: Tenant, queue: str, owners: "Owners") -> None:
        self.engine, self.tenant, self.elsewhere, self.queue, self.owners = engine, tenant, elsewhere, queue, owners
        self.model, self.count, self.sequence = Model(), 0, 0

    async def play(self, step: str, number: int) -> None:
        await getattr(self, step)(number)
        await self.check()

    async def restart(self, _number: int) -> None:
        await asyncio.to_thread(self.engine.restart)

        async def is_back() -> bool:
            paths = (self.queue, f"{self.queue}/dlq", f"{self.queue}/messages")
            answers = [await one.client.get(path) for one in (self.tenant, self.elsewhere) for path in paths]
            return all(answer.status == 200 for answer in answers)

        await eventually(is_back, 60)

    async def other_gateway(self, _number: int) -> None:
        self.tenant, self.elsewhere = self.elsewhere, self.tenant

    async def take_over(self, _number: int) -> None:
        """The other gateway dispatches from now on. The first one keeps what it knows, and is asked again later."""
        self.owners.change()

    async def publish(self, number: int) -> None:
        for _ in range(number):
            self.count += 1
            published = await self.tenant.publish(self.queue, self.count, **self._fields(self.count))
            assert published["sequence"] > self.sequence
            self.sequence = published["sequence"]
            group = GROUPS[self.count % len(GROUPS)]
            self.model.groups[group].append(Waiting(published["messageId"]))
            self.model.group_of[published["messageId"]] = group

    def _fields(self, count: int) -> dict[str, object]:
        group, fields = GROUPS[count % len(GROUPS)], dict[str, object](dedupeId=str(count))
        return fields | {"groupId": group} if group else fields

    async def publish_again(self, number: int) -> None:
        if self.count:
            chosen = number % self.count + 1
            again = await self.tenant.publish(self.queue, "another body", **self._fields(chosen))
            assert again["duplicate"]
            assert again["messageId"] in self.model.group_of

    async def pull(self, number: int) -> None:
        """A pull returns the first messages of groups that nobody holds, as many as there are."""
        per_group = number if number % 2 else 1
        expected = min(number, sum(min(per_group, len(self.model.deliverable(group))) for group in GROUPS))
        found: list[dict[str, Any]] = []

        async def is_enough() -> bool:
            body = {"maxPerGroup": per_group, "visibilityTimeoutMs": LEASE_MS}
            self._receive(messages := await self.tenant.pull(self.queue, number - len(found), waitMs=200, **body), per_group)
            found.extend(messages)
            return len(found) >= expected

        if expected:
            await eventually(is_enough, 15)
        else:
            assert await self.tenant.pull(self.queue, number, visibilityTimeoutMs=LEASE_MS) == []

    def _receive(self, messages: list[dict[str, Any]], per_group: int) -> None:
        for group in GROUPS:
            mine = [one for one in messages if one.get("groupId", "") == group]
            assert len(mine) <= per_group
            due = self.model.deliverable(group)
            assert [one["messageId"] for one in mine] == [one.id for one in due[: len(mine)]], "order, and one consumer at a time"
            assert [one["sequence"] for one in mine] == sorted(one["sequence"] for one in mine)
            for message, waiting in zip(mine, due, strict=False):
                assert message["attempt"] == waiting.attempts + 1
                waiting.attempts, waiting.receipt = message["attempt"], message["receiptId"]

    def _chosen(self, number: int) -> Waiting | None:
        held = self.model.held
        return held[number % len(held)] if held else None

    async def ack(self, number: int) -> None:
        for _ in range(number):
            if (one := self._chosen(number)) is not None:
                for tenant in (self.tenant, self.elsewhere):  # repeated, it has no further effect
                    (await tenant.ack(self.queue, one.receipt)).ok()
                self.model.remove({one.id})

    async def _nack(self, number: int, action: str, **more: object) -> Waiting | None:
        one = self._chosen(number)
        if one is None:
            return None
        body = {"receiptId": one.receipt, "action": action, **more}
        for tenant in (self.tenant, self.elsewhere):
            (await tenant.client.post(f"{self.queue}/nack", body)).ok()
        one.receipt = ""
        if action == "dlq" or (action == "retry" and one.attempts >= ATTEMPTS):
            self.model.remove({one.id})
            self.model.dead.add(one.id)
            return None
        return one

    async def requeue(self, number: int) -> None:
        await self._nack(number, "requeue")

    async def retry(self, number: int) -> None:
        await self._nack(number, "retry")

    async def dlq(self, number: int) -> None:
        await self._nack(number, "dlq")

    async def retry_late(self, number: int) -> None:
        """The group is blocked from there on, until the end of the test or a purge."""
        if (one := await self._nack(number, "retry", delayMs=FAR_MS)) is not None:
            one.is_late = True

    async def extend(self, number: int) -> None:
        if (one := self._chosen(number)) is not None:
            body = {"receiptId": one.receipt, "visibilityTimeoutMs": LEASE_MS}
            one.receipt = (await self.elsewhere.client.post(f"{self.queue}/extend", body)).ok()["newReceiptId"]

    async def expire(self, number: int) -> None:
        """The lease ends, and its receipt is refused from then on."""
        if (one := self._chosen(number)) is None:
            return
        body = {"receiptId": one.receipt, "visibilityTimeoutMs": 0}
        extended = (await self.tenant.client.post(f"{self.queue}/extend", body)).ok()["newReceiptId"]

        async def is_refused() -> bool:
            return (await self.elsewhere.client.post(f"{self.queue}/extend", {**body, "receiptId": extended})).status == 409

        await eventually(is_refused)
        one.receipt = ""

    async def redrive(self, _number: int) -> None:
        """Dead letters go to the ends of their groups, in the order in which they died."""
        await self._learn_of_dead()
        letters = (await self.tenant.client.get(f"{self.queue}/dlq?limit=1000")).ok()["messages"]
        answer = (await self.tenant.client.post(f"{self.queue}/dlq/redrive", {"ratePerSecond": 10_000})).ok(202)

        async def has_ended() -> bool:
            return bool((await self.tenant.client.get(f"/v1/tasks/{answer['task']['id']}")).ok()["endedAt"])

        await eventually(has_ended)
        assert {one["messageId"] for one in letters} == self.model.dead
        page = (await self.tenant.client.get(f"{self.queue}/messages?limit=1000")).ok()["messages"]
        for one in sorted(page, key=lambda message: message["sequence"]):
            if one["messageId"] in self.model.dead:
                self.model.groups[self.model.group_of[one["messageId"]]].append(Waiting(one["messageId"]))
                self.model.dead.remove(one["messageId"])
        assert not self.model.dead

    async def purge(self, _number: int) -> None:
        await self._learn_of_dead()
        (await self.tenant.client.post(f"{self.queue}/purge", {})).ok()
        self.model.groups = {group: [] for group in GROUPS}
        await self._learn_of_dead()

    async def _learn_of_dead(self) -> None:
        listed = {one["messageId"] for one in (await self.tenant.client.get(f"{self.queue}/dlq?limit=1000")).ok()["messages"]}
        new = listed - self.model.dead
        assert new <= self.model.exhausted, "only messages without attempts left"
        self.model.remove(new)
        self.model.dead |= new
        assert self.model.dead == listed

    async def check(self) -> None:
        """Peek, the stats and the dead letters of both gateways are those of the model."""
        difference: object = None

        async def is_true(tenant: Tenant) -> bool:
            nonlocal difference
            await self._learn_of_dead()
            waiting = [one for group in self.model.groups.values() for one in group]
            stats = (await tenant.client.get(self.queue)).ok()["stats"]
            peeked = (await tenant.client.get(f"{self.queue}/messages?limit=1000")).ok()["messages"]
            leased, late = len(self.model.held), sum(one.is_late for one in waiting)
            expected = {"ready": len(waiting) - leased - late, "leased": leased, "retrying": late, "dead": len(self.model.dead)}
            found = {name: stats[name] for name in expected}
            ids = {one["messageId"] for one in peeked}
            difference = found, expected, ids ^ {one.id for one in waiting}
            return found == expected and ids == {one.id for one in waiting} and len(peeked) == len(waiting)

        for tenant in (self.tenant, self.elsewhere):
            try:
                await eventually(lambda tenant=tenant: is_true(tenant), 15)  # type: ignore[misc]
            except AssertionError as error:
                raise AssertionError(f"the queue, and the model: {difference}") from error


class Owners:
    """Decides which of two gateways dispatches, for both."""

    def __init__(self, *gateways: Gateway) -> None:
        self._names = [one.node.platform.use(QueuesCapability).membership.name for one in gateways]
        self._first = 0

    def change(self) -> None:
        self._first = 1 - self._first

    def candidates(self, _routing: DispatchRouting, _stream: str) -> list[str]:
        return [self._names[self._first], self._names[1 - self._first]]

    @contextmanager
    def deciding(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(DispatchRouting, "_candidates", lambda routing, stream: self.candidates(routing, stream))
            yield


async def play(steps: list[tuple[str, int]], engine: Engine, first: Gateway, second: Gateway, owners: Owners) -> None:
    tenant = await first.tenant()
    queue = await tenant.queue(ordered=True, maxAttempts=ATTEMPTS, retryDelaysMs=[0])
    player = Player(engine, tenant, second.seen_by(tenant), queue, owners)
    for step, number in steps:
        await player.play(step, number)
    # What is held can be acknowledged, and what follows is delivered in order.
    for one in player.model.held:
        (await player.tenant.ack(queue, one.receipt)).ok()
        player.model.remove({one.id})
    while any(player.model.deliverable(group) for group in GROUPS):
        await player.pull(5)
        for one in player.model.held:
            (await player.tenant.ack(queue, one.receipt)).ok()
            player.model.remove({one.id})
    await player.check()


@pytest.mark.parametrize("far", [512, 1])
def test_an_ordered_queue_behaves_like_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, far: int) -> None:
    """With messages that are close to each other, and as if they were far apart: then their sequences are kept."""
    monkeypatch.setattr(group_sequences, "_FAR", far)
    monkeypatch.setattr(group_maintenance, "_FEW_GROUPS", far)
    with ThreadPoolExecutor(1) as executor:
        executor.submit(run_examples, Engine(EmbeddedServerSettings(tmp_path))).result()


def run_examples(engine: Engine) -> None:
    with asyncio.Runner() as runner:
        gateways = two_gateways(engine.server.url)
        first, second = runner.run(gateways.__aenter__())
        owners = Owners(first, second)

        @long_runs(4)
        @given(STEPS)
        def run_example(steps: list[tuple[str, int]]) -> None:
            runner.run(play(steps, engine, first, second, owners))

        try:
            with owners.deciding():
                run_example()
        finally:
            runner.run(gateways.__aexit__(None, None, None))
            engine.server.stop()
