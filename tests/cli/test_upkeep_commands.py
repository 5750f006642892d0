"""Operating queues, jobs and tasks on the command line."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
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


def dead_letter(shell: Shell, queue: str, *payloads: str, reason: str = "broken") -> list[str]:
    ids = []
    for payload in payloads:
        ids.append(shell.run("queues", "publish", queue, payload, "--json").json["messageId"])
        shell.run("queues", "nack", queue, pulled(shell, queue), "--action", "dlq", "--reason", reason)
    return ids


# Settings and stats


def test_a_queue_is_put_with_all_its_settings(shell: Shell, name: str, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    options = ("--schema", str(schema), "--retry-delays-ms", "1000,5000", "--max-attempts", "3")
    settings = shell.run("queues", "put", name, *options, "--expected-drain-seconds", "60", "--archive", "--json").json[
        "settings"
    ]
    assert (settings["schema"], settings["retryDelaysMs"], settings["maxAttempts"]) == ({"type": "object"}, [1000, 5000], 3)
    assert (settings["expectedDrainSeconds"], settings["archive"]) == (60, True)
    shown = shell.run("queues", "show", name).stdout
    assert "1000 5000" in shown and '{"type":"object"}' in shown
    refused = shell.invoke("queues", "publish", name, "1")
    assert (refused.code, "does not match" in refused.stderr) == (2, True)
    schema.write_text("{")
    assert "schema is not JSON" in shell.invoke("queues", "put", name, "--schema", str(schema)).stderr


def test_settings_of_a_queue_can_be_changed_singly(shell: Shell, queue: str) -> None:
    changed = shell.run("queues", "update", queue, "max_attempts=3", "retryDelaysMs=[1,2]", "--json").json["settings"]
    assert (changed["maxAttempts"], changed["retryDelaysMs"]) == (3, [1, 2])
    assert "3" in shell.run("queues", "update", queue, "max-messages=9").stdout
    reset = shell.run("queues", "update", queue, "max_attempts=none", "--json").json["settings"]
    assert (reset["maxAttempts"], reset["maxMessages"]) == (10, 9)
    refused = shell.invoke("queues", "update", queue, "size=3")
    assert (refused.code, "visibility_timeout_ms" in refused.stderr) == (2, True)


def test_the_list_has_filters_and_an_order(shell: Shell, queue: str) -> None:
    assert [one["name"] for one in shell.run("queues", "list", "--prefix", queue, "--sort", "-ready", "--json").json] == [queue]
    assert shell.run("queues", "list", "--search", queue, "--paused", "--json").json == []
    assert shell.invoke("queues", "list", "--sort", "size").code == 2


def test_the_list_shows_the_stats_of_each_queue(shell: Shell, queue: str) -> None:
    shell.run("queues", "publish", queue, "1")
    shell.run("queues", "publish", queue, "2", "--delay-ms", "60000")
    [line] = [line for line in shell.run("queues", "list", "--stats").stdout.splitlines() if queue in line]
    assert line.split()[:7] == [queue, "1", "0", "0", "0", "1", "0"], "ready, overdue, leased, retrying, delayed, dead"
    [found] = [one for one in shell.run("queues", "list", "--stats", "--json").json if one["name"] == queue]
    assert found["stats"]["ready"] == 1


def test_a_paused_queue_is_marked(shell: Shell, queue: str) -> None:
    assert f"paused {queue}" in shell.run("queues", "pause", queue).stdout
    [line] = [line for line in shell.run("queues", "list").stdout.splitlines() if queue in line]
    assert "paused" in line
    assert shell.run("queues", "resume", queue, "--json").json["paused"] is False


def test_a_purge_asks_with_the_count(shell: Shell, queue: str) -> None:
    shell.run("queues", "publish", queue, "1")
    assert "would delete 1 messages" in shell.run("queues", "purge", queue, "--dry-run").stdout
    refused = shell.invoke("queues", "purge", queue, stdin="n\n")
    assert (refused.code, f"Delete 1 messages of {queue}?" in refused.stdout) == (1, True)
    assert shell.run("queues", "purge", queue, "--yes", "--json").json == {"count": 1, "dryRun": False}
    assert "deleted 0 messages" in shell.run("queues", "purge", queue, "--yes").stdout


def test_a_purge_removes_what_matches(shell: Shell, queue: str) -> None:
    for text, *more in (["one"], ["two", "--header", "shop=north"], ["two", "--delay-ms", "60000"]):
        shell.run("queues", "publish", queue, json.dumps(text), *more)
    assert "would delete 2 messages" in shell.run("queues", "purge", queue, "--search", "two", "--dry-run").stdout
    assert "would delete 0 messages" in shell.run("queues", "purge", queue, "--to", "1h", "--dry-run").stdout
    assert "deleted 1 messages" in shell.run("queues", "purge", queue, "--search", "two", "--state", "delayed", "--yes").stdout
    assert "deleted 1 messages" in shell.run("queues", "purge", queue, "--header", "shop=north", "--from", "1h", "--yes").stdout
    assert [one["payload"] for one in shell.run("queues", "peek", queue, "--json").json["messages"]] == ["one"]


# Messages


def test_a_nacked_message_is_delivered_again(shell: Shell, queue: str) -> None:
    shell.run("queues", "publish", queue, "1")
    receipt = pulled(shell, queue)
    extended = shell.run("queues", "extend", queue, receipt, "--visibility-timeout-ms", "50000")
    assert "extended 1 of 1" in extended.stderr
    newer = extended.stdout.strip()
    assert "nacked 1 of 1" in shell.run("queues", "nack", queue, newer, "--reason", "busy").stdout
    [again] = shell.run("queues", "pull", queue, "--wait-ms", "5000", "--json").json
    assert again["attempt"] == 2
    answer = shell.run("queues", "nack", queue, again["receiptId"], "--action", "requeue", "--json").json
    assert [one["ok"] for one in answer] == [True]


def test_messages_are_peeked_and_searched(shell: Shell, queue: str) -> None:
    for number in range(3):
        shell.run("queues", "publish", queue, f'{{"n": {number}, "long": "{"x" * 40}"}}', "--header", f"kind={number}")
    seen = shell.run("queues", "peek", queue, "--limit", "2")
    assert '{"n":0' in seen.stdout
    assert "scanned 2, matched 2; next page: --cursor" in seen.stderr
    cursor = seen.stderr.split()[-1]
    rest = shell.run("queues", "peek", queue, "--cursor", cursor)
    assert '{"n":2' in rest.stdout and '{"n":0' not in rest.stdout
    assert "scanned 1, matched 1\n" in rest.stderr
    found = shell.run("queues", "peek", queue, "--header", "kind=1", "--body-max", "8", "--json").json
    assert (found["scanned"], found["matched"], found["messages"][0]["payloadStart"]) == (3, 1, '{"n": 1,')
    assert "(" in shell.run("queues", "peek", queue, "--body-max", "8", "--from", "1h").stdout
    assert shell.run("queues", "peek", queue, "--state", "delayed", "--json").json["messages"] == []


# Dead letters


def test_dead_letters_are_listed_grouped_shown_and_deleted(shell: Shell, queue: str) -> None:
    first, second = dead_letter(shell, queue, '{"n": 1}', '{"n": 2}')
    dead_letter(shell, queue, '{"n": 3}', reason="too old")
    listed = shell.run("queues", "dlq", "list", queue, "--reason", "broken")
    assert first in listed.stdout and "too old" not in listed.stdout
    assert "3 in total; scanned 3, matched 2" in listed.stderr
    assert shell.run("queues", "dlq", "list", queue, "--json").json["total"] == 3
    groups = shell.run("queues", "dlq", "groups", queue)
    assert [line.split()[0] for line in groups.stdout.splitlines()[1:]] == ["2", "1"]
    assert shell.run("queues", "dlq", "groups", queue, "--json").json["groups"][0]["reason"] == "broken"
    assert '{"n":1}' in shell.run("queues", "dlq", "show", queue, first).stdout

    assert shell.invoke("queues", "dlq", "delete", queue, first, stdin="n\n").code == 1
    assert f"deleted {first}" in shell.run("queues", "dlq", "delete", queue, first, "--yes").stdout
    assert "would delete 1 dead letters" in shell.run("queues", "dlq", "purge", queue, "--reason", "broken", "--dry-run").stdout
    assert "deleted 1 dead letters" in shell.run("queues", "dlq", "purge", queue, "--field", "n=2", "--yes").stdout
    asked = shell.invoke("queues", "dlq", "purge", queue, stdin="y\n")
    assert f"Delete 1 dead letters of {queue}?" in asked.stdout and "deleted 1" in asked.stdout
    assert shell.invoke("queues", "dlq", "show", queue, second).code == 4


def test_dead_letters_are_redriven(shell: Shell, queue: str) -> None:
    first, second = dead_letter(shell, queue, "1", "2")
    assert "would redrive 2" in shell.run("queues", "dlq", "redrive", queue, "--dry-run").stdout
    selected = shell.run("queues", "dlq", "redrive", queue, "--message-id", second, "--message-id", first, "--dry-run").stdout
    assert "would redrive 2" in selected
    assert "would redrive 1" in shell.run("queues", "dlq", "redrive", queue, "--message-id", second, "--dry-run").stdout
    earlier = shell.run("queues", "dlq", "redrive", queue, "--before", "1h", "--dry-run").stdout
    assert "would redrive 0" in earlier, "the end of the range is not the target queue"
    done = shell.run("queues", "dlq", "redrive", queue, "--rate", "1000", "--wait", "--json").json
    assert (done["state"], done["progress"]["moved"]) == ("done", 2)
    assert done["id"] in shell.run("tasks", "list", "--state", "done").stdout
    shown = shell.run("tasks", "show", done["id"]).stdout
    assert re.search(r"^moved +2$", shown, re.MULTILINE) and queue in shown


async def test_a_task_is_cancelled(shell: Shell, queue: str) -> None:
    dead_letter(shell, queue, "1", "2", "3")
    begun = shell.run("queues", "dlq", "redrive", queue, "--rate", "1")
    task = begun.stdout.split()[-1]
    assert f"postroad tasks show {task}" in begun.stderr
    assert shell.invoke("queues", "dlq", "redrive", queue).code == 1
    assert shell.run("tasks", "cancel", task, "--json").json["isCancelWanted"] is True
    await eventually(lambda: shell.run("tasks", "show", task, "--json").json["state"] == "cancelled")


async def test_a_task_is_paused_and_resumed(shell: Shell, queue: str) -> None:
    dead_letter(shell, queue, "1", "2", "3", "4")
    task = shell.run("queues", "dlq", "redrive", queue, "--rate", "1").stdout.split()[-1]
    assert shell.run("tasks", "pause", task, "--json").json["isPauseWanted"] is True
    await eventually(lambda: shell.run("tasks", "show", task, "--json").json["state"] == "paused")
    assert task in shell.run("tasks", "list", "--state", "paused").stdout
    assert shell.run("tasks", "show", task, "--json").json["progress"]["moved"] < 4
    assert shell.run("tasks", "resume", task, "--json").json["isPauseWanted"] is False
    await eventually(lambda: shell.run("tasks", "show", task, "--json").json["state"] == "done", 30)
    assert shell.run("tasks", "show", task, "--json").json["progress"]["moved"] == 4
    ended = shell.invoke("tasks", "pause", task)
    assert (ended.code, "Precondition failed" in ended.stderr) == (1, True)


async def test_ctrl_c_during_a_redrive_prints_how_to_cancel_the_task(shell: Shell, queue: str) -> None:
    dead_letter(shell, queue, "1", "2", "3")
    process = start(shell, "queues", "dlq", "redrive", queue, "--rate", "1", "--wait")

    assert process.stderr is not None
    word, task = process.stderr.readline().split()
    assert word == "task"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=15)
    assert process.returncode == 130
    assert f"the task continues. To cancel it: postroad tasks cancel {task}" in stderr
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
    """Reset SIGINT: child processes of a test run in the background inherit that it is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_tail_shows_the_events_of_a_queue_and_a_key(shell: Shell, queue: str) -> None:
    other, key = f"{queue}-other", shell.run("whoami", "--json").json["keyId"]
    shell.run("queues", "put", other)
    options = ("--events", "job.queued", "--of-queue", queue, "--key", key, "--max-per-second", "1000")
    process, lines = start(shell, "telemetry", "tail", *options), list[str]()
    assert process.stdout is not None
    reader = threading.Thread(target=lines.extend, args=(process.stdout,))
    reader.start()
    try:
        for _ in range(300):  # until the tail has begun, and the other queue had its turn
            for name in (other, queue):
                shell.run("queues", "publish", name, "1")
            if len(lines) > 2:
                break
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=15)
        reader.join()
    assert len(lines) > 2 and {json.loads(line)["queue"] for line in lines} == {queue}
    assert shell.invoke("telemetry", "tail", "--queue", "--of-queue", queue).code == 2


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress.watched("goes on") as line:
        line.show("running: 10 of 20")
        line.show("done")
    printed = capsys.readouterr().err
    assert printed.startswith("\rrunning: 10 of 20\rdone             ")
    assert printed.endswith("\r")
    with pytest.raises(typer.Exit) as left, progress.watched("it goes on"):
        raise KeyboardInterrupt
    assert left.value.exit_code == 130
    assert "it goes on" in capsys.readouterr().err
    assert progress.share(5, 20) == "5 of 20 (25 %)"
    assert progress.share(5, 0) == "5"


