"""Looking after queues, jobs and tasks from the command line."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import typer

from postroad.cli import progress
from postroad.client import Task
from tests.cli.shell import Shell
from tests.waiting import eventually


@pytest.fixture
def queue(shell: Shell, name: str) -> str:
    shell.run("queues", "put", name, "--retry-delays-ms", "0")
    return name


def pulled(shell: Shell, queue: str) -> str:
    """The receipt of the next message."""
    [message] = shell.run("queues", "pull", queue, "--wait-ms", "5000", "--visibility-timeout-ms", "60000", "--json").json
    return str(message["receiptId"])


def bury(shell: Shell, queue: str, *payloads: str, reason: str = "broken") -> list[str]:
    ids = []
    for payload in payloads:
        ids.append(shell.run("queues", "publish", queue, payload, "--json").json["messageId"])
        shell.run("queues", "nack", queue, pulled(shell, queue), "--action", "dlq", "--reason", reason)
    return ids


# Settings and stats


def test_a_queue_is_put_with_all_its_settings(shell: Shell, name: str, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    options = ("--schema", str(schema), "--retry-delays-ms", "1000,5000", "--max-attempts", "3", "--archive")
    settings = shell.run("queues", "put", name, *options, "--expected-drain-seconds", "60", "--json").json["settings"]
    assert (settings["schema"], settings["retryDelaysMs"], settings["maxAttempts"]) == ({"type": "object"}, [1000, 5000], 3)
    assert (settings["archive"], settings["expectedDrainSeconds"]) == (True, 60)
    shown = shell.run("queues", "show", name).output
    assert "1000 5000" in shown and '{"type":"object"}' in shown
    refused = shell.try_to("queues", "publish", name, "1")
    assert (refused.code, "does not fit the queue's schema" in refused.complaints) == (2, True)
    schema.write_text("{")
    assert "the schema is not JSON" in shell.try_to("queues", "put", name, "--schema", str(schema)).complaints


def test_the_list_shows_what_is_in_each(shell: Shell, queue: str) -> None:
    shell.run("queues", "publish", queue, "1")
    shell.run("queues", "publish", queue, "2", "--delay-ms", "60000")
    [line] = [line for line in shell.run("queues", "list", "--stats").output.splitlines() if queue in line]
    assert line.split()[:5] == [queue, "1", "0", "1", "0"]
    [found] = [one for one in shell.run("queues", "list", "--stats", "--json").json if one["name"] == queue]
    assert found["stats"]["ready"] == 1


def test_a_paused_queue_is_shown_as_such(shell: Shell, queue: str) -> None:
    assert f"paused {queue}" in shell.run("queues", "pause", queue).output
    [line] = [line for line in shell.run("queues", "list").output.splitlines() if queue in line]
    assert "paused" in line
    assert shell.run("queues", "resume", queue, "--json").json["paused"] is False


def test_a_purge_asks_with_the_count(shell: Shell, queue: str) -> None:
    shell.run("queues", "publish", queue, "1")
    assert "would drop 1 messages" in shell.run("queues", "purge", queue, "--dry-run").output
    refused = shell.try_to("queues", "purge", queue, given="n\n")
    assert (refused.code, f"Drop 1 messages of {queue}?" in refused.output) == (1, True)
    assert shell.run("queues", "purge", queue, "--yes", "--json").json == {"count": 1, "dryRun": False}
    assert "dropped 0 messages" in shell.run("queues", "purge", queue, "--yes").output


# Messages


def test_what_is_given_back_comes_again(shell: Shell, queue: str) -> None:
    shell.run("queues", "publish", queue, "1")
    receipt = pulled(shell, queue)
    extended = shell.run("queues", "extend", queue, receipt, "--visibility-timeout-ms", "50000")
    assert "extended 1 of 1" in extended.complaints
    newer = extended.output.strip()
    assert "gave back 1 of 1" in shell.run("queues", "nack", queue, newer, "--reason", "busy").output
    [again] = shell.run("queues", "pull", queue, "--wait-ms", "5000", "--json").json
    assert again["attempt"] == 2
    answer = shell.run("queues", "nack", queue, again["receiptId"], "--action", "requeue", "--json").json
    assert [one["ok"] for one in answer] == [True]


def test_messages_are_looked_at_and_searched(shell: Shell, queue: str) -> None:
    for number in range(3):
        shell.run("queues", "publish", queue, f'{{"n": {number}, "long": "{"x" * 40}"}}', "--header", f"kind={number}")
    seen = shell.run("queues", "peek", queue, "--limit", "2")
    assert '{"n":0' in seen.output
    assert "looked at 2, 2 fit; to go on: --cursor" in seen.complaints
    cursor = seen.complaints.split()[-1]
    rest = shell.run("queues", "peek", queue, "--cursor", cursor)
    assert '{"n":2' in rest.output and '{"n":0' not in rest.output
    assert "looked at 1, 1 fit\n" in rest.complaints
    found = shell.run("queues", "peek", queue, "--header", "kind=1", "--body-max", "8", "--json").json
    assert (found["scanned"], found["matched"], found["messages"][0]["payloadStart"]) == (3, 1, '{"n": 1,')
    assert "(" in shell.run("queues", "peek", queue, "--body-max", "8", "--since", "1h").output
    assert shell.run("queues", "peek", queue, "--state", "delayed", "--json").json["messages"] == []


# Dead letters


def test_dead_letters_are_listed_grouped_shown_and_dropped(shell: Shell, queue: str) -> None:
    first, second = bury(shell, queue, '{"n": 1}', '{"n": 2}')
    bury(shell, queue, '{"n": 3}', reason="too old")
    listed = shell.run("queues", "dlq", "list", queue, "--reason", "broken")
    assert first in listed.output and "too old" not in listed.output
    assert "3 in all; looked at 3, 2 fit" in listed.complaints
    assert shell.run("queues", "dlq", "list", queue, "--json").json["total"] == 3
    groups = shell.run("queues", "dlq", "groups", queue)
    assert [line.split()[0] for line in groups.output.splitlines()[1:]] == ["2", "1"]
    assert shell.run("queues", "dlq", "groups", queue, "--json").json["groups"][0]["reason"] == "broken"
    assert '{"n":1}' in shell.run("queues", "dlq", "show", queue, first).output

    assert shell.try_to("queues", "dlq", "delete", queue, first, given="n\n").code == 1
    assert f"dropped {first}" in shell.run("queues", "dlq", "delete", queue, first, "--yes").output
    assert "would drop 1 dead letters" in shell.run("queues", "dlq", "purge", queue, "--reason", "broken", "--dry-run").output
    assert "dropped 1 dead letters" in shell.run("queues", "dlq", "purge", queue, "--field", "n=2", "--yes").output
    asked = shell.try_to("queues", "dlq", "purge", queue, given="y\n")
    assert f"Drop 1 dead letters of {queue}?" in asked.output and "dropped 1" in asked.output
    assert shell.try_to("queues", "dlq", "show", queue, second).code == 4


def test_dead_letters_are_put_back(shell: Shell, queue: str) -> None:
    bury(shell, queue, "1", "2")
    assert "would put back 2" in shell.run("queues", "dlq", "redrive", queue, "--dry-run").output
    done = shell.run("queues", "dlq", "redrive", queue, "--rate", "1000", "--wait", "--json").json
    assert (done["state"], done["progress"]["moved"]) == ("done", 2)
    assert done["id"] in shell.run("tasks", "list", "--state", "done").output
    shown = shell.run("tasks", "show", done["id"]).output
    assert "2 of 2 (100 %)" in shown and queue in shown


async def test_a_task_is_cancelled(shell: Shell, queue: str) -> None:
    bury(shell, queue, "1", "2", "3")
    begun = shell.run("queues", "dlq", "redrive", queue, "--rate", "1")
    task = begun.output.split()[-1]
    assert f"postroad tasks show {task}" in begun.complaints
    assert shell.try_to("queues", "dlq", "redrive", queue).code == 1
    assert shell.run("tasks", "cancel", task, "--json").json["isCancelWanted"] is True
    await eventually(lambda: shell.run("tasks", "show", task, "--json").json["state"] == "cancelled")


async def test_who_stops_watching_is_told_how_to_cancel(shell: Shell, queue: str) -> None:
    bury(shell, queue, "1", "2", "3")
    process = start(shell, "queues", "dlq", "redrive", queue, "--rate", "1", "--wait")

    assert process.stderr is not None
    word, task = process.stderr.readline().split()
    assert word == "task"
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=15)
    assert process.returncode == 130
    assert f"the task goes on. To cancel it: postroad tasks cancel {task}" in complaints
    shell.run("tasks", "cancel", task)


def start(shell: Shell, *words: str) -> "subprocess.Popen[str]":
    env = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
    return subprocess.Popen(
        [sys.executable, "-m", "postroad", *words],
        env={**env, "XDG_CONFIG_HOME": str(shell.home), **shell.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_takes_interrupts,
    )


def _takes_interrupts() -> None:
    """Whoever runs the tests in the background has them, and what they start, ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_terminal_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress.watched("goes on") as line:
        line.show("running: 10 of 20")
        line.show("done")
    said = capsys.readouterr().err
    assert said.startswith("\rrunning: 10 of 20\rdone             ")
    assert said.endswith("\r")
    with pytest.raises(typer.Exit) as left, progress.watched("it goes on"):
        raise KeyboardInterrupt
    assert left.value.exit_code == 130
    assert "it goes on" in capsys.readouterr().err
    assert progress.share(5, 20) == "5 of 20 (25 %)"
    assert progress.share(5, 0) == "5"


