"""`postroad demo`: the plan by its seed, the numbers beside those of the server, the end, and where it refuses."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.shell import Completed, Shell
from tests.installation import Installation
from tests.waiting import eventually

from postroad.cli import output
from postroad.cli.demo import is_loopback
from postroad.client import Postroad
from postroad.demo.clock import Stage
from postroad.demo.plan import Verdict, arrivals, draws, messages, sessions, verdict
from postroad.demo.scenarios import BANK, CHAT, RATE, SHOP, STORIES, Fate
from postroad.runtime.embedded_server import free_port

pytestmark = pytest.mark.xdist_group("demo")  # they look at one run

EMAILS = SHOP.queues[1]

# The plan


def test_the_same_seed_is_the_same_story_and_another_one_is_not() -> None:
    once, again = (messages(7, "t", EMAILS, 30, RATE) for _ in range(2))
    assert once == again
    assert sessions(7, CHAT, 30, RATE) == sessions(7, CHAT, 30, RATE)
    assert once != messages(8, "t", EMAILS, 30, RATE)
    assert sessions(7, CHAT, 30, RATE) != sessions(8, CHAT, 30, RATE)


def test_the_plan_keeps_to_its_time_and_about_to_its_rate() -> None:
    planned = [message for story in STORIES for queue in story.queues for message in messages(1, story.name, queue, 100, 40)]
    assert all(0 <= message.at < 100 for message in planned)
    steady = [len(list(arrivals(draws(1, str(n)), 5, 100))) for n in range(40)]
    assert 480 < sum(steady) / len(steady) < 520
    shares = sum(queue.share for story in STORIES for queue in story.queues)
    assert shares == pytest.approx(1)
    bursts = Counter(message.at for message in messages(1, "t", SHOP.queues[0], 100, RATE)).most_common(1)
    assert bursts[0][1] >= SHOP.queues[0].burst_size // 2


def test_every_kind_of_fate_and_of_session_is_in_the_plan() -> None:
    fates = {message.fate for story in STORIES for queue in story.queues for message in messages(1, story.name, queue, 60, RATE)}
    assert fates == set(Fate)
    for story in STORIES:
        planned = sessions(1, story, 3, 1)
        assert len(planned) == 4
        assert {one.is_deleted for one in planned} == {True, False}
        assert any(story.pattern in one.streams for one in planned)
        assert any(one.unsubscribes_at is not None for one in planned)
        assert all(one.at <= one.until <= 3 and len(set(one.streams)) == len(one.streams) for one in planned)


@pytest.mark.parametrize(
    ("fate", "attempt", "decided"),
    [
        ("fine", 1, Verdict("ack")),
        ("something else", 1, Verdict("ack")),
        ("flaky", 1, Verdict("retry", "why")),
        ("flaky", 2, Verdict("ack")),
        ("doomed", 2, Verdict("retry", "why")),
        ("doomed", 3, Verdict("retry", "why", is_last=True)),
        ("hopeless", 1, Verdict("retry", "why")),
        ("hopeless", 2, Verdict("dlq", "why")),
        ("refused", 1, Verdict("dlq", "why")),
    ],
)
def test_a_message_meets_its_fate(fate: str, attempt: int, decided: Verdict) -> None:
    assert verdict({"fate": fate, "reason": "why"}, attempt, 3, set()) == decided


def test_what_was_repaired_is_refused_no_more() -> None:
    headers = {"fate": "refused", "reason": "why"}
    assert verdict(headers, 1, 3, {"why"}) == Verdict("ack")
    assert verdict(headers, 1, 3, {"something else"}) == Verdict("dlq", "why")


async def test_calls_keep_the_pace() -> None:
    for rate, per_second in ((1, 100), (50, 250)):
        stage = Stage(10, rate, 1, "run")
        await asyncio.gather(*(stage.turn() for _ in range(per_second // 5 + 1)))
        assert 0.2 <= stage.now < 2


# A run


@pytest.fixture(scope="module")
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    """A fresh one: the server's numbers are those of the run and of nothing else."""
    installation = Installation(tmp_path_factory.mktemp("demo"))
    yield await installation.start().ready()
    installation.end()


@pytest.fixture(scope="module")
def told(own: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Completed, dict[str, Any]]]:
    """What a run of three seconds said, and its summary. All tests look at the same one."""
    home = tmp_path_factory.mktemp("told")
    shell = Shell(home, {"POSTROAD_URL": own.url, "POSTROAD_KEY": own.credentials["admin_key"]})
    finished = shell.run_process("demo", "--seconds", "3", "--seed", "266", "--json-summary", str(home / "summary.json"))
    assert finished.code == 0, finished
    yield finished, json.loads((home / "summary.json").read_text())


