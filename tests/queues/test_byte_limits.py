"""Responses with messages are limited in bytes; what does not fit follows in the next response."""

import asyncio
from typing import Any

import pytest

from postroad.kernel.context import RequestContext
from postroad.kernel.identity import ALL_SCOPES, Caller
from postroad.queues.capability import QueuesCapability
from tests.gateway import Tenant
from tests.waiting import eventually

BYTES_MAX = 8 * 1024 * 1024
PAYLOAD = "x" * 900_000
COUNT = 12


async def fill(tenant: Tenant, queue: str) -> None:
    for size in (COUNT // 2, COUNT - COUNT // 2):
        batch = {"messages": [{"payload": PAYLOAD} for _ in range(size)]}
        assert (await tenant.client.post(f"{queue}/messages/batch", batch)).ok()["failed"] == 0


async def pages(tenant: Tenant, path: str) -> list[list[Any]]:
    """The items of all pages, which follow from the cursors."""
    found, cursor = [], ""
    while True:
        answer = await tenant.client.get(f"{path}?limit=1000&bodyMax=8000000{cursor}")
        assert len(answer.body) <= BYTES_MAX
        found.append(answer.ok()["messages"])
        if "nextCursor" not in answer.json or answer.json["nextCursor"] is None:
            return found
        cursor = f"&cursor={answer.json['nextCursor']}"


async def test_pulls_peeks_and_dead_letters_are_limited_in_bytes(tenant: Tenant) -> None:
    queue = await tenant.queue(maxAttempts=1)
    await fill(tenant, queue)
    peeked = await pages(tenant, f"{queue}/messages")
    assert sum(map(len, peeked)) == COUNT and len(peeked) > 1  # a page may also end early, on a busy machine
    receipts: list[str] = []
    while len(receipts) < COUNT:
        answer = await tenant.client.post(f"{queue}/pull", {"maxMessages": 500})
        assert len(answer.body) <= BYTES_MAX
        messages = answer.ok()["messages"]
        assert messages
        receipts += [message["receiptId"] for message in messages]
    (await tenant.client.post(f"{queue}/nack", {"receiptIds": receipts, "action": "dlq"})).ok()
    dead = await pages(tenant, f"{queue}/dlq")
    assert sum(map(len, dead)) == COUNT and len(dead) > 1
    counted = 0
    cursor: str | None = ""
    while cursor is not None:  # one call may end early on a busy machine, but not because of the bytes
        groups = (await tenant.client.get(f"{queue}/dlq?groupBy=reason{cursor and '&cursor='}{cursor}")).ok()
        counted += groups["groups"][0]["count"]
        cursor = groups.get("nextCursor")
    assert counted == COUNT


async def test_a_large_pull_lets_other_requests_run_and_returns_its_messages_if_it_is_cancelled(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between slices of payloads; without a release, the messages would be delivered again after ten seconds."""
    queue = await tenant.queue()
    await fill(tenant, queue)
    consumer, pauses = tenant.gateway.node.platform.use(QueuesCapability).consumer, 0
    let_others_run = consumer._let_others_run
    context = RequestContext(Caller(tenant.id, "k", frozenset(ALL_SCOPES)))

    async def cancelled_at_the_third(*arguments: Any) -> None:
        nonlocal pauses
        pauses += 1
        if pauses == 3:
            pulling.cancel()
        await let_others_run(*arguments)

    monkeypatch.setattr(consumer, "_let_others_run", cancelled_at_the_third)
    pulling = asyncio.create_task(consumer.pull(context, "q", count=COUNT, visibility_timeout_ms=60_000, wait_ms=0))
    await asyncio.gather(pulling, return_exceptions=True)
    assert pulling.cancelled()
    found: list[Any] = []

    async def all_are_back() -> bool:
        found.extend(await tenant.pull(queue, COUNT, waitMs=100, visibilityTimeoutMs=60_000))
        return len(found) == COUNT

    await eventually(all_are_back, 8)
    assert pauses > 5
