"""Keep carts in a bucket: change one without losing the change of another client, and watch all of them.

POSTROAD_KEY=… python examples/buckets/cart.py
"""

import asyncio
import json
from contextlib import aclosing

from postroad.client import AsyncPostroad
from postroad.client.errors import RevisionMismatch

BUCKET = "cart"


async def add_item(postroad: AsyncPostroad, key: str, item: str) -> int:
    """Read, change, and write if nobody else did meanwhile; otherwise again."""
    while True:
        current = await postroad.buckets.get_value(BUCKET, key)
        cart = json.loads(current.data)
        cart["items"].append(item)
        try:
            return (await postroad.buckets.put_value(BUCKET, key, cart, if_revision=current.revision)).revision
        except RevisionMismatch:
            continue


async def main() -> None:
    async with AsyncPostroad() as postroad:
        await postroad.buckets.create(BUCKET, history=10)
        for user in ("1", "2"):
            await postroad.buckets.put_value(BUCKET, f"user.{user}", {"items": []})
        await asyncio.gather(*[add_item(postroad, "user.1", item) for item in ("tea", "milk", "bread")])
        cart = json.loads((await postroad.buckets.get_value(BUCKET, "user.1")).data)
        print("items:", sorted(cart["items"]))
        print("revisions:", len([one async for one in postroad.buckets.history(BUCKET, "user.1")]))

        async with aclosing(postroad.buckets.watch(BUCKET, prefix="user.")) as changes:
            async for change in changes:
                if change.kind == "ready":
                    await postroad.buckets.delete_value(BUCKET, "user.2")
                elif change.entry is not None:
                    print(change.kind, change.entry.key)
                if change.kind == "delete":
                    break


asyncio.run(main())
