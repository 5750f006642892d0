"""Reports of the pipeline and archived jobs on the command line."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from postroad.container import Role
from postroad.jetstream.connection import Connection
from postroad.kernel.clock import now_ms, rfc3339
from tests.cli.shell import Completed, Shell
from tests.gateway import Gateway, Tenant, gateway_settings, running_gateway
from tests.insights import results
from tests.insights.results import DAY, HOUR, day_of, publish
from tests.jobs.archive_samples import archive, ended

Run = Callable[..., Awaitable[Completed]]
NOW = now_ms() // HOUR * HOUR
AT = rfc3339(NOW)[:16].replace("T", " ")
AT_NOON = "2026-11-16T12:00:00.000Z"
CELLS: dict[str, tuple[Callable[..., dict[str, Any]], list[str]]] = {
    "usage": (lambda at: results.usage(at, published=12_345, publishedBytes=2_500_000), ["12,345", "2.5 MB"]),
    "latency": (results.latency, ["orders", "wait", "3", "10 ms", "20 ms", "30.5 ms", "31 ms", "12.2 ms"]),
    "dead-letters": (lambda at: results.dead_letters(at, reason="no [bold]route"), ["orders", "no [bold]route", "2", "1"]),
    "sessions": (lambda at: results.sessions(at, expired=7), ["7"]),
    "backlog": (lambda at: results.backlog(at, oldestAgeMsMax=90_000), ["orders", "2.5", "4", "1.5 min"]),
    "commands": (results.commands, ["source", "shop", "globex/bot", "send", "delivered", "fast", "7", "2.5 ms", "6 ms"]),
    "fairness": (lambda at: results.fairness(at, bans=1, bannedUntil=AT_NOON), ["target", "acme/shop", "8", "0.8", "1"]),
    "skew": (lambda at: results.skew(at, nearLimit=0.5), ["shop", "20", "10.5 s", "0.5", "1 min"]),
    "limits": (results.limits, ["bot", "send", "5", "10", "0.5", "3"]),
    "telemetry": (lambda at: results.telemetry(at, oldestAgeMsMax=90_000), ["40", "7", "1.5 min", "2"]),
}


@pytest.fixture(scope="module")
async def whole(engine_url: str) -> AsyncIterator[Gateway]:
    async with running_gateway(gateway_settings(engine_url), Role.ALL) as running:
        yield running


@pytest.fixture
async def own(whole: Gateway) -> Tenant:
    return await whole.tenant()


@pytest.fixture
def link(whole: Gateway) -> Connection:
    return whole.node.platform.connection


@pytest.fixture
def run(anonymous: Shell, own: Tenant) -> Run:
    """Run a command with the tenant's key, in a thread, as the server runs in this process."""
    shell = anonymous.with_environment(POSTROAD_URL=own.client.url, POSTROAD_KEY=own.key)

    async def execute(*words: str) -> Completed:
        return await asyncio.to_thread(shell.invoke, *words)

    return execute


@pytest.mark.parametrize("report", CELLS)
async def test_a_report_is_a_table_with_the_time_of_computation(run: Run, own: Tenant, link: Connection, report: str) -> None:
    row, cells = CELLS[report]
    computed_at = rfc3339(now_ms() - 90_000)
    await publish(link, own.id, report, day_of(NOW), "hour", [row(NOW)], batch=4181, computedAt=computed_at)
    found = await run("insights", report)
    assert found.code == 0
    head, line = found.stdout.splitlines()
    assert head.startswith("time (UTC)") and line.startswith(AT)
    assert [cell for cell in cells if f" {cell} " not in f"{line} "] == []
    when = computed_at[:19].replace("T", " ")
    assert re.fullmatch(rf"computed {when} UTC, [1-9](\.\d)? min ago, by batch 4181\n", found.stderr)
    answer = (await run("insights", report, "--json")).json
    assert (answer["report"], answer["grain"], answer["batch"], len(answer["items"])) == (report, "hour", 4181, 1)
    assert answer["items"][0]["time"][:13] == rfc3339(NOW)[:13]


async def test_health_lists_the_worst_queues_first(run: Run, own: Tenant, link: Connection) -> None:
    rows = [
        results.health("fine"),
        results.health("stuck", "unhealthy", problems=["old", "unpolled"], oldestAgeMs=130_000, expectedDrainSeconds=60),
    ]
    await publish(link, own.id, "health", "now", "all", rows)
    found = await run("insights", "health")
    _head, first, second = found.stdout.splitlines()
    assert first.split()[:4] == ["stuck", "unhealthy", "old,", "unpolled"] and "2.2 min" in first and "1 min" in first
    assert second.split()[:2] == ["fine", "healthy"]
    assert "by batch 1" in found.stderr
    assert [row["queue"] for row in (await run("insights", "health", "--queue", "fine", "--json")).json["items"]] == ["fine"]


