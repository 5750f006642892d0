"""Damage to the block files of a single node is reported: nats-server itself discards or skips messages without a log line."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from postroad.jetstream.connection import Connection, ConnectionSettings
from postroad.jetstream.integrity import Damage, check_stream, read_damage
from postroad.runtime.embedded_server import EmbeddedServerSettings
from postroad.runtime.store_monitor import StoreMonitor
from tests.faults.conftest import Install
from tests.installation import Installation
from tests.jetstream.streams import make_stream
from tests.servers import Server
from tests.waiting import eventually

MESSAGES = 60


def flip(path: Path) -> None:
    """One bit in the payload of a message in the middle."""
    content = bytearray(path.read_bytes())
    content[content.index(b"x" * 50, len(content) // 2)] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def remove(path: Path) -> None:
    path.unlink()


def touch(path: Path) -> None:
    """No damage."""
    path.touch()


def block_file(data_dir: Path, stream: str) -> Path:
    [path] = (data_dir / "nats" / "jetstream").glob(f"jetstream/*/streams/{stream}/msgs/*.blk")
    return path


class Store:
    """A server with a stream, and the monitor as `postroad up` uses it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.server = Server(EmbeddedServerSettings(home))

    async def run(
        self, *, creates: str = "", is_killed: bool = False, is_orphaned: bool = False, is_recorded: bool = True
    ) -> None:
        """Start the server and the monitor, create a stream with messages, and stop or kill the server.

        If it `is_orphaned`, it stops properly, but without the supervisor, which was killed.
        """
        monitor = StoreMonitor(self.home, interval_seconds=3600, is_encrypted=False)
        monitor.check_blocks()
        monitor.scan()
        self.server.start()
        connection = Connection(ConnectionSettings((self.server.url,), name="tests"))
        seen: list[int] = []
        async with monitor.running(connection, seen.append):
            if creates:
                await make_stream(connection, creates)
                for _ in range(MESSAGES):
                    await connection.request(f"{creates}.a", b"x" * 100)
                if is_recorded:
                    for _ in range(2):  # a state is recorded when the next one is known
                        await monitor._refresh(connection)
            await eventually(lambda: seen)  # the streams are verified
            if is_killed:
                self.server.kill()
                await eventually(lambda: not connection.is_up)
        if not is_killed:
            assert self.server.process is not None
            self.server.process.terminate()
            self.server.process.wait()
        if not is_orphaned:
            monitor.record_stop()

    def damages(self) -> list[Damage]:
        return list(read_damage(self.home))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path)
    yield store
    store.server.stop()


@pytest.mark.engine
@pytest.mark.parametrize("is_recorded", [True, False])
@pytest.mark.parametrize(
    ("damage", "detail"),
    [
        (flip, "discarded at start; the store had 60"),
        (truncate, ""),
        (touch, ""),
    ],
)
async def test_damage_after_a_crash_is_found_at_the_next_start(
    store: Store, name: str, damage: Callable[[Path], None], detail: str, is_recorded: bool
) -> None:
    await store.run(creates=name, is_killed=True, is_recorded=is_recorded)
    damage(block_file(store.home, name))

    await store.run()

    # Messages that were written after the last record and are not in the file at the next start are not known to have existed.
    expected = [] if damage is touch or (damage is truncate and not is_recorded) else [name]
    assert [report.stream for report in store.damages()] == expected
    assert all(("went back from 60" if is_recorded else detail) in report.detail for report in store.damages())


@pytest.mark.engine
@pytest.mark.parametrize(
    ("damage", "detail"),
    [(flip, "the content of block file"), (truncate, "bytes and has"), (remove, "is missing"), (touch, "")],
)
async def test_damage_after_a_clean_stop_is_found_at_the_next_start(
    store: Store, name: str, damage: Callable[[Path], None], detail: str
) -> None:
    await store.run(creates=name)
    damage(block_file(store.home, name))

    await store.run()

    assert [report.stream for report in store.damages()] == ([name] if detail else [])
    assert all(detail in report.detail for report in store.damages())


@pytest.mark.engine
@pytest.mark.parametrize(
    ("damage", "detail"), [(flip, "1 messages are unreadable"), (truncate, "ended at sequence 3"), (touch, "")]
)
async def test_damage_after_a_stop_without_the_supervisor_is_found_at_the_next_start(
    store: Store, name: str, damage: Callable[[Path], None], detail: str
) -> None:
    await store.run(creates=name, is_orphaned=True)
    damage(block_file(store.home, name))

    await store.run()

    assert [report.stream for report in store.damages()] == ([name] if detail else [])
    assert all(detail in report.detail for report in store.damages())


@pytest.mark.engine
async def test_a_message_that_cannot_be_read_is_found_by_reading_the_stream(store: Store, name: str) -> None:
    await store.run(creates=name)
    flip(block_file(store.home, name))
    store.server.start()
    connection = Connection(ConnectionSettings((store.server.url,), name="tests"))
    await connection.open()
    try:
        checked = await check_stream(connection, name)
        assert checked is not None
        assert (checked.messages, checked.read, len(checked.unreadable)) == (MESSAGES, MESSAGES - 1, 1)
        await connection.api(f"STREAM.MSG.DELETE.{name}", {"seq": 3, "no_erase": True})
        again = await check_stream(connection, name)
        assert again is not None and again.unreadable == checked.unreadable
        assert await check_stream(connection, "no-such-stream") is None
    finally:
        await connection.close()


# A whole installation


STREAM = "Q_default__orders"


async def publish_all(running: Installation) -> None:
    url, batch = f"{running.url}/v1/queues/orders/messages/batch", [{"payload": "x" * 100} for _ in range(MESSAGES)]
    async with aiohttp.ClientSession(headers=running.headers) as session, session.post(url, json={"messages": batch}) as answer:
        assert answer.status in (200, 201), await answer.text()


def kill_all(running: Installation) -> None:
    """The supervisor is stopped first: else it would restart the engine, or the engine would notice its end and stop cleanly."""
    os.kill(running.pid, signal.SIGSTOP)
    os.kill(running.engine_pid, signal.SIGKILL)
    os.kill(running.pid, signal.SIGKILL)


def check(running: Installation, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and output of `postroad check`."""
    command = [sys.executable, "-m", "postroad", "check", "--data", str(running.home / "var"), "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=running.home, check=False)
    return done.returncode, json.loads(done.stdout)


async def test_damage_is_shown_to_operators_until_they_accept_it(install: Install) -> None:
    running = await install().start().ready()
    await publish_all(running)
    kill_all(running)
    assert running.process is not None
    await asyncio.to_thread(running.process.wait)
    assert (await asyncio.to_thread(check, running))[0] == 0, "with a server of its own"
    flip(block_file(running.home / "var", STREAM))

    await running.start().ready()

    [report] = [line for line in running.log().splitlines() if "store_damaged" in line]
    assert STREAM in report and '"level": "error"' in report
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{running.url}/readyz") as answer:
            detail = (await answer.json())["checks"]["store"]["detail"]
            assert detail.startswith("1 reports of damage") and STREAM not in detail
        async with session.get(f"{running.url}/metrics") as answer:
            assert "postroad_store_damage 1.0" in await answer.text()
    code, found = await asyncio.to_thread(check, running, "--accept")
    assert code == 1
    assert [report["stream"] for report in found["reports"]] == [STREAM]
    assert [one["stream"] for one in found["streams"] if one["unreadable"]] == [STREAM]
    assert not (await asyncio.to_thread(check, running))[1]["reports"]
