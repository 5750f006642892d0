"""kill -9 of the dispatcher, of other gateways and of the engine under an ordered queue: order, exclusivity and dedupe hold,
nothing is lost.

`POSTROAD_TEST_ORDERED=50000 POSTROAD_TEST_ORDERED_GROUPS=200 POSTROAD_TEST_ORDERED_CONSUMERS=64` runs it at full size.
"""

import os
import random
import signal
import time

import pytest

from tests.faults.conftest import Install
from tests.faults.ordered_load import OrderedLoad, dispatcher_pid

MESSAGES = int(os.environ.get("POSTROAD_TEST_ORDERED", "3000"))
GROUPS = int(os.environ.get("POSTROAD_TEST_ORDERED_GROUPS", "50"))
CONSUMERS = int(os.environ.get("POSTROAD_TEST_ORDERED_CONSUMERS", "24"))
KILLED = ("engine", "dispatcher", "gateway") * (2 if MESSAGES < 10_000 else 4)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200 + MESSAGES // 10)]


async def test_order_and_exclusivity_hold_through_kill_9(install: Install) -> None:
    running = await install(POSTROAD_WORKERS="4").start().ready(300)
    chance = random.Random(27)
    load = OrderedLoad([running.url], running.headers, messages=MESSAGES, groups=GROUPS, consumers=CONSUMERS)
    takeovers = list[float]()
    async with load.running() as publishing:
        for number, what in enumerate(KILLED, 1):
            await load.reached(number / (len(KILLED) + 2), 300 + MESSAGES / 20)
            if what == "dispatcher":
                victim = await dispatcher_pid(running, running.engine, "Q_default__q")
            else:
                victim = running.engine_pid if what == "engine" else chance.choice(running.worker_pids)
            if victim is not None:
                killed_at = time.monotonic()
                os.kill(victim, signal.SIGKILL)
                if what == "dispatcher":
                    takeovers.append(await load.seconds_until_delivery(killed_at))
        await publishing
        await load.drained(300 + MESSAGES / 20)
    print("seconds from the death of a dispatcher to the next delivery:", [round(one, 2) for one in takeovers])
    load.check()
    assert takeovers
