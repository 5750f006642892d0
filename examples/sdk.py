"""Publish parcels and process them with three concurrent consumers, with the asynchronous SDK.

POSTROAD_KEY=… python examples/sdk.py
"""

import asyncio

from postroad.client import AsyncPostroad, Message

COUNT = 7


async def work(postroad: AsyncPostroad, done: set[int]) -> None:
    while len(done) < COUNT:
        pulled = await postroad.queues.pull("parcels", max_messages=2, wait_ms=500)
        for message in pulled.messages:
            await deliver(message)
            await postroad.queues.ack("parcels", message)
            done.add(message.payload["parcel"])


async def deliver(message: Message) -> None:
    print("delivered", message.payload["parcel"], "attempt", message.attempt)


async def main() -> None:
    async with AsyncPostroad() as postroad:
        await asyncio.gather(*[postroad.queues.publish("parcels", {"parcel": number}) for number in range(COUNT)])
        done: set[int] = set()
        await asyncio.gather(*[work(postroad, done) for _ in range(3)])
        print(f"all {len(done)} done")


if __name__ == "__main__":
    asyncio.run(main())
