"""`postroad worker`: the input of a command, and the outcome of its message."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shell import Completed, Shell
from tests.cli.test_upkeep_commands import start
from tests.installation import is_running
from tests.waiting import eventually


@pytest.fixture
def queue(shell: Shell, name: str) -> str:
    shell.run("queues", "put", name, "--retry-delays-ms", "0", "--max-attempts", "2")
    return name


def work(shell: Shell, queue: str, command: str, *options: str) -> Completed:
    """Run the worker until the queue is empty."""
    return shell.run("worker", queue, "--exec", command, "--once", *options)


def letters(shell: Shell, queue: str) -> list[tuple[str, str | None]]:
    found = shell.run("queues", "dlq", "list", queue, "--json").json["messages"]
    return [(one["reason"], one["lastError"]) for one in found]


def test_a_command_gets_the_payload_unchanged_and_the_message_in_its_environment(
    shell: Shell, queue: str, tmp_path: Path
) -> None:
    payload = '{"price": 1.10,  "big": 123456789012345678901234567890}'
    options = ("--header", "kind=new", "--correlation-id", "c-1", "--json")
    published = shell.run("queues", "publish", queue, payload, *options).json
    seen = tmp_path / "seen"
    done = shell.with_environment(POSTROAD_SECRET_SAUCE="s").run_process(
        "worker", queue, "--exec", f"cat > {seen}; env > {seen}.env", "--once", "--verbose"
    )
    assert done.code == 0
    assert seen.read_text() == payload
    env = dict(line.split("=", 1) for line in Path(f"{seen}.env").read_text().splitlines() if line.startswith("POSTROAD_"))
    assert env == {
        "POSTROAD_MESSAGE_ID": published["messageId"],
        "POSTROAD_JOB_ID": published["jobId"],
        "POSTROAD_ATTEMPT": "1",
        "POSTROAD_QUEUE": queue,
        "POSTROAD_CORRELATION_ID": "c-1",
        "POSTROAD_HEADERS": '{"kind":"new"}',
    }
    assert f"done {published['messageId']} (attempt 1)" in done.stderr
    assert "1 done" in done.stderr


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("echo first >&2; echo 'no stock  ' >&2; echo >&2; exit 75", "no stock"),
        ("printf 'no end of line' >&2; exit 1", "no end of line"),
        ("exit 3", "exit code 3"),
        ("kill -9 $$", "killed by SIGKILL"),
        ("sh -c 'kill -9 $$'; exit $?", "illed"),
        ("no-such-command-at-all", "not found"),
    ],
)
def test_a_failed_command_is_retried(shell: Shell, queue: str, command: str, reason: str) -> None:
    shell.run("queues", "publish", queue, "1")
    finished = work(shell, queue, command)
    [(why, last_error)] = letters(shell, queue)
    assert last_error is not None and reason in last_error
    assert why == last_error
    assert finished.stderr.count("retried") >= 2


def test_exit_code_100_goes_to_the_dead_letters_at_once(shell: Shell, queue: str) -> None:
    shell.run("queues", "publish", queue, "1")
    finished = work(shell, queue, "echo cannot be parsed >&2; exit 100")
    assert letters(shell, queue) == [("cannot be parsed", "cannot be parsed")]
    assert "dead" in finished.stderr


def test_a_command_need_not_read_its_input(shell: Shell, queue: str) -> None:
    shell.run("queues", "publish", queue, "-", stdin=json.dumps("x" * 300_000))
    assert "1 done" in work(shell, queue, "true").stderr


def test_background_processes_of_a_command_are_not_waited_for(shell: Shell, queue: str, tmp_path: Path) -> None:
    shell.run("queues", "publish", queue, "1")
    pid = tmp_path / "pid"
    try:
        assert "1 done" in work(shell, queue, f"sleep 60 & echo $! > {pid}").stderr
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_an_empty_queue_ends_the_worker(shell: Shell, queue: str) -> None:
    assert "no messages" in work(shell, queue, "true").stderr


def test_commands_run_concurrently(shell: Shell, queue: str, tmp_path: Path) -> None:
    for number in range(3):
        shell.run("queues", "publish", queue, str(number))
    gather = f"touch {tmp_path}/$POSTROAD_MESSAGE_ID; while [ $(ls {tmp_path} | grep -c -) -lt 3 ]; do sleep 0.02; done"
    assert "3 done" in work(shell, queue, gather, "--concurrency", "3").stderr


async def test_a_command_may_take_longer_than_the_lease(shell: Shell, queue: str, tmp_path: Path) -> None:
    shell.run("queues", "publish", queue, "1")
    begun, go = tmp_path / "begun", tmp_path / "go"
    command = f"echo x >> {begun}; while [ ! -e {go} ]; do sleep 0.02; done"
    process = start(shell, "worker", queue, "--exec", command, "--visibility-timeout-ms", "500", "--concurrency", "2", "--once")
    try:
        await eventually(begun.exists)
        job = shell.run("jobs", "list", "--queue", queue, "--json").json[0]["jobId"]

        def extensions() -> int:
            events = shell.run("jobs", "events", job, "--json").json
            return [event["event"] for event in events].count("job.extended")

        await eventually(lambda: extensions() >= 7)  # more than twice the lease
        go.touch()
        _, stderr = process.communicate(timeout=15)
    finally:
        process.kill()
        process.wait()
    assert "1 done" in stderr
    assert begun.read_text() == "x\n"


@pytest.mark.parametrize("is_patient", [True, False])
async def test_a_terminated_worker_drains(shell: Shell, queue: str, tmp_path: Path, is_patient: bool) -> None:
    shell.run("queues", "publish", queue, "1")
    begun, go = tmp_path / "begun", tmp_path / "go"
    command = f"echo $$ > {begun}; while [ ! -e {go} ]; do sleep 0.02; done; echo finished"
    process = start(shell, "worker", queue, "--exec", command, "--drain-seconds", "20" if is_patient else "0.1")
    try:
        await eventually(lambda: begun.exists() and begun.read_text())
        process.send_signal(signal.SIGTERM)
        if is_patient:
            go.touch()
        output, stderr = process.communicate(timeout=15)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert output == ("finished\n" if is_patient else "")
    assert ("1 done" if is_patient else "1 requeued") in stderr
    stats = shell.run("queues", "show", queue, "--json").json["stats"]
    assert stats["ready"] + stats["leased"] == (0 if is_patient else 1)
    if not is_patient:
        assert not is_running(int(begun.read_text()))
        [again] = shell.run("queues", "pull", queue, "--wait-ms", "3000", "--json").json
        assert again["attempt"] == 2


async def test_ctrl_c_does_not_reach_the_commands(shell: Shell, queue: str, tmp_path: Path) -> None:
    shell.run("queues", "publish", queue, "1")
    begun, go = tmp_path / "begun", tmp_path / "go"
    command = f"touch {begun}; while [ ! -e {go} ]; do sleep 0.02; done"
    env = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-m", "postroad", "worker", queue, "--exec", command],
        env={**env, "XDG_CONFIG_HOME": str(shell.home), **shell.environment},
        stderr=subprocess.PIPE,
        start_new_session=True,  # a group, as a terminal makes one of each command line
        text=True,
    )
    try:
        await eventually(begun.exists)
        os.killpg(process.pid, signal.SIGINT)
        go.touch()
        _, stderr = process.communicate(timeout=15)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert "1 done" in stderr
