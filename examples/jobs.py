"""Control jobs: at most one per customer, with progress; cancel one that runs, run a delayed one at once; priorities.

POSTROAD_KEY=… python examples/jobs.py
"""

import asyncio
from datetime import UTC, datetime, timedelta

from postroad.client import AsyncPostroad, Message
from postroad.client.worker import Ended, Outcome, Worker, current_lease

QUEUE = "exports"


async def export(message: Message) -> None:
    """Report progress row by row. A large export does not end by itself."""
    row = 0
    while message.headers.get("kind") == "large":
        row += 1
        current_lease().report_progress(min(row, 99), f"row {row}")
        await asyncio.sleep(0.05)


async def progress_of(postroad: AsyncPostroad, job_id: str) -> str | None:
    """Wait for the first report, and return its note."""
    while True:
        progress = (await postroad.jobs.get(job_id)).progress
        if progress is not None:
            return progress.note
        await asyncio.sleep(0.1)


async def main() -> None:
    async with AsyncPostroad() as postroad:
        await postroad.queues.put(QUEUE)
        ended: asyncio.Queue[Ended] = asyncio.Queue()
        worker = Worker(postroad, QUEUE, export, on_end=ended.put_nowait, visibility_timeout_ms=3000)
        working = asyncio.create_task(worker.run())

        first = await postroad.queues.publish(QUEUE, {"customer": 7}, headers={"kind": "large"}, unique_key="customer-7")
        second = await postroad.queues.publish(QUEUE, {"customer": 7}, unique_key="customer-7")
        print("the customer has an export already:", second.duplicate and second.job_id == first.job_id)

        print("progress is shown:", await progress_of(postroad, first.job_id))

        await postroad.jobs.cancel(first.job_id, reason="withdrawn")
        print("the worker stopped it:", (await ended.get()).outcome is Outcome.CANCELLED)

        tomorrow = datetime.now(UTC) + timedelta(days=1)
        later = await postroad.queues.publish(QUEUE, {"customer": 8}, run_at=tomorrow, expires_at=tomorrow + timedelta(hours=1))
        print("it is", (await postroad.jobs.get(later.job_id)).status)
        await postroad.jobs.run_now(later.job_id)
        print("it ran:", (await ended.get()).outcome is Outcome.DONE)

        worker.stop()
        await working

        for priority in ("low", "normal", "high"):
            await postroad.queues.publish(QUEUE, {"customer": 9}, priority=priority)
        pulled = await postroad.queues.pull(QUEUE, max_messages=3, wait_ms=1000)
        print("the order is", ", ".join(message.priority for message in pulled.messages))
        await postroad.queues.ack_many(QUEUE, pulled.messages)


if __name__ == "__main__":
    asyncio.run(main())
