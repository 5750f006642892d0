"""As a newcomer sees it: `postroad up`, `postroad demo`, and `postroad insights` shows what an independent count confirms."""

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from postroad.container import connection_settings
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.runtime.embedded_server import with_running_engine
from postroad.settings import Settings
from postroad.telemetry.frames import unpack
from tests.installation import Installation
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pipeline"), pytest.mark.timeout(900)]

SECONDS = int(os.environ.get("DEMO_SECONDS", "20"))
TENANTS = ("demo-shop", "demo-bank", "demo-chat")


class Console:
    """The command line, as the installation's operator has it."""

    def __init__(self, running: Installation) -> None:
        self._home = running.home
        clean = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
        self._env = {
            **clean,
            "POSTROAD_URL": running.url,
            "POSTROAD_KEY": running.credentials["admin_key"],
            "HOME": str(running.home),
        }

    async def __call__(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "postroad",
            *arguments,
            env=self._env,
            cwd=self._home,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        out, problems = await process.communicate()
        assert process.returncode == 0, f"{arguments}: {problems.decode()[-2000:]}"
        return out.decode()

    async def report(self, tenant: str, report: str, *more: str) -> dict[str, Any]:
        text = await self("--tenant", tenant, "insights", report, "--json", *more)
        found: dict[str, Any] = json.loads(text)
        return found


async def counted(home: Path) -> dict[str, Counter[str]]:
    """What really happened to each tenant, counted on the raw streams without any of the pipeline's code."""
    settings = with_running_engine(Settings.of(data_dir=home / "var"))
    connection = Connection(connection_settings(settings, "tests"))
    await connection.open()
    counts: dict[str, Counter[str]] = {tenant: Counter() for tenant in TENANTS}
    seen: set[str] = set()
    try:
        for stream, word in (("JOBS", "job"), ("TELEMETRY", "telemetry")):
            for tenant in TENANTS:
                position, is_end = 1, False
                while not is_end:
                    page = await stream_reader.read(connection, stream, f"{word}.{tenant}", position, 500)
                    for line in (line for entry in page.entries for line in unpack(entry.payload)):
                        event = json.loads(line)
                        if event["event_id"] not in seen:
                            seen.add(event["event_id"])
                            _count(event, counts[tenant])
                    position, is_end = page.next_sequence, page.is_end
    finally:
        await connection.close()
    return counts


def _count(event: dict[str, Any], counts: Counter[str]) -> None:
    kind = event["event"]
    counts[kind] += 1
    if kind == "job.queued":
        counts["bytes"] += event["payload_bytes"]
    if kind == "job.dead":
        counts[f"dead {event['queue']} {event['reason']}"] += 1
    if kind == "job.leased" and event["attempt"] == 1:
        counts[f"wait {event['queue']}"] += 1
    if kind == "job.done":
        counts[f"processing {event['queue']}"] += 1
    if kind == "session.ended":
        counts["expired" if event["is_expired"] else "deleted"] += 1


async def _is_running(console: Console) -> bool:
    return bool(json.loads(await console("pipeline", "status", "--json"))["state"] == "running")


async def test_what_insights_shows_is_what_happened(tmp_path: Path) -> None:
    running = (
        await Installation(tmp_path, POSTROAD_PIPELINE="true", POSTROAD_PIPELINE_SECONDS="3", POSTROAD_SAMPLE_SECONDS="2")
        .start()
        .ready()
    )
    try:
        console = Console(running)
        await console("demo", "--seconds", str(SECONDS), "--seed", "3", "--json-summary", "summary.json")
        truth = await counted(tmp_path)
        assert all(counts["job.queued"] > 10 for counts in truth.values() if counts["job.queued"])

        await eventually(lambda: _has_all(running, truth), 700)
        for tenant in TENANTS:
            await _compare(console, tenant, truth[tenant])
        await eventually(lambda: _is_running(console), 120)  # a busy machine is behind for a while
        status = json.loads(await console("pipeline", "status", "--json"))
        assert status["quarantined"] == {}
        health = (await console.report("demo-shop", "health"))["items"]
        assert {row["status"] for row in health} <= {"healthy", "unhealthy", "unknown"}
        assert len(health) > 0
        page = await console("--tenant", "demo-shop", "report", "--day", "today", "--out", "report.html")
        assert "report.html" in page
        assert "<svg" in (tmp_path / "report.html").read_text()
    finally:
        await running.stop()


async def _has_all(running: Installation, truth: dict[str, Counter[str]]) -> bool:
    """Whether the day's usage, deliveries included, is what it should be: then all that the demo did has been taken in."""
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {running.credentials['admin_key']}"}) as session:
        for tenant in TENANTS:
            url = f"{running.url}/v1/insights/usage?grain=day"
            async with session.get(url, headers={"X-Postroad-Tenant": tenant}) as answer:
                items = (await answer.json())["items"]
            wanted = {
                "published": truth[tenant]["job.queued"],
                "done": truth[tenant]["job.done"],
                "dead": truth[tenant]["job.dead"],
            }
            found = items[-1] if items else {}
            if any(found.get(name, 0) != count for name, count in wanted.items()):
                await asyncio.sleep(0.5)  # every look takes the machine from the pipeline
                return False
    return True


async def _compare(console: Console, tenant: str, truth: Counter[str]) -> None:
    """The demo is over, so nothing of this changes any more. The sums of minutes and hours are those of the day."""
    for grain in ("day", "hour", "minute"):
        usage = await _sums(console, tenant, "usage", grain)
        names = {"published": "job.queued", "publishedBytes": "bytes", "deliveries": "job.leased", "done": "job.done"}
        names |= {name: f"job.{name}" for name in ("dead", "cancelled", "expired")}
        assert {name: usage["", name] for name in names} == {name: truth[event] for name, event in names.items()}, grain
        latency = await _sums(console, tenant, "latency", grain, "phase", "queue")
        found = {key: count for (key, name), count in latency.items() if name == "count"}
        assert found == _those(truth, "wait ", "processing "), grain
        dead = await _sums(console, tenant, "dead-letters", grain, "queue", "reason")
        found = {f"dead {key}": count for (key, name), count in dead.items() if name == "count" and not key.endswith(" redriven")}
        assert found == _those(truth, "dead "), grain
        sessions = await _sums(console, tenant, "sessions", grain)
        names = {name: f"session.{name}" for name in ("subscribed", "unsubscribed", "touched")} | {"deleted": "deleted"}
        assert {name: sessions["", name] for name in names} == {name: truth[event] for name, event in names.items()}, grain


async def _sums(console: Console, tenant: str, report: str, grain: str, *keys: str) -> Counter[tuple[str, str]]:
    """Of each column of whole numbers, by the values of the keys."""
    sums: Counter[tuple[str, str]] = Counter()
    for row in (await console.report(tenant, report, "--grain", grain, "--limit", "1000"))["items"]:
        key = " ".join(row[name] for name in keys)
        sums.update({(key, name): value for name, value in row.items() if isinstance(value, int)})
    return sums


def _those(truth: Counter[str], *prefixes: str) -> dict[str, int]:
    return {name: count for name, count in truth.items() if name.startswith(prefixes)}
