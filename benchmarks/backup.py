"""How long a backup and a restore of many messages take, and for how long writes are held.

python -m benchmarks.backup [--messages 1000000] [--on-disk]

Fills a queue, makes a backup while the installation runs, restores it into a new one, and compares the counts.
Some minutes for a million. `--on-disk` keeps everything on disk, also where memory has room.
"""

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import aiohttp
from tests.backup.commands import run, share_platform_key
from tests.installation import Installation

_BATCH = 1000
_CONNECTIONS = 8
_PAYLOAD = {"text": "x" * 180}  # 200 bytes of JSON
_QUEUE = "backlog"


async def fill(running: Installation, messages: int) -> None:
    left = [min(_BATCH, messages - start) for start in range(0, messages, _BATCH)]

    async def publish(session: aiohttp.ClientSession) -> None:
        while left:
            body = {"messages": [{"payload": _PAYLOAD}] * left.pop()}
            async with session.post(f"/v1/queues/{_QUEUE}/messages/batch", json=body) as answer:
                if answer.status != 200 or (await answer.json())["failed"]:
                    raise SystemExit(f"{answer.status}: {(await answer.text())[:500]}")

    async with aiohttp.ClientSession(running.url, headers=running.headers) as session:
        await asyncio.gather(*(publish(session) for _ in range(_CONNECTIONS)))


async def ready_messages(running: Installation, headers: dict[str, str]) -> int:
    async with aiohttp.ClientSession(running.url, headers=headers) as session, session.get(f"/v1/queues/{_QUEUE}") as answer:
        return int((await answer.json())["stats"]["ready"])


async def longest_pause(running: Installation, stopped: asyncio.Event) -> float:
    """Seconds between two acknowledged writes of one client that repeats what is refused."""
    longest, last = 0.0, time.monotonic()
    async with aiohttp.ClientSession(running.url, headers=running.headers) as session:
        while not stopped.is_set():
            async with session.post("/v1/queues/pause/messages", json={"payload": 1}) as answer:
                if answer.status == 201:
                    longest, last = max(longest, time.monotonic() - last), time.monotonic()
            await asyncio.sleep(0.05)
    return longest


async def command(home: Path, *words: str) -> float:
    """The seconds of `postroad …`. Raises SystemExit with its output if it fails."""
    started = time.monotonic()
    done = await run(home, *words)
    if done.code:
        raise SystemExit(f"postroad {' '.join(words)}: {done.stderr}")
    return time.monotonic() - started


async def measure(folder: Path, messages: int) -> Sequence[str]:
    old, new, backup = folder / "old", folder / "new", folder / "backup"
    old.mkdir()
    environment = {"POSTROAD_REQUESTS_PER_SECOND_PER_TENANT_MAX": "0"}
    source = Installation(old, **environment)
    try:
        await source.start().ready(120)
        began = time.monotonic()
        await fill(source, messages)
        filled = time.monotonic() - began
        stopped = asyncio.Event()
        pause = asyncio.create_task(longest_pause(source, stopped))
        backed_up = await command(old, "backup", "--out", str(backup))
        stopped.set()
        held = await pause
        headers = source.headers
        expected = await ready_messages(source, headers)
    finally:
        await source.stop()
    size = sum(path.stat().st_size for path in backup.rglob("*") if path.is_file())
    share_platform_key(old, new)
    restored = await command(new, "restore", str(backup))
    target = Installation(new, **environment)
    began = time.monotonic()
    try:
        await target.start().ready(300)
        started = time.monotonic() - began
        found = await ready_messages(target, headers)
    finally:
        await target.stop()
    if not found == expected == messages:
        raise SystemExit(f"{messages} published, {expected} before the backup, {found} after the restore")
    return [
        f"{messages:,} messages, published in {filled:.0f} s; backup of {size / 1e6:.0f} MB",
        f"backup {backed_up:.1f} s, writes held for {held:.1f} s",
        f"restore {restored:.1f} s, first start {started:.1f} s, none missing",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--on-disk", action="store_true")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="postroad-backup-", dir="/var/tmp" if chosen.on_disk else None))
    try:
        print("\n".join(asyncio.run(measure(folder, chosen.messages))))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
