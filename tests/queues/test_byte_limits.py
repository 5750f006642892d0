"""Responses with messages are limited in bytes; what does not fit follows in the next response."""

from typing import Any

from tests.gateway import Tenant

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
    assert [len(page) for page in peeked] == [9, 3]
    receipts: list[str] = []
    while len(receipts) < COUNT:
        answer = await tenant.client.post(f"{queue}/pull", {"maxMessages": 500})
        assert len(answer.body) <= BYTES_MAX
        messages = answer.ok()["messages"]
        assert messages
        receipts += [message["receiptId"] for message in messages]
    (await tenant.client.post(f"{queue}/nack", {"receiptIds": receipts, "action": "dlq"})).ok()
    dead = await pages(tenant, f"{queue}/dlq")
    assert [len(page) for page in dead] == [9, 3]
    groups = (await tenant.client.get(f"{queue}/dlq?groupBy=reason")).ok()
    assert (groups["groups"][0]["count"], groups.get("nextCursor")) == (COUNT, None)
