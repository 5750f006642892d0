"""Run two load tests at different rates and compare them; then watch a third one live and stop it.

POSTROAD_KEY=… python examples/console/load_test.py
"""

import asyncio

from postroad.api.loadtests import LoadTest
from postroad.client import AsyncPostroad


async def finished(postroad: AsyncPostroad, test: str) -> LoadTest:
    async for update in postroad.live_state.follow("loadtests"):
        section = update.message.sections.get("loadtests") if update.message else None
        if section is not None and section.rows.get(test, {}).get("endedAt"):
            break
    return await postroad.loadtests.get(test)


async def main() -> None:
    async with AsyncPostroad() as postroad:
        limits = await postroad.loadtests.limits()
        print("load tests are", "on" if limits.enabled else "off")
        for rate in (20, 60):
            started = await postroad.loadtests.start(rate_per_second=rate, seconds=2, publishers=4, consumers=2)
            test = await finished(postroad, started.id)
            print(f"{rate}/s requested: {test.totals.published} published, {test.totals.consumed} consumed, {test.state}")

        started = await postroad.loadtests.start(rate_per_second=10, seconds=30)
        async for update in postroad.live_state.follow("loadtests"):
            row = update.message.sections["loadtests"].rows.get(started.id, {}) if update.message.sections else {}
            if row.get("latest"):
                break
        await postroad.loadtests.stop(started.id)
        print("the third one was", (await finished(postroad, started.id)).state)


if __name__ == "__main__":
    asyncio.run(main())
