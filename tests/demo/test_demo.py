"""`postroad demo`: the plan, a run compared with the server, the end of a run, and errors."""

import asyncio
import json
import os
import shlex
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
from postroad.demo.clock import DemoClock
from postroad.demo.command_plan import plan_commands
from postroad.demo.command_scenarios import ALERT_CHANNEL, ALERT_RULE, NOISY, PRINT, SENDERS
from postroad.demo.plan import Decision, arrivals, decide, plan_messages, plan_sessions, seeded_random
from postroad.demo.scenarios import BANK, CHAT, RATE, SCENARIOS, SHOP, Outcome
from postroad.runtime.embedded_server import free_port

pytestmark = pytest.mark.xdist_group("demo")  # they share one run

EMAILS = SHOP.queues[1]
SEED = 1416  # its plan has every kind of event in three seconds, with time to spare on a busy machine

# The plan


def test_the_same_seed_gives_the_same_plan() -> None:
    once, again = (plan_messages(7, "t", EMAILS, 30, RATE) for _ in range(2))
    assert once == again
    assert plan_sessions(7, CHAT, 30, RATE) == plan_sessions(7, CHAT, 30, RATE)
    assert once != plan_messages(8, "t", EMAILS, 30, RATE)
    assert plan_sessions(7, CHAT, 30, RATE) != plan_sessions(8, CHAT, 30, RATE)


def test_the_plan_has_the_duration_and_about_the_rate() -> None:
    planned = [
        message
        for scenario in SCENARIOS
        for queue in scenario.queues
        for message in plan_messages(1, scenario.name, queue, 100, 40)
    ]
    assert all(0 <= message.at < 100 for message in planned)
    steady = [len(list(arrivals(seeded_random(1, str(n)), 5, 100))) for n in range(40)]
    assert 480 < sum(steady) / len(steady) < 520
    shares = sum(queue.share for scenario in SCENARIOS for queue in scenario.queues)
    assert shares == pytest.approx(1)
    bursts = Counter(message.at for message in plan_messages(1, "t", SHOP.queues[0], 100, RATE)).most_common(1)
    assert bursts[0][1] >= SHOP.queues[0].burst_size // 2


def test_the_plan_has_every_outcome_and_every_kind_of_session() -> None:
    outcomes = {
        message.outcome
        for scenario in SCENARIOS
        for queue in scenario.queues
        for message in plan_messages(1, scenario.name, queue, 60, RATE)
    }
    assert outcomes == set(Outcome)
    for scenario in SCENARIOS:
        planned = plan_sessions(1, scenario, 3, 1)
        assert len(planned) == 4
        assert {one.is_deleted for one in planned} == {True, False}
        assert any(scenario.pattern in one.streams for one in planned)
        assert any(one.unsubscribes_at is not None for one in planned)
        assert all(one.at <= one.ends_at <= 3 and len(set(one.streams)) == len(one.streams) for one in planned)


@pytest.mark.parametrize(
    ("outcome", "attempt", "decision"),
    [
        ("success", 1, Decision("ack")),
        ("something else", 1, Decision("ack")),
        ("fails-once", 1, Decision("retry", "why")),
        ("fails-once", 2, Decision("ack")),
        ("fails-always", 2, Decision("retry", "why")),
        ("fails-always", 3, Decision("retry", "why", is_last=True)),
        ("rejected-on-retry", 1, Decision("retry", "why")),
        ("rejected-on-retry", 2, Decision("dlq", "why")),
        ("rejected", 1, Decision("dlq", "why")),
    ],
)
def test_a_consumer_replies_according_to_the_outcome(outcome: str, attempt: int, decision: Decision) -> None:
    assert decide({"outcome": outcome, "reason": "why"}, attempt, 3, set()) == decision


def test_a_repaired_reason_is_no_longer_rejected() -> None:
    headers = {"outcome": "rejected", "reason": "why"}
    assert decide(headers, 1, 3, {"why"}) == Decision("ack")
    assert decide(headers, 1, 3, {"something else"}) == Decision("dlq", "why")