def test_a_failed_redrive_is_exit_code_1(shell: Shell, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_client: object, task: Task) -> Task:
        return msgspec.structs.replace(task, state="failed", error="storage limit reached")

    monkeypatch.setattr("postroad.cli.queues_dlq.watch_task", fail)
    dead_letter(shell, queue, "1")
    finished = shell.invoke("queues", "dlq", "redrive", queue, "--wait")
    assert (finished.code, "storage limit reached" in finished.stdout) == (1, True)


# Jobs


def test_a_job_is_shown_with_its_events(shell: Shell, queue: str) -> None:
    published = shell.run("queues", "publish", queue, "1", "--correlation-id", queue, "--json").json
    job = published["jobId"]
    assert shell.run("jobs", "show", job, "--json").json["status"] == "queued"
    shell.run("queues", "nack", queue, pulled(shell, queue), "--reason", "busy just now")
    shell.run("queues", "ack", queue, pulled(shell, queue))
    assert "done" in shell.run("jobs", "show", job).stdout
    assert job in shell.run("jobs", "list", "--queue", queue, "--status", "done", "--from", "1h").stdout
    [found] = shell.run("jobs", "list", "--correlation-id", queue, "--json").json
    assert (found["jobId"], found["attempts"]) == (job, 2)
    events = shell.run("jobs", "events", job).stdout
    assert "job.queued" in events and "busy just now" in events
    assert [one["event"] for one in shell.run("jobs", "events", job, "--limit", "2", "--json").json] == [
        "job.queued",
        "job.leased",
    ]


