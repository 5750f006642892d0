"""Carts in a bucket, their totals in another one, for a browser: a source of truth and a projection.

POSTROAD_KEY=… python examples/buckets/projection.py

Each change of the bucket `carts` is a message of the topic `cart-changes`. The projector reads it and writes the total to the
bucket `cart-totals`, never back to `carts`, and sends `hops` back, so that a mistake ends as 409 `loop-detected`.
"""

import asyncio
from contextlib import aclosing

from postroad.client import AsyncPostroad

CARTS, CHANGES, TOTALS = "carts", "cart-changes", "cart-totals"
PRICES = {"tea": 3, "milk": 2, "bread": 4}


async def project(postroad: AsyncPostroad) -> None:
    """Keep the totals up to date. A change that is read again writes the same total again."""
    async with aclosing(postroad.topics.follow(CHANGES, from_sequence=1)) as messages:
        async for message in messages:
            if message.headers["Postroad-Operation"] == "put":
                total = sum(PRICES[item] for item in message.payload["items"])
                await postroad.buckets.put_value(TOTALS, message.subject, total, hops=message.hops + 1)
            else:
                await postroad.buckets.delete_value(TOTALS, message.subject, hops=message.hops + 1)


async def main() -> None:
    async with AsyncPostroad() as postroad:
        await postroad.buckets.create(CARTS, change_stream_topic=CHANGES)
        await postroad.buckets.create(TOTALS)
        projector = asyncio.create_task(project(postroad))
        token = (await postroad.tokens.create(f"bucket/{TOTALS}", prefix="user.")).token
        print(f"in a browser: new EventSource('/v1/buckets/{TOTALS}/watch?bearer={token[:9]}…')")

        async with aclosing(postroad.buckets.watch(TOTALS)) as changes:
            async for change in changes:
                if change.kind == "ready":
                    await postroad.buckets.put_value(CARTS, "user.1", {"items": ["tea", "milk"]})
                elif change.kind == "put" and change.entry is not None:
                    print(change.entry.key, change.entry.value)
                    await postroad.buckets.delete_value(CARTS, "user.1")
                elif change.kind == "delete" and change.entry is not None:
                    print(change.entry.key, "has no cart any more")
                    break
        projector.cancel()


asyncio.run(main())
