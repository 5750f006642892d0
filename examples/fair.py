"""A noisy customer beside quiet ones in one queue: the quiet ones do not wait behind its messages.

POSTROAD_KEY=… python examples/fair.py [messages]

One customer publishes 2,000 messages at once, then five others publish one each. Workers take the messages one at a time. The
script prints after how many messages of the noisy customer each quiet one was served.
"""

import asyncio
import sys

from postroad.client import AsyncPostroad, Message
from postroad.client.worker import Worker

QUEUE = "invoices"
QUIET = 5


async def main(count: int) -> None:
    served: list[str] = []
    all_served = asyncio.Event()
    async with AsyncPostroad() as postroad:
        await postroad.queues.put(QUEUE)
        for start in range(0, count, 500):
            await postroad.queues.publish_batch(
                QUEUE, [{"payload": n, "groupId": "noisy"} for n in range(start, min(start + 500, count))]
            )
        for number in range(QUIET):
            await postroad.queues.publish(QUEUE, number, group_id=f"quiet-{number}")

        async def handle(message: Message) -> None:
            served.append(message.group_id or "")
            await asyncio.sleep(0.002)
            if len(served) == count + QUIET:
                all_served.set()

        running = asyncio.create_task(Worker(postroad, QUEUE, handle, concurrency=8, wait_ms=1000).run())
        await all_served.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await postroad.queues.delete(QUEUE)
    waited = [served.index(f"quiet-{number}") for number in range(QUIET)]
    print(f"{count} messages of the noisy customer; the quiet ones were served after {', '.join(map(str, waited))} messages")
    if max(waited) > count // 2:
        raise SystemExit("a quiet customer waited for most of the noisy one's messages")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000))
