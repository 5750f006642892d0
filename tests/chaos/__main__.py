"""`make chaos`: clients at work, faults at random from a seed, and the verdict. Exit code 1 if a promise was broken."""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.chaos.campaign import Campaign
from tests.chaos.clients import Endpoints
from tests.chaos.deployment import Clustered, Deployment, Single, plan
from tests.chaos.model import Answers
from tests.chaos.partitions import Partitioned
from tests.network import missing_for_networks

_PROGRESS_SECONDS = 120  # enough on a machine that others keep busy


class ProgressLog:
    """Lines with the time since the beginning."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def write(self, line: str) -> None:
        print(f"{time.monotonic() - self._began:7.1f}s  {line}", flush=True)


async def run(deployment: Deployment, seconds: float, seed: int, progress: ProgressLog) -> list[str]:
    await deployment.start()
    answers = Answers(frozenset({502, 503}))
    campaign = Campaign(Endpoints(deployment.urls(), deployment.headers(), answers, lambda: deployment.is_partitioned))
    await campaign.begin()
    await campaign.makes_progress(1, _PROGRESS_SECONDS)
    progress.write("everyone is at work")
    until = time.monotonic() + seconds
    for fault in plan(seed, deployment.victims, deployment.whats):
        if time.monotonic() + fault.pause + fault.lasting > until:
            break
        await asyncio.sleep(fault.pause)
        progress.write(str(fault))
        await deployment.inject(fault)
    progress.write("that was all; waiting until everything answers")
    await deployment.heal()
    found = []
    try:
        await campaign.makes_progress(1, _PROGRESS_SECONDS)
    except AssertionError as stuck:
        found.append(f"does not go on after the last fault: {stuck}")
    found += await campaign.end(2 * _PROGRESS_SECONDS)
    found += deployment.violations()
    found += await campaign.unfinished_jobs()
    progress.write(campaign.summary())
    if deployment.summary():
        progress.write(deployment.summary())
    return found


async def main(seconds: float, seed: int, deployed: Callable[[Path], Deployment], *, keep: bool, sync: str = "") -> int:
    progress = ProgressLog()
    home = Path(tempfile.mkdtemp(prefix="postroad-chaos-"))
    deployment = deployed(home)
    progress.write(f"seed {seed}, {seconds:.0f} s, {type(deployment).__doc__}{f' sync {sync}' if sync else ''}")
    try:
        violations = await run(deployment, seconds, seed, progress)
    finally:
        deployment.end()
    for violation in violations:
        progress.write(f"BROKEN: {violation}")
    progress.write(f"seed {seed}: " + ("broken" if violations else "every promise was kept"))
    if violations or keep:
        progress.write(f"logs and data are in {home}")
    else:
        shutil.rmtree(home, ignore_errors=True)
    return 1 if violations else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--cluster", action="store_true", help="three servers and two gateways instead of one installation")
    parser.add_argument("--sync", help="of one installation: group, always or an interval")
    parser.add_argument("--keep", action="store_true", help="leave logs and data behind in any case")
    parser.add_argument("--partitions", action="store_true", help="with --cluster: cut the network, too (root)")
    chosen = parser.parse_args()
    if chosen.partitions and missing_for_networks():
        parser.error(missing_for_networks())
    if chosen.sync and (chosen.cluster or chosen.partitions):
        parser.error("the servers of a cluster sync by themselves")
    single = partial(Single, POSTROAD_SYNC=chosen.sync) if chosen.sync else Single
    kind = Partitioned if chosen.partitions else Clustered if chosen.cluster else single
    sys.exit(asyncio.run(main(chosen.seconds, chosen.seed, kind, keep=chosen.keep, sync=chosen.sync or "")))
