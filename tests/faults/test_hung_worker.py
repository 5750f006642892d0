"""A process that no longer responds is replaced, while the others serve."""

import os
import signal
from functools import partial
from pathlib import Path

import aiohttp

from tests.faults.conftest import Install
from tests.faults.test_start_and_stop import publish
from tests.installation import Installation
from tests.waiting import eventually


async def _restarts(running: Installation) -> dict[str, float]:
    async with aiohttp.ClientSession() as session, session.get(f"{running.url}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if "worker_restarts_total{" in name}


def _is_connected(pid: int) -> bool:
    """Whether the process has a TCP connection: then its event loop runs, and has sent a heartbeat."""
    established = {fields[9] for fields in map(str.split, Path("/proc/net/tcp").read_text().splitlines()) if fields[3] == "01"}
    links = [str(one.readlink()) for one in Path(f"/proc/{pid}/fd").iterdir() if one.is_symlink()]
    return any(link.removeprefix("socket:[").removesuffix("]") in established for link in links)


async def test_a_hung_worker_and_a_hung_background_process_are_replaced(install: Install) -> None:
    running = await install("up", "--workers", "2", POSTROAD_WATCHDOG_SECONDS="2").start().ready()
    await eventually(lambda: len(running.worker_pids) == 2)
    hung, background = running.worker_pids[0], running.background_pids[0]
    for pid in (hung, background):
        await eventually(partial(_is_connected, pid))
        os.kill(pid, signal.SIGSTOP)

    async def is_replaced() -> bool:
        await publish(running)  # the other worker serves
        return len(running.worker_pids) == 2 and hung not in running.worker_pids

    await eventually(is_replaced)
    await eventually(lambda: len(running.background_pids) == 2 and background not in running.background_pids)

    log = [line for line in running.log().splitlines() if "process_hung" in line]
    assert len(log) == 2
    assert all("silent_seconds" in line and any(f'"pid": {pid}' in line for pid in (hung, background)) for line in log)
    counted = await _restarts(running)
    assert sum(count for name, count in counted.items() if 'cause="hung"' in name) == 2