def test_a_job_is_cancelled_and_retried(shell: Shell, queue: str) -> None:
    job = shell.run("queues", "publish", queue, "1", "--json").json["jobId"]
    assert "cancelled" in shell.run("jobs", "cancel", job, "--reason", "not needed", "--yes").stdout
    shown = shell.run("jobs", "show", job, "--json").json
    assert (shown["status"], shown["lastError"]) == ("cancelled", "not needed")
    assert shell.run("jobs", "retry", job, "--json").json["status"] == "queued"
    shell.run("queues", "ack", queue, pulled(shell, queue))
    assert shell.run("jobs", "show", job, "--json").json["status"] == "done"
    again = shell.invoke("jobs", "retry", job)
    assert (again.code, "Payload gone" in again.stderr) == (4, True)


def test_a_delayed_job_is_run_at_once(shell: Shell, queue: str) -> None:
    job = shell.run("queues", "publish", queue, "1", "--delay-ms", "3600000", "--json").json["jobId"]
    assert shell.run("jobs", "show", job, "--json").json["status"] == "delayed"
    assert shell.run("jobs", "run", job, "--json").json["jobId"] == job
    shell.run("queues", "ack", queue, pulled(shell, queue))
    assert shell.run("jobs", "show", job, "--json").json["status"] == "done"


