"""A target was down for a while: its queue was gone, and commands failed. It returns, and gets what it missed.

POSTROAD_KEY=… python examples/commands/replay.py

Needs the pipeline, which `postroad up` starts: it selects the commands of the archive.
"""

import asyncio
from datetime import UTC, datetime, timedelta

from postroad.client import AsyncPostroad, CommandSelection
from postroad.client.errors import DeliveryFailure
from postroad.client.worker import CommandReceiver, ReceivedCommand, Worker

QUEUE = "printer-commands"
receiver = CommandReceiver()


@receiver("print")
async def handle(command: ReceivedCommand) -> None:
    print("printer received", command.payload)


async def main() -> None:
    async with AsyncPostroad() as postroad:
        key = (await postroad.keys.whoami()).key_id
        await postroad.queues.put(QUEUE, max_attempts=5)
        await postroad.services.put("printer")
        await postroad.services.put("shop", trusted_keys=[key])
        await postroad.routes.put("printer", "print", QUEUE)
        await postroad.grants.put("printer", "print", "shop")

        await postroad.queues.delete(QUEUE)
        for number in range(3):
            try:
                await postroad.commands.send("shop", "printer", "print", {"order": number})
            except DeliveryFailure:
                print("order", number, "failed")
        await postroad.queues.put(QUEUE, max_attempts=5)

        since = datetime.now(UTC) - timedelta(hours=1)
        selection = CommandSelection(since=since, target="printer", outcomes=("failed",), reasons=("delivery-failure",))
        replay = await postroad.replays.create("the printer was down", selection=selection)
        ended = await postroad.replays.wait(replay)
        print("replay", ended.state.value, "delivered", ended.counts.delivered, "of", ended.counts.selected)
        await Worker(postroad, QUEUE, receiver.handle, once=True, wait_ms=1000).run()


asyncio.run(main())