def of_tenant(own: Installation, tenant: str) -> Postroad:
    return Postroad(own.url, own.credentials["admin_key"], tenant=tenant)


def test_what_is_planned_is_published(told: tuple[Completed, dict[str, Any]]) -> None:
    summary = told[1]
    assert (summary["seed"], summary["seconds"], summary["endedBy"]) == (266, 3, "time")
    for story in STORIES:
        tenant = summary["tenants"][story.name]
        for queue in story.queues:
            assert tenant["queues"][queue.name]["published"] == len(messages(266, story.name, queue, 3, RATE)), queue.name
        assert tenant["published"] == sum(queue["published"] for queue in tenant["queues"].values()) > 0
        assert tenant["appended"] == tenant["read"] > 0
        planned = sessions(266, story, 3, RATE)
        assert tenant["sessions"] == len(planned)
        assert tenant["subscribed"] == sum(len(one.streams) for one in planned)
        assert tenant["touched"] == sum(len(one.touches) for one in planned)
        assert (tenant["deleted"], tenant["left"]) == (
            sum(one.is_deleted for one in planned),
            sum(not one.is_deleted for one in planned),
        )


async def test_the_summary_is_what_the_server_says(own: Installation, told: tuple[Completed, dict[str, Any]]) -> None:
    for story in STORIES:
        counted = told[1]["tenants"][story.name]
        with of_tenant(own, story.name) as client:
            await eventually(lambda: client.jobs.status().behind == 0)
            jobs = [job for queue in story.queues for job in client.jobs.list(queue=queue.name)]
            assert len(jobs) == counted["published"]
            for queue in story.queues:
                mine = counted["queues"][queue.name]
                of_queue = [job for job in jobs if job.queue == queue.name]
                assert len(of_queue) == mine["published"]
                assert sum(job.status == "done" for job in of_queue) == mine["done"], queue.name
                assert sum(job.status == "dead" for job in of_queue) == mine["dead"] - mine["redriven"], queue.name
                events = Counter(event["event"] for job in of_queue for event in client.jobs.events(job.job_id))
                names = ("job.queued", "job.leased", "job.done", "job.retried", "job.dead", "job.redriven")
                assert [events[name] for name in names] == [
                    mine[name] for name in ("published", "delivered", "done", "retried", "dead", "redriven")
                ], queue.name
                stats = client.queues.get(queue.name).stats
                assert stats is not None
                assert stats.dead == mine["dead"] - mine["redriven"]
                waiting = mine["published"] + mine["redriven"] - mine["done"] - mine["dead"]
                assert stats.ready + stats.leased + stats.delayed == waiting, queue.name
                assert mine["lost"] == 0
                groups = {group.reason: group.count for group in client.queues.dead_letters.groups(queue.name).groups}
                if not mine["redriven"]:
                    assert groups == mine["deadReasons"], queue.name


def test_there_is_something_of_everything(told: tuple[Completed, dict[str, Any]]) -> None:
    tenants = told[1]["tenants"]
    names = (
        "published",
        "delayed",
        "delivered",
        "done",
        "retried",
        "dead",
        "redriven",
        "copied",
        "unsubscribed",
        "deleted",
        "left",
    )
    assert all(sum(tenant[name] for tenant in tenants.values()) for name in names), tenants
    bank = tenants[BANK.name]["queues"]
    assert bank["audit-export"]["delivered"] == 0 < bank["audit-export"]["published"]
    assert bank["statements"]["done"] < bank["statements"]["published"] * 0.8
    reason = SHOP.redrives[0].reason  # repaired, and so of those that were put back none died of it again
    refused = [message for message in messages(266, SHOP.name, EMAILS, 3, RATE) if message.reason == reason]
    assert 0 < tenants[SHOP.name]["queues"]["emails"]["deadReasons"][reason] <= len(refused)
    first = sum(sum(queue["firstAttempt"].values()) for tenant in tenants.values() for queue in tenant["queues"].values())
    assert 0 < first <= sum(tenant["dead"] for tenant in tenants.values())


async def test_the_summary_is_told_to_people_and_the_key_is_gone(
    own: Installation, told: tuple[Completed, dict[str, Any]]
) -> None:
    finished, summary = told
    assert all(name in finished.stdout for name in summary["tenants"])
    published = sum(tenant["published"] for tenant in summary["tenants"].values())
    line = next(line for line in finished.stdout.splitlines() if line.startswith("published"))
    assert line.split()[-1] == f"{published:,}"
    assert "postroad tenants delete demo-shop" in finished.stderr
    for name in summary["tenants"]:
        with of_tenant(own, name) as client:
            assert list(client.keys.list()) == []


