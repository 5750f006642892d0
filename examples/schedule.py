"""Publish a message every second by a schedule, and a nightly one in the time of Berlin; show when they run next.

POSTROAD_KEY=… python examples/schedule.py
"""

import asyncio

from postroad.client import AsyncPostroad, Message
from postroad.client.worker import Ended, Worker

COUNT = 3


async def clean(message: Message) -> None:
    """The message of a tick names its schedule and the time that it was due."""
    print("tick of", message.headers["postroad-schedule"], "with", message.payload)


async def main() -> None:
    async with AsyncPostroad() as postroad:
        await postroad.queues.put("chores")
        nightly = await postroad.schedules.put("backup", "chores", cron="30 2 * * *", time_zone="Europe/Berlin")
        print("the backup runs next at", nightly.next_run_at)
        following = await postroad.schedules.next("backup", count=3)
        print(len(following.runs), "runs are known")

        await postroad.schedules.put("clean", "chores", every_ms=1000, payload={"older_than_days": 30}, catch_up="all")
        done = 0

        def on_end(_ended: Ended) -> None:
            nonlocal done
            done += 1
            if done == COUNT:
                worker.stop()

        worker = Worker(postroad, "chores", clean, on_end=on_end)
        await worker.run()

        for schedule in ("backup", "clean"):
            await postroad.schedules.delete(schedule)
        print("deleted")


if __name__ == "__main__":
    asyncio.run(main())
