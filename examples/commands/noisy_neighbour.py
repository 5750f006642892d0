"""A noisy sender and a quiet one share a route with a rate limit; the noisy one loses the warm path, the quiet one is served.

POSTROAD_KEY=… python examples/commands/noisy_neighbour.py
"""

import asyncio
from collections import Counter

from postroad.api.command_limits import Fairness, RateLimit
from postroad.client import AsyncPostroad
from postroad.client.command_signer import NewCommand

ROUTE = ("bot", "render")


async def register(postroad: AsyncPostroad) -> None:
    key = (await postroad.keys.whoami()).key_id
    await postroad.queues.put("render-jobs", max_attempts=5)
    await postroad.services.put("bot")
    limit, fairness = RateLimit(max=1000, interval_seconds=60), Fairness(window_seconds=60, ban_seconds=60)
    await postroad.routes.put(*ROUTE, "render-jobs", rate_limit=limit, fairness=fairness)
    for sender in ("noisy", "quiet"):
        await postroad.services.put(sender, trusted_keys=[key])
        await postroad.grants.put(*ROUTE, sender)
    await postroad.quotas.put(*ROUTE, "noisy", 20, interval_seconds=60)  # applies once it has lost the warm path


async def send(postroad: AsyncPostroad, sender: str, count: int) -> Counter[str]:
    """Outcomes by path, or by the code of the refusal."""
    found: Counter[str] = Counter()
    for _ in range(count // 50):
        batch = [NewCommand(target="bot", name="render", payload={}) for _ in range(50)]
        for one in (await postroad.commands.send_batch(sender, batch)).results:
            found[one.path or (one.problem.code if one.problem is not None else "")] += 1
    return found


async def main() -> None:
    async with AsyncPostroad() as postroad:
        await register(postroad)
        quiet = await send(postroad, "quiet", 50)
        noisy = await send(postroad, "noisy", 600)
        quiet += await send(postroad, "quiet", 50)
        usage = (await postroad.routes.get(*ROUTE)).usage
        print("noisy:", dict(noisy))
        print("quiet:", dict(quiet))
        if usage is not None:
            print(f"used {usage.used} of {usage.allowed}")


asyncio.run(main())