@pytest.mark.parametrize("report", [*CELLS, "health"])
async def test_a_report_that_was_never_computed_points_to_the_pipeline_status(run: Run, report: str) -> None:
    found = await run("insights", report)
    assert (found.code, found.stdout) == (0, "")
    assert found.stderr == "no results yet: is the pipeline running? See postroad pipeline status\n"


async def test_an_empty_report_differs_from_one_that_was_never_computed(run: Run, own: Tenant, link: Connection) -> None:
    await publish(link, own.id, "latency", day_of(NOW), "hour", [results.latency(NOW)])
    found = await run("insights", "latency", "--queue", "other")
    assert found.stdout == "" and found.stderr.startswith("no matching rows; computed 2026-11-16 12:00:04 UTC")


async def test_ranges_grains_and_limits(run: Run, own: Tenant, link: Connection) -> None:
    midnight = NOW // DAY * DAY
    for back in range(6):
        at = midnight - back * DAY
        rows = [results.latency(at, queue) for queue in ("a", "b")]
        await publish(link, own.id, "latency", day_of(at), "day", rows, dropped=1)
    words = ("insights", "latency", "--from", "5d", "--grain", "day")
    found = await run(*words)
    assert len(found.stdout.splitlines()) == 13 and found.stdout.splitlines()[1].startswith(
        f"{rfc3339(midnight - 5 * DAY)[:10]} "
    )
    assert "6 rows are missing" in found.stderr
    short = await run(*words, "--limit", "3", "--queue", "a")
    assert len(short.stdout.splitlines()) == 4 and "there are more rows: --limit" in short.stderr
    past = await run("insights", "latency", "--from", rfc3339(midnight - 3 * DAY), "--to", rfc3339(midnight - 2 * DAY), "--json")
    assert past.json["grain"] == "hour" and past.json["items"] == []
    refused = await run("insights", "usage", "--from", "30d", "--grain", "minute")
    assert refused.code == 2 and "grain=hour" in refused.stderr
    assert (await run("insights", "usage", "--grain", "week")).code == 2
    assert (await run("insights", "usage", "--from", "yesterday-ish")).code == 2


async def test_all_pages_are_printed_as_one_table(run: Run, own: Tenant, link: Connection) -> None:
    rows = [results.latency(NOW, f"q{number:04}") for number in range(1500)]
    await publish(link, own.id, "latency", day_of(NOW), "hour", rows, dropped=4)
    answer = (await run("insights", "latency", "--limit", "1400", "--json")).json
    assert len({row["queue"] for row in answer["items"]}) == 1400 and answer["nextCursor"]
    answer = (await run("insights", "latency", "--limit", "5000", "--json")).json
    assert (len(answer["items"]), answer["nextCursor"], answer["dropped"]) == (1500, None, 4)


async def test_a_restricted_key_is_refused_the_usage_of_the_tenant(anonymous: Shell, own: Tenant) -> None:
    narrow = await own.another_key(allowed_queues=("orders",))
    shell = anonymous.with_environment(POSTROAD_URL=own.client.url, POSTROAD_KEY=narrow.key)
    refused = await asyncio.to_thread(shell.invoke, "insights", "usage")
    assert refused.code == 3 and "whole tenant" in refused.stderr


async def test_an_archived_job_is_marked(run: Run, own: Tenant, link: Connection) -> None:
    job = ended(NOW - 100 * DAY, "orders", "dead", lastError="no route")
    await archive(link, own.id, [job])
    shown = (await run("jobs", "show", job["jobId"])).stdout
    assert re.search(r"^archived +yes *$", shown, re.MULTILINE) and "no route" in shown
    assert [one["jobId"] for one in (await run("jobs", "list", "--json")).json] == [job["jobId"]]
    assert (await run("jobs", "events", job["jobId"], "--json")).json == []


async def test_every_report_has_its_command(run: Run) -> None:
    """Also for reports that were never computed."""
    answers = [await run("insights", "usage"), await run("insights", "latency"), await run("insights", "dead-letters")]
    answers += [await run("insights", "sessions"), await run("insights", "backlog"), await run("insights", "health")]
    answers += [await run("insights", "commands", "--service", "shop"), await run("insights", "fairness", "--service", "bot")]
    answers += [await run("insights", "skew"), await run("insights", "limits"), await run("insights", "telemetry")]
    assert [answer.code for answer in answers] == [0] * 11
