"""Fair queues: messages of a noisy group are deferred, and nothing that counts, shows or removes messages forgets them."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from postroad.container import Role
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import subject_counts, subject_messages
from postroad.jetstream.stream_reader import Page
from postroad.kernel.names import queue_stream, queue_subject
from postroad.queues import deferred_mover
from postroad.queues.capability import QueuesCapability
from postroad.queues.deferred_moves import QueueMoves, Round
from postroad.queues.fairness import QUIET_MAX, QUIET_MIN
from postroad.queues.group_shares import GroupShares
from postroad.queues.rules import group_token
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.servers import Server
from tests.waiting import eventually

NOISY = QUIET_MAX + 200


async def publish_many(tenant: Tenant, queue: str, count: int, group: str = "noisy", **more: object) -> list[dict[str, Any]]:
    """Publish messages with the payloads 0, 1, 2…, and return their results."""
    results: list[dict[str, Any]] = []
    for start in range(0, count, 500):
        messages = [{"payload": n, "groupId": group, **more} for n in range(start, min(start + 500, count))]
        found = (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()
        assert found["failed"] == 0, found
        results += found["results"]
    return results


async def becomes(tenant: Tenant, queue: str, **expected: int) -> dict[str, Any]:
    """The stats, once they are as expected."""
    found: dict[str, Any] = {}

    async def is_expected() -> bool:
        nonlocal found
        found = (await tenant.client.get(queue)).ok()["stats"]
        return all(found[name] == value for name, value in expected.items())

    try:
        await eventually(is_expected, 15)
    except TimeoutError:
        raise AssertionError((expected, found)) from None
    return found


async def stored(tenant: Tenant, part: str) -> int:
    """Messages on the subjects `….<part>` of the queue `q`."""
    connection, count = tenant.gateway.node.platform.connection, 0
    async for page in subject_counts(connection, queue_stream(tenant.id, "q"), f"{queue_subject(tenant.id, 'q')}.{part}"):
        count += sum(page.values())
    return count


async def drain(tenants: Sequence[Tenant], queue: str, expected: int, *, consumers: int = 4) -> list[dict[str, Any]]:
    """Pull and acknowledge until `expected` messages were received, and check that there are no more."""
    received: list[dict[str, Any]] = []

    async def consume(tenant: Tenant) -> None:
        while len(received) < expected:
            messages = await tenant.pull(queue, 10, waitMs=500)
            if messages:
                received.extend(messages)
                body = {"receiptIds": [one["receiptId"] for one in messages]}
                assert (await tenant.client.post(f"{queue}/ack", body)).ok()["ok"]

    await asyncio.wait_for(asyncio.gather(*(consume(tenants[n % len(tenants)]) for n in range(consumers))), 60)
    assert await tenants[0].pull(queue, 10, waitMs=100) == []
    return received


async def test_excess_of_a_group_is_deferred_and_all_messages_are_delivered_once(tenant: Tenant, second_gateway: Gateway) -> None:
    queue = await tenant.queue()
    published = await publish_many(tenant, queue, NOISY)
    found = await becomes(tenant, queue, ready=NOISY)
    assert found["deferred"] >= NOISY - QUIET_MAX - 16
    received = await drain([tenant, second_gateway.seen_by(tenant)], queue, NOISY)
    assert sorted(one["messageId"] for one in received) == sorted(one["messageId"] for one in published)
    assert {one["groupId"] for one in received} == {"noisy"}
    assert {one["attempt"] for one in received} == {1}
    await becomes(tenant, queue, ready=0, leased=0, deferred=0)


async def test_a_quiet_group_does_not_wait_behind_a_noisy_one(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await publish_many(tenant, queue, 1000)
    await tenant.publish(queue, "quiet", groupId="quiet")
    await tenant.publish(queue, "alone")
    seen: list[Any] = []
    while not {"quiet", "alone"} <= set(map(str, seen)):
        messages = await tenant.pull(queue, 5, waitMs=1000)
        seen += [one["payload"] for one in messages]
        await tenant.client.post(f"{queue}/ack", {"receiptIds": [one["receiptId"] for one in messages]})
    assert len(seen) < 300, "of 1,000 messages that were published before"


async def test_noisy_groups_take_turns(tenant: Tenant) -> None:
    queue = await tenant.queue()
    for group in "abcd":
        await publish_many(tenant, queue, 300, group)
    received = await drain([tenant], queue, 1200, consumers=1)
    middle = Counter(one["groupId"] for one in received[200:900])
    assert max(middle.values()) < 2 * min(middle.values()), middle


async def test_messages_without_a_group_are_never_deferred(tenant: Tenant) -> None:
    queue = await tenant.queue()
    messages = [{"payload": n} for n in range(500)]
    (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()
    found = await becomes(tenant, queue, ready=500)
    assert found["deferred"] == 0
    assert await stored(tenant, "wait.*") == 0
    record = tenant.gateway.node.platform.use(QueuesCapability).lifecycle.cached(tenant.id, "q")
    assert record is not None
    assert not record.has_deferred


async def test_many_small_groups_are_not_deferred(tenant: Tenant) -> None:
    queue = await tenant.queue()
    messages = [{"payload": n, "groupId": str(n % 250)} for n in range(250 * QUIET_MIN)]
    for start in (0, 500):
        (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages[start : start + 500]})).ok()
    assert await stored(tenant, "wait.*") == 0


async def test_many_noisy_groups_together_leave_few_messages_in_front(tenant: Tenant, second_gateway: Gateway) -> None:
    """A quiet group waits behind those that are not deferred, whatever the number of noisy groups."""
    queue = await tenant.queue()
    messages = [{"payload": n, "groupId": str(n % 20)} for n in range(500)]
    gateways = [tenant, second_gateway.seen_by(tenant)]
    for one in (*gateways, *gateways):
        (await one.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()
    assert await stored(tenant, "ready") <= 250, "with thirty of each group and gateway it would be 1,200"
    assert len(await drain(gateways, queue, 2000)) == 2000


async def test_each_of_many_noisy_groups_is_deferred(tenant: Tenant) -> None:
    queue = await tenant.queue()
    for start in range(4):
        messages = [{"payload": n, "groupId": str(n % 20)} for n in range(start * 500, start * 500 + 500)]
        (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()
    assert await stored(tenant, "wait.*") > 1000, "each has a twentieth of the queue"
    assert len(await drain([tenant], queue, 2000)) == 2000


async def test_another_gateway_defers_messages_of_a_group_that_has_deferred_ones(tenant: Tenant, second_gateway: Gateway) -> None:
    queue, other = await tenant.queue(), second_gateway.seen_by(tenant)
    await publish_many(tenant, queue, NOISY)

    async def is_deferred() -> bool:
        before = await stored(tenant, "ready")
        await other.publish(queue, "later", groupId="noisy")
        return await stored(tenant, "ready") <= before

    await eventually(is_deferred, 10)


async def test_single_publishes_are_deferred_too(tenant: Tenant) -> None:
    queue = await tenant.queue()
    for number in range(QUIET_MAX + 20):
        await tenant.publish(queue, number, groupId="noisy")
    await becomes(tenant, queue, ready=QUIET_MAX + 20)
    received = await drain([tenant], queue, QUIET_MAX + 20)
    assert sorted(one["payload"] for one in received) == list(range(QUIET_MAX + 20))


async def test_publishing_twice_with_one_key_stores_a_deferred_message_once(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await publish_many(tenant, queue, NOISY)
    first = await tenant.publish(queue, "once", groupId="noisy", idempotencyKey="k")
    again = await tenant.publish(queue, "once", groupId="noisy", idempotencyKey="k")
    assert first["messageId"] == again["messageId"]
    received = await drain([tenant], queue, NOISY + 1)
    assert [one["payload"] for one in received].count("once") == 1


async def test_peek_and_search_show_deferred_messages_once(tenant: Tenant) -> None:
    queue = await tenant.queue()
    published = await publish_many(tenant, queue, NOISY)
    await tenant.publish(queue, "quiet", groupId="quiet")

    async def peeked(path: str) -> list[dict[str, Any]]:
        found, cursor = list[dict[str, Any]](), ""
        while True:
            page = (await tenant.client.get(f"{path}{cursor}")).ok()
            found += page["messages"]
            if not page.get("nextCursor"):
                return found
            cursor = f"&cursor={page['nextCursor']}"

    for path in (f"{queue}/messages?limit=100", f"{queue}/messages?limit=100&order=newest", "/v1/messages?queue=q&limit=100"):
        found = await peeked(path)
        assert len(found) == NOISY + 1, path
        assert {one["state"] for one in found} == {"ready"}
        of_group = await peeked(f"{path}&groupId=noisy")
        assert sorted(one["messageId"] for one in of_group) == sorted(one["messageId"] for one in published)
    one = (await tenant.client.get(f"{queue}/messages/{published[-1]['messageId']}")).ok()
    assert (one["payload"], one["groupId"]) == (NOISY - 1, "noisy")


async def test_peek_leaves_out_what_was_moved_and_is_still_stored(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await publish_many(tenant, queue, NOISY)
    left = NOISY
    for _ in range(5):
        messages = await tenant.pull(queue, 20, waitMs=1000)
        await tenant.client.post(f"{queue}/ack", {"receiptIds": [one["receiptId"] for one in messages]})
        left -= len(messages)
        found = (await tenant.client.get(f"{queue}/messages?limit=1000")).ok()["messages"]
        assert len({one["messageId"] for one in found}) == len(found)
        assert len(found) == left
    await becomes(tenant, queue, ready=left)


async def test_a_purge_removes_deferred_messages(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await publish_many(tenant, queue, NOISY)
    assert (await tenant.client.post(f"{queue}/purge", {"dryRun": True})).ok()["count"] == NOISY
    assert (await tenant.client.post(f"{queue}/purge", {})).ok()["count"] == NOISY
    assert await tenant.pull(queue, 10, waitMs=500) == []
    await becomes(tenant, queue, ready=0, deferred=0)
    await tenant.publish(queue, "next", groupId="noisy")
    assert [one["payload"] for one in await tenant.pull(queue, 10, waitMs=10_000)] == ["next"]


async def test_a_purge_with_a_filter_finds_deferred_messages(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await publish_many(tenant, queue, NOISY)
    await tenant.publish(queue, "quiet", groupId="quiet")
    purge = {"filter": {"groupId": "noisy"}}
    assert (await tenant.client.post(f"{queue}/purge", {**purge, "dryRun": True})).ok()["count"] == NOISY
    assert (await tenant.client.post(f"{queue}/purge", purge)).ok()["count"] == NOISY
    assert [one["payload"] for one in await tenant.pull(queue, 10, waitMs=500)] == ["quiet"]


async def test_a_deferred_message_can_be_removed_by_its_id_and_does_not_return(tenant: Tenant) -> None:
    queue = await tenant.queue()
    published = await publish_many(tenant, queue, NOISY)
    gone = {published[number]["messageId"] for number in (0, 50, 100, NOISY - 1)}
    for message in gone:
        (await tenant.client.delete(f"{queue}/messages/{message}")).ok(204)
    received = await drain([tenant], queue, NOISY - len(gone))
    assert not gone & {one["messageId"] for one in received}


async def test_the_limit_of_a_queue_includes_deferred_messages(tenant: Tenant) -> None:
    queue = await tenant.queue(maxMessages=100)
    messages = [{"payload": n, "groupId": "noisy"} for n in range(150)]
    found = (await tenant.client.post(f"{queue}/messages/batch", {"messages": messages})).ok()
    assert (found["published"], found["failed"]) == (100, 50)
    (await tenant.client.post(f"{queue}/messages", {"payload": 1, "groupId": "noisy"})).problem(507, "storage-full")


async def test_a_paused_queue_delivers_nothing_that_was_deferred(tenant: Tenant) -> None:
    queue = await tenant.queue()
    (await tenant.client.post(f"{queue}/pause")).ok()
    await publish_many(tenant, queue, NOISY)
    assert await tenant.pull(queue, 10, waitMs=300) == []
    await becomes(tenant, queue, ready=NOISY)
    (await tenant.client.post(f"{queue}/resume")).ok()
    assert len(await drain([tenant], queue, NOISY)) == NOISY


async def test_dead_letters_of_a_group_are_redriven_and_deferred_again(own_server: Server) -> None:
    async with running_gateway(gateway_settings(own_server.url), Role.ALL) as gateway:
        await redrive_noisy(await gateway.tenant())


async def redrive_noisy(tenant: Tenant) -> None:
    queue = await tenant.queue(maxAttempts=1)
    await publish_many(tenant, queue, 80)
    dead = 0
    while dead < 80:
        messages = await tenant.pull(queue, 10, waitMs=2000)
        receipts = [one["receiptId"] for one in messages]
        (await tenant.client.post(f"{queue}/nack", {"receiptIds": receipts, "action": "dlq", "reason": "bad"})).ok()
        dead += len(messages)
    letters = (await tenant.client.get(f"{queue}/dlq?groupId=noisy&limit=100")).ok()["messages"]
    assert len(letters) == 80
    assert (await tenant.client.get(f"{queue}/dlq?groupId=quiet")).ok()["messages"] == []
    (await tenant.client.post(f"{queue}/dlq/redrive", {"filter": {"groupId": "noisy"}})).ok(202)
    await becomes(tenant, queue, ready=80, dead=0)
    assert len(await drain([tenant], queue, 80)) == 80


async def test_delayed_messages_of_a_noisy_group_become_ready_and_are_deferred_then(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing announces that they are due: pulls that find too few make the mover look."""
    monkeypatch.setattr(deferred_mover, "_SCAN_SECONDS", 3600)
    queue = await tenant.queue()
    await publish_many(tenant, queue, 100, delayMs=1500)
    assert (await becomes(tenant, queue))["delayed"] + (await becomes(tenant, queue))["ready"] == 100
    assert len(await drain([tenant], queue, 100)) == 100


