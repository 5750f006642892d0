"""Publish orders and process them with a worker, three at a time; one of them at its second attempt.

POSTROAD_KEY=… python examples/worker.py
"""

import asyncio

from postroad.client import AsyncPostroad, Message
from postroad.client.worker import DeadLetter, Ended, Outcome, Retry, Worker

COUNT = 7


async def ship(message: Message) -> None:
    """Ship an order. Returning acknowledges the message, an exception retries it. The lease is extended while this runs."""
    order = message.payload["order"]
    if "total" not in message.payload:
        raise DeadLetter("an order without a total")  # a retry would not help
    if order == 3 and message.attempt == 1:
        raise Retry(delay_ms=100, reason="out of stock")
    print("done", order, "attempt", message.attempt)


async def main() -> None:
    async with AsyncPostroad() as postroad:
        for number in range(COUNT):
            await postroad.queues.publish("orders", {"order": number, "total": f"{number * 9.9:.2f}"})

        done: set[int] = set()

        def on_end(ended: Ended) -> None:
            if ended.outcome is Outcome.DONE:
                done.add(ended.message.payload["order"])
            if len(done) == COUNT:
                worker.stop()  # a real worker runs until SIGTERM

        worker = Worker(postroad, "orders", ship, concurrency=3, on_end=on_end)
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main())
