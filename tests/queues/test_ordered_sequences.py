"""Messages of ordered queues that are far apart in the stream are read by their sequences, not searched."""

from collections.abc import Iterator
from typing import Any

import pytest

from postroad.kernel.names import queue_stream
from postroad.queues import group_maintenance, group_sequences
from postroad.queues.capability import QueuesCapability
from postroad.queues.dispatch_routing import DispatchRouting
from postroad.queues.group_dispatcher import GroupDispatcher
from postroad.queues.group_store import GroupStore
from tests.gateway import Gateway, Tenant
from tests.queues.test_ordered import ack, payloads, publish_each
from tests.waiting import eventually


class Observed:
    """Searches for messages of a group, and the dispatchers."""

    def __init__(self) -> None:
        self.searches = 0
        self.dispatchers: list[GroupDispatcher] = []


@pytest.fixture
def observed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Observed]:
    """Few messages count as far apart, and few groups as many."""
    found, search, start = Observed(), GroupStore.read, GroupDispatcher.start

    async def count(store: GroupStore, *arguments: Any) -> Any:
        found.searches += 1
        return await search(store, *arguments)

    async def note(dispatcher: GroupDispatcher) -> None:
        found.dispatchers.append(dispatcher)
        await start(dispatcher)

    monkeypatch.setattr(GroupStore, "read", count)
    monkeypatch.setattr(GroupDispatcher, "start", note)
    monkeypatch.setattr(group_sequences, "_FAR", 1)
    monkeypatch.setattr(group_maintenance, "_FEW_GROUPS", 1)
    yield found


async def kept(observed: Observed, count: int) -> bool:
    sequences = observed.dispatchers[-1]._index.sequences
    return (sequences.walk, sequences.kept) == (0, count)


def dispatching(monkeypatch: pytest.MonkeyPatch, gateway: Gateway) -> None:
    """From now on this gateway dispatches."""
    name = gateway.node.platform.use(QueuesCapability).membership.name
    monkeypatch.setattr(DispatchRouting, "_candidates", lambda _routing, _stream: [name])


async def each_in_order(tenant: Tenant, queue: str, count: int) -> None:
    """All messages, one by one: those of each group in order."""
    found: dict[str, list[str]] = {}
    for _ in range(count):
        [message] = await tenant.pull(queue, waitMs=10_000)
        found.setdefault(message["groupId"], []).append(message["payload"])
        await ack(tenant, queue, message)
    assert found == {group: sorted(names) for group, names in found.items()}
    assert await tenant.pull(queue) == []


async def test_messages_of_notices_are_not_searched(tenant: Tenant, observed: Observed) -> None:
    queue = await tenant.queue(ordered=True)
    (await tenant.client.get(queue)).ok()
    await eventually(lambda: kept(observed, 0), 10)
    await publish_each(tenant, queue, *(f"{group}{number}" for number in range(5) for group in "abc"))
    await eventually(lambda: kept(observed, 15), 10)
    messages = await tenant.pull(queue, 2)
    assert payloads(messages) == ["a0", "a1"]
    await ack(tenant, queue, *messages)
    await each_in_order(tenant, queue, 13)
    assert observed.searches == 0


async def test_a_new_dispatcher_finds_a_backlog_by_one_walk(
    tenant: Tenant, gateway: Gateway, second_gateway: Gateway, observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_maintenance, "_WALKED_PER_PAGE", 4)
    queue, other = await tenant.queue(ordered=True), second_gateway.seen_by(tenant)
    dispatching(monkeypatch, gateway)
    await publish_each(tenant, queue, *(f"{group}{number}" for number in range(4) for group in "abc"))
    a0, b0 = await tenant.pull(queue, 2, maxPerGroup=1)
    await ack(tenant, queue, a0, b0)
    dispatching(monkeypatch, second_gateway)
    (await other.client.get(queue)).ok()
    await eventually(lambda: kept(observed, 10), 10)
    await tenant.publish(queue, "a9", groupId="a")
    await eventually(lambda: kept(observed, 11), 10)
    observed.searches = 0
    await each_in_order(other, queue, 11)
    assert observed.searches == 0


async def test_a_walk_waits_while_enough_is_kept(
    tenant: Tenant, gateway: Gateway, second_gateway: Gateway, observed: Observed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_maintenance, "_WALKED_PER_PAGE", 4)
    monkeypatch.setattr(group_maintenance, "WALK_AHEAD", 6)
    queue, other = await tenant.queue(ordered=True), second_gateway.seen_by(tenant)
    dispatching(monkeypatch, gateway)
    await publish_each(tenant, queue, *(f"{group}{number}" for number in range(10) for group in "abc"))
    dispatching(monkeypatch, second_gateway)
    (await other.client.get(queue)).ok()
    sequences = observed.dispatchers[-1]._index.sequences

    async def waits() -> bool:
        return sequences.walk > 0 and sequences.kept == 8

    await eventually(waits, 10)
    await each_in_order(other, queue, 30)
    assert sequences.walk == 0


async def test_a_message_that_is_gone_costs_a_search(tenant: Tenant, gateway: Gateway, observed: Observed) -> None:
    queue = await tenant.queue(ordered=True)
    published = await publish_each(tenant, queue, "a1", "a2", "a3", "b1")
    await eventually(lambda: kept(observed, 4), 10)
    [a1] = await tenant.pull(queue)
    stream, gone = queue_stream(tenant.id, "q"), {"seq": published[1]["sequence"]}
    await gateway.node.platform.connection.api(f"STREAM.MSG.DELETE.{stream}", gone)
    await ack(tenant, queue, a1)
    assert sorted(payloads(await tenant.pull(queue, 5))) == ["a3", "b1"]
    assert observed.searches > 0


async def test_a_message_of_a_foreign_sequence_is_not_delivered(tenant: Tenant, observed: Observed) -> None:
    """A sequence that belongs to another group's message, or to no message, is like one that is gone."""
    queue = await tenant.queue(ordered=True)
    await publish_each(tenant, queue, "a1", "b1", "a2")
    await eventually(lambda: kept(observed, 3), 10)
    for group in observed.dispatchers[-1]._index.sequences._groups.values():
        for position in range(len(group.sequences)):
            group.sequences[position] += 1
    assert payloads(await tenant.pull(queue, 5)) == ["a1", "a2", "b1"]
    assert observed.searches > 0