def started(own: Installation, home: Path, *options: str) -> subprocess.Popen[str]:
    """A run that would take five minutes."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
    env |= {"POSTROAD_URL": own.url, "POSTROAD_KEY": own.credentials["admin_key"], "XDG_CONFIG_HOME": str(home)}
    words = [sys.executable, "-m", "postroad", "demo", "--seconds", "300", *options]
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def unpolled(client: Postroad) -> int:
    """What is in the queue that nobody polls: it grows while the demo plays."""
    stats = client.queues.get("audit-export").stats
    assert stats is not None
    return stats.ready


async def test_ctrl_c_finishes_what_is_in_hand_and_a_second_run_takes_the_same_tenants(
    own: Installation, told: tuple[Completed, dict[str, Any]], tmp_path: Path
) -> None:
    with of_tenant(own, BANK.name) as client:
        before = unpolled(client)
        process = started(own, tmp_path, "--json-summary", str(tmp_path / "s.json"))
        try:
            await eventually(lambda: unpolled(client) > before, 20)
            process.send_signal(signal.SIGINT)
            said, stderr = await asyncio.to_thread(process.communicate, timeout=15)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, stderr
        assert "stopped" in said
        summary = json.loads((tmp_path / "s.json").read_text())
        assert (summary["endedBy"], set(summary["tenants"])) == ("signal", {story.name for story in STORIES})
        assert unpolled(client) - before == summary["tenants"][BANK.name]["queues"]["audit-export"]["published"]
        assert list(client.keys.list()) == []


async def test_a_second_signal_is_not_waited_for(
    own: Installation, told: tuple[Completed, dict[str, Any]], tmp_path: Path
) -> None:
    with of_tenant(own, BANK.name) as client:
        before = unpolled(client)
        process = started(own, tmp_path)
        try:
            await eventually(lambda: unpolled(client) > before, 20)
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            said, stderr = await asyncio.to_thread(process.communicate, timeout=15)
        finally:
            process.kill()
            process.wait()
        assert (process.returncode, said) == (130, ""), stderr
        assert "no summary" in stderr and "Traceback" not in stderr
        assert list(client.keys.list()) == []


def test_tenants_can_be_deleted_and_the_next_run_takes_others(operator: Shell, tmp_path: Path) -> None:
    operator.run("demo", "--seconds", "1", "--rate", "5", "--delete")
    left = {one["id"] for one in operator.run("tenants", "list", "--json").json if one["state"] != "deleting"}
    assert not left & {story.name for story in STORIES}
    operator.run("demo", "--seconds", "1", "--rate", "5", "--json-summary", str(tmp_path / "s.json"))
    assert set(json.loads((tmp_path / "s.json").read_text())["tenants"]) == {f"{story.name}-2" for story in STORIES}


# Where it refuses


def test_a_server_that_is_not_there_is_told(operator: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_DEADLINE_SECONDS", 0.2)
    finished = operator.with_environment(POSTROAD_URL=f"http://127.0.0.1:{free_port()}").invoke("demo")
    assert finished.code == 1
    assert "postroad up" in finished.stderr


def test_only_the_platforms_admin_key_will_do(shell: Shell) -> None:
    for someone in (shell, shell.with_environment(POSTROAD_KEY="pr_live_wrong")):
        finished = someone.invoke("demo")
        assert finished.code == 1, finished
        assert "no demo at" in finished.stderr or "the platform's admin key" in finished.stderr


def test_without_a_key_it_is_as_for_every_command(anonymous: Shell) -> None:
    assert anonymous.invoke("demo").code == 2


def test_another_machine_is_asked_about(operator: Shell) -> None:
    away = operator.with_environment(POSTROAD_URL="http://postroad.example:1")
    refused = away.invoke("demo", stdin="n\n")
    assert refused.code == 1
    assert "is not on this machine" in refused.stdout


@pytest.mark.parametrize(
    ("url", "is_so"),
    [
        ("http://127.0.0.1:8080", True),
        ("http://127.8.0.1", True),
        ("http://[::1]:8080", True),
        ("http://localhost", True),
        ("http://10.0.0.1:8080", False),
        ("https://localhost.example", False),
        ("http://127.0.0.1.example", False),
    ],
)
def test_loopback_is_this_machine(url: str, is_so: bool) -> None:
    assert is_loopback(url) is is_so
