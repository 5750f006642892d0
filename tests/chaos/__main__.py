"""`make chaos`: clients at work, faults at random from a seed, and the verdict. Exit code 1 if a promise was broken."""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.campaign import Campaign
from tests.chaos.clients import Front
from tests.chaos.model import Answers
from tests.chaos.world import Clustered, Single, World, plan


class Story:
    """Lines with the time since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def tell(self, line: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f}s  {line}", flush=True)


async def run(world: World, seconds: float, seed: int, story: Story) -> list[str]:
    await world.start()
    campaign = Campaign(Front(world.urls(), world.headers(), Answers(frozenset({503}))))
    await campaign.begin()
    await campaign.moves_on(1, 30)
    story.tell("everyone is at work")
    until = time.monotonic() + seconds
    for hurt in plan(seed, world.victims):
        if time.monotonic() + hurt.pause + hurt.lasting > until:
            break
        await asyncio.sleep(hurt.pause)
        story.tell(str(hurt))
        await world.hurt(hurt)
    story.tell("that was all; waiting until everything answers")
    await world.heal()
    found = []
    try:
        await campaign.moves_on(1, 30)
    except AssertionError as stuck:
        found.append(f"does not go on after the last fault: {stuck}")
    found += await campaign.end()
    story.tell(campaign.summary())
    return found


async def main(seconds: float, seed: int, *, is_cluster: bool, keep: bool) -> int:
    story = Story()
    home = Path(tempfile.mkdtemp(prefix="postroad-chaos-"))
    world: World = Clustered(home) if is_cluster else Single(home)
    story.tell(f"seed {seed}, {seconds:.0f} s, {'a cluster and two gateways' if is_cluster else 'one installation'}")
    try:
        violations = await run(world, seconds, seed, story)
    finally:
        world.end()
    for violation in violations:
        story.tell(f"BROKEN: {violation}")
    story.tell(f"seed {seed}: " + ("broken" if violations else "every promise was kept"))
    if violations or keep:
        story.tell(f"logs and data are in {home}")
    else:
        shutil.rmtree(home, ignore_errors=True)
    return 1 if violations else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--cluster", action="store_true", help="three servers and two gateways instead of one installation")
    parser.add_argument("--keep", action="store_true", help="leave logs and data behind in any case")
    chosen = parser.parse_args()
    sys.exit(asyncio.run(main(chosen.seconds, chosen.seed, is_cluster=chosen.cluster, keep=chosen.keep)))
