"""Starting and stopping as an operator does."""

import asyncio
import os
import re
import signal
import stat
from pathlib import Path

import aiohttp
import pytest

from tests.faults.conftest import Install
from tests.installation import Installation, is_running
from tests.waiting import eventually


async def publish(running: Installation, queue: str = "orders") -> str:
    url = f"{running.url}/v1/queues/{queue}/messages"
    async with aiohttp.ClientSession(headers=running.headers) as session, session.post(url, json={"payload": {"n": 1}}) as answer:
        assert answer.status == 201, await answer.text()
        return str((await answer.json())["messageId"])


async def pull(running: Installation, queue: str = "orders") -> list[str]:
    url, wanted = f"{running.url}/v1/queues/{queue}/pull", {"maxMessages": 10, "waitMs": 3000}
    async with aiohttp.ClientSession(headers=running.headers) as session, session.post(url, json=wanted) as answer:
        assert answer.status == 200, await answer.text()
        return [message["messageId"] for message in (await answer.json())["messages"]]


def umask(pid: int) -> int:
    [value] = re.findall(r"^Umask:\s*(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(value, 8)


async def test_the_first_start_makes_keys_and_says_where_everything_is(install: Install) -> None:
    running = await install().start().ready()
    credentials = running.home / "var" / "credentials.toml"
    keys = running.credentials
    started = [running.pid, *running.children("")]
    masks = {umask(pid) for pid in started}

    code, output = await running.stop()

    assert code == 0
    assert len(started) == 5 and masks == {0o077}  # with the engine, a gateway, control and delivery
    assert stat.S_IMODE((running.home / "var").stat().st_mode) == 0o700
    assert set(keys) == {"tenant_key", "admin_key", "aws_access_key_id", "aws_secret_access_key"}
    assert stat.S_IMODE(credentials.stat().st_mode) == 0o600
    assert credentials.read_text().count("\n") == 5
    for shown in (running.url, str(running.home / "var"), str(credentials)):
        assert shown in output
    for secret in keys.values():
        assert secret not in output + running.log(), "standard output is a file: a key in it would be in a log"


async def test_a_second_start_keeps_keys_and_messages_and_shows_no_key(install: Install) -> None:
    running = await install().start().ready()
    keys, message = running.credentials, await publish(running)
    await running.stop()

    await running.start().ready()

    assert running.credentials == keys
    assert await pull(running) == [message]
    _, output = await running.stop()
    assert keys["tenant_key"] not in output
    assert keys["tenant_key"] not in running.log()


async def test_ctrl_c_ends_everything_live_readers_and_long_polls_included(install: Install) -> None:
    running = await install().start().ready()
    await publish(running)
    await pull(running)
    started = [running.engine_pid, *running.worker_pids, *running.background_pids]

    async def follow(session: aiohttp.ClientSession) -> None:
        async with session.get(f"{running.url}/v1/telemetry/stream") as answer:
            opened.set()
            async for _ in answer.content:
                pass

    async def long_poll(session: aiohttp.ClientSession) -> int:
        async with session.post(f"{running.url}/v1/queues/orders/pull", json={"waitMs": 20000}) as answer:
            return answer.status

    opened = asyncio.Event()
    async with aiohttp.ClientSession(headers=running.headers) as session:
        reader, poll = asyncio.create_task(follow(session)), asyncio.create_task(long_poll(session))
        await asyncio.wait_for(opened.wait(), 30)
        code, _ = await running.stop()
        await reader  # its stream ended properly: no connection error
        assert await poll == 503

    assert code == 0
    assert not [pid for pid in started if is_running(pid)]
    assert "Traceback" not in running.log()


async def test_a_second_postroad_on_the_same_data_is_refused(install: Install) -> None:
    await install().start().ready()
    second = install().start()
    assert second.process is not None

    assert await asyncio.to_thread(second.process.wait, 20) == 1

    assert "another Postroad is running" in second.log()


async def test_a_port_that_is_taken_is_said_so(install: Install, tmp_path: Path) -> None:
    running = await install().start().ready()
    second = install(POSTROAD_PORT=str(running.port), POSTROAD_DATA_DIR=str(tmp_path / "other")).start()
    assert second.process is not None

    assert await asyncio.to_thread(second.process.wait, 20) == 1

    assert "POSTROAD_PORT" in second.log()


async def test_settings_that_cannot_be_used_are_all_named(install: Install) -> None:
    running = install(POSTROAD_WORKERS="none", POSTROAD_SYNC="sometimes", POSTROAD_SYNK="2s").start()
    assert running.process is not None

    assert await asyncio.to_thread(running.process.wait, 20) == 2

    for name in ("POSTROAD_WORKERS", "POSTROAD_SYNC", "POSTROAD_SYNK"):
        assert name in running.log()


async def test_kill_9_of_the_supervisor_leaves_nothing_running_and_nothing_stuck(install: Install) -> None:
    running = await install().start().ready()
    message = await publish(running)
    started = [running.engine_pid, *running.worker_pids, *running.background_pids]

    os.kill(running.pid, signal.SIGKILL)
    assert running.process is not None
    running.process.wait()
    await eventually(lambda: not [pid for pid in started if is_running(pid)])
    await running.start().ready()

    assert await pull(running) == [message]


async def test_two_workers_share_the_port_and_their_metrics(install: Install) -> None:
    running = await install("up", "--workers", "2").start().ready()
    await eventually(lambda: len(running.worker_pids) == 2)
    for _ in range(20):
        await publish(running)

    async def all_are_counted() -> bool:
        async with aiohttp.ClientSession() as session, session.get(f"{running.url}/metrics") as answer:
            lines = [line for line in (await answer.text()).splitlines() if line.startswith("postroad_messages_published_total{")]
            return sum(float(line.rsplit(" ", 1)[1]) for line in lines) == 20

    await eventually(all_are_counted)


@pytest.mark.parametrize("role", ["gateway", "control", "delivery"])
async def test_each_role_serves_health_and_only_the_gateway_the_api(install: Install, role: str) -> None:
    whole = await install().start().ready()
    platform_key = (whole.home / "var" / "platform.key").read_text().strip()
    engine = {"POSTROAD_NATS_URL": whole.nats_url, "POSTROAD_NATS_NKEY": str(whole.nkey_file)}
    part = install("serve", "--role", role, POSTROAD_PLATFORM_KEY=platform_key, **engine)

    await part.start().ready()

    url = f"{part.url}/v1/queues/none"
    async with aiohttp.ClientSession(headers=whole.headers) as session, session.get(url) as answer:
        code = (await answer.json())["code"]
    assert code == ("queue-not-found" if role == "gateway" else "route-not-found")


async def test_serve_without_an_engine_or_platform_key_says_what_is_missing(install: Install) -> None:
    running = install("serve").start()
    assert running.process is not None

    assert await asyncio.to_thread(running.process.wait, 20) == 1

    assert "POSTROAD_NATS_URL" in running.log()
