"""At most one delivery per replay and command: tasks that stop anywhere, and several tasks of the same replay at once."""

import asyncio
import contextlib
import random
from collections import Counter

import pytest

from postroad.jetstream import stream_reader
from postroad.kernel.errors import PostroadError
from postroad.replays.capability import ReplaysCapability
from postroad.tasks.service import TaskCancelled, TaskContext, TaskPaused
from tests.commands.senders import grant, register_sender, register_target
from tests.gateway import Gateway, Tenant
from tests.replays.selection import answer
from tests.replays.test_replays import messages, reached, replay, shown
from tests.waiting import eventually


async def _run_for_a_moment(gateway: Gateway, tenant: Tenant, task: str, steps: int) -> None:
    """Run the task like another leader, and stop it after some steps of the event loop, wherever it is then."""
    platform = gateway.node.platform
    record = platform.tasks.table.get(f"{tenant.id}.{task}")
    if record is None or record.state.is_final:
        return
    sender = platform.use(ReplaysCapability).sender
    running = asyncio.create_task(sender.run(TaskContext(platform.tasks.table, record, platform.clock)))
    for _ in range(steps):
        await asyncio.sleep(0)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError, PostroadError, TaskCancelled, TaskPaused):
        await running


@pytest.mark.parametrize("seed", range(6))
async def test_each_command_is_delivered_once_whatever_stops(gateway: Gateway, tenant: Tenant, seed: int) -> None:
    chance = random.Random(seed)
    queue, sender = await register_target(tenant), await register_sender(tenant)
    await grant(tenant, "billing")
    ids = [(await sender.send(payload=b"%d" % n)).ok(202)["commandId"] for n in range(20)]
    denied = [(await sender.send(name="none")).json["reason"] for _ in range(3)]
    await messages(tenant, queue)
    made = await replay(tenant, ratePerSecond=chance.choice([3, 7, 1000]), dryRun=True)
    await answer(gateway, tenant, made["id"], repeats=chance.choice([1, 2]))
    await reached(tenant, made, "selected")
    (await tenant.client.post(f"/v1/replays/{made['id']}/resume")).ok(202)

    async def task_id() -> str | None:
        found: str | None = (await shown(tenant, made))["taskId"]
        return found

    task = await eventually(task_id) or ""
    while (await shown(tenant, made))["state"] not in ("done", "failed", "cancelled"):
        await asyncio.gather(*(_run_for_a_moment(gateway, tenant, task, chance.randrange(400)) for _ in range(3)))
    done = await reached(tenant, made, "done")
    assert (done["counts"]["delivered"], done["counts"]["refused"]) == (20, {"route-missing": len(denied)})
    assert (done["counts"]["sent"], done["counts"]["remaining"]) == (23, 0)
    found = await messages(tenant, queue)
    assert Counter(one["headers"]["Snavio-Command-Id"] for one in found) == Counter(ids)
    events = [one for one in await tenant.events("COMMANDS") if one.get("replay") and one["event"].startswith("snavio.command.")]
    assert Counter(len({one["event_id"] for one in events if one["command_id"] == each}) for each in ids) == {1: 20}

    async def is_selection_removed() -> bool:  # after the record's end
        subject = f"replay.{tenant.id}.{made['id']}"
        return await stream_reader.last(gateway.node.platform.connection, "REPLAYS", subject) is None

    await eventually(is_selection_removed)