def test_a_redrive_that_fails_is_exit_code_1(shell: Shell, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_client: object, task: Task) -> Task:
        return msgspec.structs.replace(task, state="failed", error="no room")

    monkeypatch.setattr("postroad.cli.dead_letters.watch_task", fails)
    bury(shell, queue, "1")
    finished = shell.try_to("queues", "dlq", "redrive", queue, "--wait")
    assert (finished.code, "no room" in finished.output) == (1, True)


# Jobs


def test_a_job_is_followed(shell: Shell, queue: str) -> None:
    published = shell.run("queues", "publish", queue, "1", "--correlation-id", queue, "--json").json
    job = published["jobId"]
    assert shell.run("jobs", "show", job, "--json").json["status"] == "queued"
    shell.run("queues", "nack", queue, pulled(shell, queue), "--reason", "busy just now")
    shell.run("queues", "ack", queue, pulled(shell, queue))
    assert "done" in shell.run("jobs", "show", job).output
    assert job in shell.run("jobs", "list", "--queue", queue, "--status", "done", "--since", "1h").output
    [found] = shell.run("jobs", "list", "--correlation-id", queue, "--json").json
    assert (found["jobId"], found["attempts"]) == (job, 2)
    events = shell.run("jobs", "events", job).output
    assert "job.queued" in events and 'reason="busy just now"' in events
    assert [one["event"] for one in shell.run("jobs", "events", job, "--limit", "2", "--json").json] == [
        "job.queued",
        "job.leased",
    ]


def test_the_platform_makes_the_jobs_anew(operator: Shell) -> None:
    assert "behind" in operator.run("jobs", "status").output
    done = operator.run("jobs", "rebuild", "--json").json
    assert done["rebuilding"] is False
    assert json.loads(operator.run("jobs", "status", "--json").output)["position"] >= 0