def test_the_jobs_view_is_rebuilt(operator: Shell) -> None:
    assert "behind" in operator.run("jobs", "status").stdout
    done = operator.run("jobs", "rebuild", "--json").json
    assert done["rebuilding"] is False
    assert json.loads(operator.run("jobs", "status", "--json").stdout)["position"] >= 0


async def test_messages_are_moved_to_another_queue(shell: Shell, queue: str) -> None:
    shell.run("queues", "put", f"{queue}-2")
    shell.run("queues", "publish", queue, "1")
    task = shell.run("queues", "move", queue, "--to", f"{queue}-2", "--json").json
    assert (task["kind"], task["target"]) == ("move", queue)
    await eventually(lambda: shell.run("tasks", "show", task["id"], "--json").json["progress"]["moved"] == 1)


def test_messages_of_all_queues_are_searched_shown_and_removed(shell: Shell, name: str) -> None:
    shell.run("queues", "put", name)
    shell.run("queues", "publish", name, '{"order": 10003}')
    [found] = shell.run("queues", "search", "--search", "10003", "--queue", name, "--json").json
    assert found["queue"] == name and name in shell.run("queues", "search", "--queue", name).stdout
    assert "10003" in shell.run("queues", "message", name, found["messageId"]).stdout
    shell.run("queues", "remove", name, found["messageId"], "--yes")
    assert shell.run("queues", "search", "--queue", name, "--json").json == []
