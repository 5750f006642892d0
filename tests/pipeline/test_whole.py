"""As a newcomer sees it: `postroad up`, `postroad demo`, and `postroad insights` shows what an independent count confirms."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
from tests.pipeline.recount import GRAINS, NAMES, Event, Events, assert_equal, latest_samples, recount
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pipeline"), pytest.mark.timeout(1800)]

SECONDS = int(os.environ.get("DEMO_SECONDS", "25"))  # 180 by hand: what `postroad demo` does
KILLS = 3
EXAMPLE = Path(__file__).parents[2] / "examples" / "spark" / "commands.py"
TENANTS = ("demo-shop", "demo-bank", "demo-chat")
STREAMS = {"JOBS": "job", "TELEMETRY": "telemetry", "COMMANDS": "command"}
SETTINGS = {
    "POSTROAD_PIPELINE_SECONDS": "3",
    "POSTROAD_PIPELINE_NICE": "0",
    "POSTROAD_SAMPLE_SECONDS": "2",
    "POSTROAD_AUDITOR_BAN_SECONDS": "20",
}


class Console:
    """The command line, as the installation's operator has it."""

    def __init__(self, running: Installation) -> None:
        self._home = running.home
        clean = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
        self._env = {
            **clean,
            "POSTROAD_URL": running.url,
            "POSTROAD_KEY": running.credentials["admin_key"],
            "POSTROAD_DATA_DIR": str(running.home / "var"),
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


async def raw_events(home: Path, positions: dict[str, int] | None = None) -> Events:
    """The events of each tenant, each once, from the raw streams up to these positions, without any of the pipeline's code."""
    settings = with_running_engine(Settings.of(data_dir=home / "var"))
    connection = Connection(connection_settings(settings, "tests"))
    await connection.open()
    found: dict[str, dict[str, Event]] = {tenant: {} for tenant in TENANTS}
    try:
        for stream, word in STREAMS.items():
            last = float("inf") if positions is None else positions[stream]
            for tenant in TENANTS:
                position, is_end = 1, False
                while not is_end:
                    page = await stream_reader.read(connection, stream, f"{word}.{tenant}", position, 500)
                    for line in (line for entry in page.entries if entry.sequence <= last for line in unpack(entry.payload)):
                        event = {**json.loads(line), "stream": stream}
                        found[tenant].setdefault(event["event_id"], event)
                    position, is_end = page.next_sequence, page.is_end
    finally:
        await connection.close()
    return {tenant: list(events.values()) for tenant, events in found.items()}


class Insights:
    """Reports of all tenants, as the HTTP interface has them."""

    def __init__(self, running: Installation) -> None:
        self._url = running.url
        self._headers = {"Authorization": f"Bearer {running.credentials['admin_key']}"}

    async def page(self, tenant: str, report: str, **query: str) -> dict[str, Any]:
        headers = {**self._headers, "X-Postroad-Tenant": tenant}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{self._url}/v1/insights/{report}", params=query) as answer,
        ):
            assert answer.status == 200, await answer.text()
            found: dict[str, Any] = await answer.json()
            return found

    async def rows(self, tenant: str, report: str, grain: str | None) -> list[dict[str, Any]]:
        query = {"limit": "1000"} if grain is None else {"limit": "1000", "grain": grain}
        rows: list[dict[str, Any]] = []
        while True:
            page = await self.page(tenant, report, **query)
            rows += page["items"]
            if page["nextCursor"] is None:
                return rows
            query["cursor"] = page["nextCursor"]


def commits(home: Path) -> int:
    return sum(1 for _ in (home / "var" / "lake").glob("*/_delta_log/*.json"))


async def kill_drivers(running: Installation) -> int:
    """Kill the driver again and again, each time once it has written something."""
    for _ in range(KILLS):
        seen = commits(running.home)

        def has_more(seen: int = seen) -> bool:
            return commits(running.home) > seen and bool(running.children("pipeline run"))

        await eventually(has_more, 600)
        for pid in running.children("pipeline run"):
            os.kill(pid, signal.SIGKILL)
    return KILLS


@asynccontextmanager
async def running_installation(home: Path, **environment: str) -> AsyncIterator[Installation]:
    installation = Installation(home, **environment).start()
    try:
        yield await installation.ready(300)
    finally:
        installation.end()


async def test_every_report_shows_what_happened_although_the_driver_was_killed(tmp_path: Path) -> None:
    async with running_installation(tmp_path, POSTROAD_PIPELINE="true", **SETTINGS) as running:
        console, insights = Console(running), Insights(running)
        demo = console("demo", "--seconds", str(SECONDS), "--seed", "3", "--json-summary", "summary.json")
        await asyncio.gather(demo, kill_drivers(running))
        summary = json.loads((tmp_path / "summary.json").read_text())
        events = await raw_events(tmp_path)
        _compare_summary(summary["tenants"], events)
        await eventually(lambda: _has_all(insights, events), 600)
        await _compare_commands_line(console, insights)
        page = await console("--tenant", "demo-shop", "report", "--day", "today", "--out", "report.html")
        assert "report.html" in page and "<svg" in (tmp_path / "report.html").read_text()
    # Samples go on while it runs. Without a pipeline of its own, it has the reports of exactly what one more run has read.
    async with running_installation(tmp_path, POSTROAD_PIPELINE="false", POSTROAD_SAMPLE_SECONDS="3600") as running:
        console, insights = Console(running), Insights(running)
        await console("pipeline", "run", "--once")
        status = json.loads(await console("pipeline", "status", "--json"))
        assert status["quarantined"] == {}
        events = await raw_events(tmp_path, {one["stream"]: one["sequence"] for one in status["streams"]})
        await _compare_all(insights, events)
    await _run_the_example(tmp_path / "var" / "lake", events)


