"""A service that pauses itself while its commands are throttled: it learns that from its telemetry queue.

POSTROAD_KEY=… python examples/commands/self_throttling.py
"""

import asyncio
from datetime import UTC, datetime
from typing import Any

from postroad.client import AsyncPostroad
from postroad.client.errors import FairnessViolation

THROTTLED = ("rate-limit-exceeded", "fairness-violation")


async def register(postroad: AsyncPostroad) -> None:
    key = (await postroad.keys.whoami()).key_id
    await postroad.queues.put("printer-jobs", max_attempts=5)
    await postroad.services.put("printer")
    await postroad.services.put("reports", trusted_keys=[key])
    await postroad.routes.put("printer", "print", "printer-jobs")
    await postroad.grants.put("printer", "print", "reports")


def pause_seconds(event: dict[str, Any]) -> float:
    """How long to wait after this event."""
    if (
        event["event"] != "snavio.command.failed"
        or event["reason"] not in THROTTLED
        or event["source"].split("/")[1] != "reports"
    ):
        return 0.0
    until = datetime.fromisoformat(event["throttle_until"])
    return max(0.0, (until - datetime.now(UTC)).total_seconds())


async def main() -> None:
    async with AsyncPostroad() as postroad:
        await register(postroad)
        await postroad.commands.send("reports", "printer", "print", {"page": 1})
        # The owner of the printer throttles the sender; a rate limit of the route has the same effect.
        await postroad.bans.create("reports", "hard", "too many pages", target="printer", command="print", duration_seconds=60)
        try:
            async with AsyncPostroad(deadline=1) as impatient:  # it does not wait until the command may be sent
                await impatient.commands.send("reports", "printer", "print", {"page": 2})
        except FairnessViolation:
            print("a command was refused")
        pause = 0.0
        async for event in postroad.telemetry.consume(stop_when_empty=True):
            pause = max(pause, pause_seconds(event))
        print("the service pauses" if pause > 0 else "the service goes on")


asyncio.run(main())