def test_the_plan_of_commands_is_that_of_the_seed() -> None:
    for sender in SENDERS:
        planned = plan_commands(7, sender, 30, RATE)
        assert planned == plan_commands(7, sender, 30, RATE) != plan_commands(8, sender, 30, RATE)
        assert planned == sorted(planned, key=lambda one: one.at) and all(0 <= one.at < 30 for one in planned)
        times = Counter(one.number for one in planned)
        assert set(times.values()) == ({2} if sender.is_repeated else {1})
    [till] = [sender for sender in SENDERS if sender.behind_seconds]
    behind = [one.behind_seconds for one in plan_commands(7, till, 30, RATE)]
    assert behind == sorted(behind) and behind[0] < 10 and behind[-1] > 60, "out of the window at the end"


async def test_calls_are_throttled() -> None:
    for rate, per_second in ((1, 100), (50, 250)):
        clock = DemoClock(10, rate, 1, "run")
        await asyncio.gather(*(clock.throttle() for _ in range(per_second // 5 + 1)))
        assert clock.now >= 0.2


# A run


@pytest.fixture(scope="module")
async def own(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Installation]:
    """A fresh installation, whose counters are those of the run alone."""
    installation = Installation(tmp_path_factory.mktemp("demo"))
    yield await installation.start().ready()
    installation.end()


@pytest.fixture(scope="module")
def finished_run(own: Installation, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Completed, dict[str, Any]]]:
    """Output and summary of a run of three seconds, shared by the tests."""
    home = tmp_path_factory.mktemp("finished_run")
    shell = Shell(home, {"POSTROAD_URL": own.url, "POSTROAD_KEY": own.credentials["admin_key"]})
    finished = shell.run_process("demo", "--seconds", "3", "--seed", str(SEED), "--json-summary", str(home / "summary.json"))
    assert finished.code == 0, finished
    yield finished, json.loads((home / "summary.json").read_text())


def of_tenant(own: Installation, tenant: str) -> Postroad:
    return Postroad(own.url, own.credentials["admin_key"], tenant=tenant)


def test_the_plan_is_carried_out(finished_run: tuple[Completed, dict[str, Any]]) -> None:
    summary = finished_run[1]
    assert (summary["seed"], summary["seconds"], summary["endedBy"]) == (SEED, 3, "time")
    for scenario in SCENARIOS:
        tenant = summary["tenants"][scenario.name]
        for queue in scenario.queues:
            assert tenant["queues"][queue.name]["published"] == len(plan_messages(SEED, scenario.name, queue, 3, RATE)), (
                queue.name
            )
        assert tenant["published"] == sum(queue["published"] for queue in tenant["queues"].values()) > 0
        assert tenant["appended"] == tenant["read"] > 0
        planned = plan_sessions(SEED, scenario, 3, RATE)
        assert tenant["sessions"] == len(planned)
        assert tenant["subscribed"] == sum(len(one.streams) for one in planned)
        assert tenant["touched"] == sum(len(one.touches) for one in planned)
        assert (tenant["deleted"], tenant["left"]) == (
            sum(one.is_deleted for one in planned),
            sum(not one.is_deleted for one in planned),
        )


async def test_the_summary_agrees_with_the_server(own: Installation, finished_run: tuple[Completed, dict[str, Any]]) -> None:
    for scenario in SCENARIOS:
        counted = finished_run[1]["tenants"][scenario.name]
        with of_tenant(own, scenario.name) as client:
            await eventually(lambda: client.jobs.status().behind == 0)
            jobs = [job for queue in scenario.queues for job in client.jobs.list(queue=queue.name)]
            assert len(jobs) == sum(counted["queues"][queue.name]["published"] for queue in scenario.queues)
            for queue in scenario.queues:
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
                groups = {
                    group.reason: group.count for group in client.queues.dead_letters.groups(queue.name, group_by="reason").groups
                }
                if not mine["redriven"]:
                    assert groups == mine["deadReasons"], queue.name


async def test_each_command_has_the_outcome_of_its_scenario(
    own: Installation, finished_run: tuple[Completed, dict[str, Any]]
) -> None:
    tenants = finished_run[1]["tenants"]
    services = {sender.service: tenants[sender.tenant]["services"][sender.service] for sender in SENDERS}
    for sender in SENDERS:
        assert services[sender.service]["sent"] == len(plan_commands(SEED, sender, 3, RATE)), sender.service
    reasons = {name: set(one["reasons"]) for name, one in services.items()}
    assert "fairness-violation" in reasons["campaigns"] and services["campaigns"]["delivered"] > 0
    assert reasons["till"] == {"timestamp-expired"} and services["till"]["delivered"] > 0
    assert reasons["guest"] == {"acl-deny"} and services["guest"]["delivered"] > 0
    assert reasons["moderator"] == reasons["checkout"] == set()
    assert services["checkout"]["duplicate"] == services["checkout"]["delivered"] > 0
    printed = tenants[BANK.name]["queues"][PRINT.queue.name]
    assert printed["done"] < printed["published"], "the printer stopped"
    with of_tenant(own, SHOP.name) as shop, of_tenant(own, CHAT.name) as chat, of_tenant(own, BANK.name) as bank:
        found = {(one.source, one.outcome, one.reason) for one in shop.commands.find(source=NOISY.service)}
        assert (f"{SHOP.name}/{NOISY.service}", "failed", "fairness-violation") in found
        last = max(shop.commands.find(source=NOISY.service), key=lambda one: one.at)
        assert last.outcome == "delivered", "readmitted after the ban"
        assert {one.secrets[0].version_id for one in chat.services.list() if one.name == "moderator"} != {"hmac-v1"}
        assert bank.telemetry.status().waiting > 0, "not read"
        await eventually(lambda: list(shop.alerts.list(rule=ALERT_RULE)))
        await eventually(lambda: shop.alerts.get_channel(ALERT_CHANNEL).attempts, 60)
        assert all(one.error for one in shop.alerts.get_channel(ALERT_CHANNEL).attempts), "the webhook is down"


def test_a_run_produces_every_kind_of_event(finished_run: tuple[Completed, dict[str, Any]]) -> None:
    tenants = finished_run[1]["tenants"]
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
    assert [name for name in names if not sum(tenant[name] for tenant in tenants.values())] == []
    bank = tenants[BANK.name]["queues"]
    assert bank["audit-export"]["delivered"] == 0 < bank["audit-export"]["published"]
    assert bank["statements"]["done"] < bank["statements"]["published"] * 0.8
    reason = SHOP.redrives[0].reason  # repaired, so that no redriven message died of it again
    rejected = [message for message in plan_messages(SEED, SHOP.name, EMAILS, 3, RATE) if message.reason == reason]
    assert 0 < tenants[SHOP.name]["queues"]["emails"]["deadReasons"][reason] <= len(rejected)
    first = sum(sum(queue["firstAttempt"].values()) for tenant in tenants.values() for queue in tenant["queues"].values())
    assert 0 < first <= sum(tenant["dead"] for tenant in tenants.values())


async def test_the_summary_is_printed_and_the_keys_are_deleted(
    own: Installation, finished_run: tuple[Completed, dict[str, Any]]
) -> None:
    finished, summary = finished_run
    assert all(name in finished.stdout for name in summary["tenants"])
    published = sum(tenant["published"] for tenant in summary["tenants"].values())
    line = next(line for line in finished.stdout.splitlines() if line.startswith("published"))
    assert line.split()[-1] == f"{published:,}"
    assert "postroad tenants delete demo-shop" in finished.stderr
    for name in summary["tenants"]:
        with of_tenant(own, name) as client:
            assert list(client.keys.list()) == []


def start_demo(own: Installation, home: Path, *options: str) -> subprocess.Popen[str]:
    """Start a run of five minutes."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
    env |= {"POSTROAD_URL": own.url, "POSTROAD_KEY": own.credentials["admin_key"], "XDG_CONFIG_HOME": str(home)}
    words = [sys.executable, "-m", "postroad", "demo", "--seconds", "300", *options]
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def unpolled(client: Postroad) -> int:
    """Messages in the queue without consumers, which grows while the demo runs."""
    stats = client.queues.get("audit-export").stats
    assert stats is not None
    return stats.ready


async def test_ctrl_c_finishes_current_calls_and_a_second_run_uses_the_same_tenants(
    own: Installation, finished_run: tuple[Completed, dict[str, Any]], tmp_path: Path
) -> None:
    with of_tenant(own, BANK.name) as client:
        before = unpolled(client)
        process = start_demo(own, tmp_path, "--json-summary", str(tmp_path / "s.json"))
        try:
            await eventually(lambda: unpolled(client) > before)
            process.send_signal(signal.SIGINT)
            stdout, stderr = await asyncio.to_thread(process.communicate, timeout=15)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, stderr
        assert "stopped" in stdout
        summary = json.loads((tmp_path / "s.json").read_text())
        assert (summary["endedBy"], set(summary["tenants"])) == ("signal", {scenario.name for scenario in SCENARIOS})
        assert unpolled(client) - before == summary["tenants"][BANK.name]["queues"]["audit-export"]["published"]
        assert list(client.keys.list()) == []


async def test_a_second_signal_ends_the_run_at_once(
    own: Installation, finished_run: tuple[Completed, dict[str, Any]], tmp_path: Path
) -> None:
    with of_tenant(own, BANK.name) as client:
        before = unpolled(client)
        process = start_demo(own, tmp_path)
        try:
            await eventually(lambda: unpolled(client) > before)
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            stdout, stderr = await asyncio.to_thread(process.communicate, timeout=15)
        finally:
            process.kill()
            process.wait()
        assert (process.returncode, stdout) == (130, ""), stderr
        assert "no summary" in stderr and "Traceback" not in stderr
        assert list(client.keys.list()) == []


def other_key(folder: Path) -> Path:
    path = folder / "other"
    path.write_text("pr_live_" + "x" * 54 + "\n")
    return path


def test_after_deleted_tenants_the_next_run_creates_numbered_ones(operator: Shell, tmp_path: Path) -> None:
    operator.run("demo", "--seconds", "1", "--rate", "5", "--delete")
    left = {one["id"] for one in operator.run("tenants", "list", "--json").json if one["state"] != "deleting"}
    assert not left & {scenario.name for scenario in SCENARIOS}
    operator.run("profiles", "add", "admin")
    by_profile = Shell(operator.home)
    printed = by_profile.run(
        "--profile", "admin", "demo", "--seconds", "1", "--rate", "5", "--json-summary", str(tmp_path / "s.json")
    )
    assert set(json.loads((tmp_path / "s.json").read_text())["tenants"]) == {f"{scenario.name}-2" for scenario in SCENARIOS}
    hints = [line for line in printed.stderr.splitlines() if line.startswith("  postroad ")]
    assert len(hints) == 1 + len(SCENARIOS)
    by_profile.run("profiles", "use", "admin")
    by_profile.run("profiles", "add", "other", "--key-file", str(other_key(tmp_path)), "--use")
    for hint in hints:  # they work when pasted, also if another profile is the default
        by_profile.run(*shlex.split(hint)[1:], stdin=hint.split()[-1] + "\n")


# Errors


def test_an_unreachable_server_is_reported(operator: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_DEADLINE_SECONDS", 0.2)
    finished = operator.with_environment(POSTROAD_URL=f"http://127.0.0.1:{free_port()}").invoke("demo")
    assert finished.code == 1
    assert "postroad up" in finished.stderr


def test_the_demo_needs_a_platform_key(shell: Shell) -> None:
    for caller in (shell, shell.with_environment(POSTROAD_KEY="pr_live_wrong")):
        finished = caller.invoke("demo")
        assert finished.code == 1, finished
        assert "the demo cannot use" in finished.stderr or "the platform's admin key" in finished.stderr


def test_a_missing_key_is_exit_code_2(anonymous: Shell) -> None:
    assert anonymous.invoke("demo").code == 2


def test_a_remote_server_needs_confirmation(operator: Shell) -> None:
    away = operator.with_environment(POSTROAD_URL="http://postroad.example:1")
    refused = away.invoke("demo", stdin="n\n")
    assert refused.code == 1
    assert "is not on this machine" in refused.stdout


@pytest.mark.parametrize(
    ("url", "is_loopback_url"),
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
def test_loopback_addresses(url: str, is_loopback_url: bool) -> None:
    assert is_loopback(url) is is_loopback_url