async def _run_the_example(lake: Path, events: Events) -> None:
    """The notebook over the tables of commands prints what happened."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(EXAMPLE), str(lake), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, problems = await process.communicate()
    assert process.returncode == 0, problems.decode()[-2000:]
    tables = _tables(out.decode())
    assert [one[0][-1] for one in tables] == ["count", "p50 p95 p99", "sources", "payload", "count"]
    outcomes = Counter(
        (one.get("target") or "NULL", one.get("command.name") or "NULL", one["event"], one.get("reason") or "NULL")
        for some in events.values()
        for one in some
        if one["event"].startswith("snavio.command.")
    )
    assert {tuple(row[:-1]): int(row[-1]) for row in tables[0][1:]} == outcomes
    paths = Counter(one["path"] for some in events.values() for one in some if one["event"] == "snavio.command.delivered")
    assert {row[0]: int(row[1]) for row in tables[1][1:]} == paths
    assert len(tables[2]) > 1 and len(tables[3]) > 1 and len(tables[4]) > 1


def _tables(text: str) -> list[list[list[str]]]:
    """Cells of the tables that Spark has printed, each with its header first. A table has three ruled lines."""
    tables: list[list[list[str]]] = []
    rules = 0
    for line in text.splitlines():
        if line.startswith("+"):
            if rules % 3 == 0:
                tables.append([])
            rules += 1
        elif line.startswith("|"):
            tables[-1].append([cell.strip() for cell in line.strip("|").split("|")])
    return tables


def _compare_summary(summary: dict[str, Any], events: Events) -> None:
    """What the demo counted from the server's responses is what the events say."""
    for tenant in TENANTS:
        outcomes: dict[str, Counter[str]] = defaultdict(Counter)
        reasons: dict[str, Counter[str]] = defaultdict(Counter)
        for one in events[tenant]:
            kind = one["event"].removeprefix("snavio.command.")
            if kind in ("delivered", "duplicate", "failed", "invalid"):
                service = one["source"].partition("/")[2]
                outcomes[service].update(("sent", kind))
                if kind in ("failed", "invalid"):
                    reasons[service][one["reason"]] += 1
        found = summary[tenant]["services"]
        assert found.keys() == outcomes.keys()
        for service, counts in found.items():
            assert counts.pop("reasons") == reasons[service], service
            assert {name: count for name, count in counts.items() if count} == outcomes[service], service
        assert summary[tenant]["published"] == sum(one["event"] == "job.queued" for one in events[tenant])
        read = summary[tenant]["telemetryRead"]
        assert (read > 0) is (tenant != "demo-bank"), "the bank does not read its telemetry"
    shop = summary["demo-shop"]["services"]
    assert shop["checkout"]["duplicate"] == shop["checkout"]["delivered"] > 0, "strict commands are sent twice"


async def _has_all(insights: Insights, events: Events) -> bool:
    """Whether the day's usage and commands are what they should be: then all that the demo did has been taken in."""
    for tenant in TENANTS:
        found = (await insights.page(tenant, "usage", grain="day"))["items"]
        wanted = recount("usage", tenant, events, "day")
        names = ("published", "deliveries", "done", "dead")
        if [sum(row[name] for row in found) for name in names] != [sum(row[name] for row in wanted.values()) for name in names]:
            await asyncio.sleep(0.5)  # every look takes the machine from the pipeline
            return False
        sent = sum(row["count"] for row in await insights.rows(tenant, "commands", "day"))
        if sent != sum(row["count"] for row in recount("commands", tenant, events, "day").values()):
            return False
    return True


async def _compare_commands_line(console: Console, insights: Insights) -> None:
    """`postroad insights` prints every report. The demo is over, so most of them do not change any more."""
    for report in (*NAMES, "health"):
        shown = json.loads(await console("--tenant", "demo-bank", "insights", report, "--json"))
        assert shown["items"], report
        if report in ("latency", "dead-letters", "commands"):
            assert shown["items"] == (await insights.page("demo-bank", report))["items"], report


async def _compare_all(insights: Insights, events: Events) -> None:
    for tenant in TENANTS:
        for report in NAMES:
            for grain in GRAINS:
                assert_equal(await insights.rows(tenant, report, grain), recount(report, tenant, events, grain), report, grain)
        health = {row["queue"]: row for row in await insights.rows(tenant, "health", None)}
        samples = latest_samples(tenant, events)
        assert health.keys() <= samples.keys()  # queues that were not sampled for ten minutes are left out
        for queue, row in health.items():
            names = ("ready", "leased", "delayed", "dead")
            assert [row[name] for name in names] == [samples[queue][name] for name in names], queue
