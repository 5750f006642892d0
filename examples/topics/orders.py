"""Publish events of orders to a topic, replay them by pattern, and continue later from where the reader stopped.

POSTROAD_KEY=… python examples/topics/orders.py
"""

import asyncio

from postroad.client import AsyncPostroad, TopicMessage
from postroad.client.errors import IdempotencyMismatch

TOPIC = "example-orders"  # it is purged and deleted
EVENTS = [
    ("orders.eu.created", {"id": 1, "total": 40}),
    ("orders.us.created", {"id": 2, "total": 75}),
    ("orders.eu.paid", {"id": 1}),
    ("orders.eu.created", {"id": 3, "total": 12}),
    ("orders.us.cancelled", {"id": 2}),
]


async def open_orders(postroad: AsyncPostroad) -> set[int]:
    """The state of all orders, computed from the log: any reader can do so at any time."""
    found: set[int] = set()
    async for event in postroad.topics.messages(TOPIC, subject="orders.>"):
        kind = event.subject.rpartition(".")[2]
        if kind == "created":
            found.add(event.payload["id"])
        else:
            found.discard(event.payload["id"])
    return found


async def read_on(postroad: AsyncPostroad, after: int) -> list[TopicMessage]:
    """Everything after a position that the reader has stored."""
    return [event async for event in postroad.topics.messages(TOPIC, from_sequence=after + 1)]


async def main() -> None:
    async with AsyncPostroad() as postroad:
        topic = await postroad.topics.put(TOPIC, retention_ms=30 * 86_400_000, max_messages=1_000_000)
        await postroad.topics.purge(TOPIC)  # of an earlier run
        print(f"{topic.name} keeps messages for 30 days")

        for number, (subject, payload) in enumerate(EVENTS):
            await postroad.topics.publish(TOPIC, subject, payload, headers={"X-Source": "shop"}, idempotency_key=f"v1-{number}")
        created = [event.payload["id"] async for event in postroad.topics.messages(TOPIC, subject="orders.*.created")]
        print("created:", created)
        page = await postroad.topics.messages_page(TOPIC, subject=["orders.us.*", "orders.*.paid"], count=True)
        print("in the US, or paid:", page.count)
        print("open:", sorted(await open_orders(postroad)))

        last = (await read_on(postroad, 0))[-1].sequence
        await postroad.topics.publish(TOPIC, "orders.eu.paid", {"id": 3}, idempotency_key="v1-paid-3")
        repeated = await postroad.topics.publish(TOPIC, "orders.eu.paid", {"id": 3}, idempotency_key="v1-paid-3")
        print("new since then:", [event.sequence - last for event in await read_on(postroad, last)], repeated.sequence - last)
        try:
            await postroad.topics.publish(TOPIC, "orders.eu.paid", {"id": 4}, idempotency_key="v1-paid-3")
        except IdempotencyMismatch:
            print("the key stands for another message")

        purged = await postroad.topics.purge(TOPIC, subject="orders.us.>")
        print("purged:", purged.count)
        await postroad.topics.delete(TOPIC)
        print("deleted")


if __name__ == "__main__":
    asyncio.run(main())