async def test_a_message_that_is_stored_after_its_announcement_is_moved_back(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it would wait for the next scan, although consumers have nothing to do."""
    monkeypatch.setattr(deferred_mover, "_SCAN_SECONDS", 3600)
    queue = await tenant.queue()
    await publish_many(tenant, queue, NOISY)
    await drain([tenant], queue, NOISY)
    monkeypatch.setattr(GroupShares, "decide", lambda *_: True)
    committer = tenant.gateway.node.platform.committers.of(queue_stream(tenant.id, "q"))
    submit, held, looked, round_of = committer.submit_callback, list[Any](), asyncio.Event(), QueueMoves.round

    async def observed(moves: QueueMoves) -> Round:
        has_groups = bool(moves.turns)
        found = await round_of(moves)
        if held and has_groups and not found.groups:
            looked.set()
        return found

    monkeypatch.setattr(QueueMoves, "round", observed)
    monkeypatch.setattr(committer, "submit_callback", lambda *some, **named: held.append((some, named)))
    publishing = asyncio.create_task(tenant.publish(queue, "late", groupId="noisy"))
    await asyncio.wait_for(looked.wait(), 20)
    monkeypatch.undo()
    monkeypatch.setattr(deferred_mover, "_SCAN_SECONDS", 3600)
    for some, named in held:
        submit(*some, **named)
    await publishing
    assert [one["payload"] for one in await tenant.pull(queue, 10, waitMs=10_000)] == ["late"]


async def test_a_message_that_is_announced_during_a_read_is_moved_back(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The read says that the group has no more messages, which was so when the engine answered."""
    for name in ("_SCAN_SECONDS", "_SCAN_SECONDS_MIN"):
        monkeypatch.setattr(deferred_mover, name, 3600)
    queue = await tenant.queue()
    monkeypatch.setattr(GroupShares, "decide", lambda *_: True)
    read, add, is_late, is_announced = stream_reader.read, QueueMoves.add, asyncio.Event(), asyncio.Event()

    async def read_slowly(connection: Connection, stream: str, subject: str, *more: int) -> Page:
        found = await read(connection, stream, subject, *more)
        if ".wait." in subject and found.entries and not is_late.is_set():
            is_late.set()
            await tenant.publish(queue, "late", groupId="noisy")
            await asyncio.wait_for(is_announced.wait(), 20)
        return found

    def added(moves: QueueMoves, tokens: Sequence[str]) -> None:
        add(moves, tokens)
        if is_late.is_set():
            is_announced.set()

    monkeypatch.setattr(stream_reader, "read", read_slowly)
    monkeypatch.setattr(QueueMoves, "add", added)
    await tenant.publish(queue, "early", groupId="noisy")
    received = await drain([tenant], queue, 2)
    assert {one["payload"] for one in received} == {"early", "late"}


async def test_priorities_of_deferred_messages_are_kept(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await publish_many(tenant, queue, 100, priority="high")
    await publish_many(tenant, queue, 100, priority="low")
    assert await stored(tenant, "wait.*") > 100
    received = await drain([tenant], queue, 200)
    assert Counter(one.get("priority", "normal") for one in received) == {"high": 100, "low": 100}


async def test_messages_that_expire_are_not_moved_back(tenant: Tenant) -> None:
    queue = await tenant.queue(retentionMs=2000)
    (await tenant.client.post(f"{queue}/pause")).ok()
    await publish_many(tenant, queue, NOISY)
    await becomes(tenant, queue, ready=0, deferred=0)
    (await tenant.client.post(f"{queue}/resume")).ok()
    assert await tenant.pull(queue, 10, waitMs=200) == []


async def test_nothing_is_left_when_all_messages_are_gone(tenant: Tenant) -> None:
    queue = await tenant.queue()
    await publish_many(tenant, queue, NOISY)
    await drain([tenant], queue, NOISY)
    connection, stream = tenant.gateway.node.platform.connection, queue_stream(tenant.id, "q")
    subject = queue_subject(tenant.id, "q")

    async def is_removed() -> bool:
        return await subject_messages(connection, stream, f"{subject}.wait.{group_token('noisy')}") == 0

    await eventually(is_removed, 10)
    assert await subject_messages(connection, stream, f"{subject}.moved") <= 1, "it has a TTL"


async def test_two_movers_at_once_move_nothing_twice(
    tenant: Tenant, second_gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both gateways believe that the queue is theirs."""
    queue, other = await tenant.queue(), second_gateway.seen_by(tenant)
    for one in (tenant, other):
        mover = one.gateway.node.platform.use(QueuesCapability).deferred_mover
        monkeypatch.setattr(mover, "_is_mine", mover._queues.__contains__)
    published = await publish_many(tenant, queue, 1000)
    received = await drain([tenant, other], queue, 1000, consumers=6)
    assert sorted(one["messageId"] for one in received) == sorted(one["messageId"] for one in published)
