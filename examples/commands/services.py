"""Two services exchange a governed command; a third one has no grant.

POSTROAD_KEY=… python examples/commands/services.py
"""

import asyncio

from postroad.client import AsyncPostroad
from postroad.client.errors import AclDenied
from postroad.client.worker import CommandReceiver, ReceivedCommand, Worker

QUEUE = "bot-commands"
receiver = CommandReceiver()


@receiver("post-message")
async def post(command: ReceivedCommand) -> None:
    print("bot received", command.name, "from", command.source.partition("/")[2], command.payload)


async def register(postroad: AsyncPostroad) -> None:
    """The bot decides who may send what to it; the senders only name the key that they send with."""
    key = (await postroad.keys.whoami()).key_id
    await postroad.queues.put(QUEUE, max_attempts=5)
    await postroad.services.put("bot", description="posts messages")
    for sender in ("billing", "newsletter"):
        await postroad.services.put(sender, trusted_keys=[key])
    await postroad.routes.put("bot", "post-message", QUEUE, sensitivity="moderate")
    await postroad.grants.put("bot", "post-message", "billing")


async def main() -> None:
    async with AsyncPostroad() as postroad:
        await register(postroad)
        accepted = await postroad.commands.send("billing", "bot", "post-message", {"text": "invoice 42 is paid"})
        print("billing sent it by the", accepted.path, "path")
        try:
            await postroad.commands.send("newsletter", "bot", "post-message", {"text": "buy now"})
        except AclDenied:
            print("newsletter has no grant")
        await Worker(postroad, QUEUE, receiver.handle, once=True, wait_ms=1000).run()


asyncio.run(main())
