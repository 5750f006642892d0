import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.waiting import eventually

from postroad.runtime.process_supervisor import Command, SupervisedProcess

pytestmark = pytest.mark.engine  # starts processes

Supervise = Callable[[SupervisedProcess], "asyncio.Task[None]"]


@pytest.fixture
async def supervise() -> AsyncIterator[Supervise]:
    """Runs processes, and stops them at the end of the test."""
    running: list[asyncio.Task[None]] = []

    def start(process: SupervisedProcess) -> "asyncio.Task[None]":
        running.append(asyncio.create_task(process.run()))
        return running[-1]

    yield start
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def _shell(script: str, **env: str) -> Command:
    return Command("shell", ("/bin/sh", "-c", script), env)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")  # a zombie is not running
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def _has_received(descriptor: int, wanted: bytes) -> bool:
    try:
        return os.read(descriptor, 100).startswith(wanted)
    except BlockingIOError:
        return False


async def _stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_killed_process_is_restarted(supervise: Supervise) -> None:
    process = SupervisedProcess(Command("sleeper", ("sleep", "60")))
    supervise(process)
    first = await eventually(lambda: process.pid)
    assert first
    os.kill(first, signal.SIGKILL)
    second = await eventually(lambda: process.pid if process.starts == 2 else None)
    assert second
    assert second != first
    assert _is_running(second) and not _is_running(first)


async def test_a_process_that_ends_at_once_is_restarted_with_backoff(supervise: Supervise) -> None:
    process = SupervisedProcess(Command("false", ("false",)), backoff_max_seconds=0.2)
    started = asyncio.get_running_loop().time()
    supervise(process)
    await eventually(lambda: process.starts >= 4)
    assert asyncio.get_running_loop().time() - started >= 0.1 + 0.2 + 0.2


async def test_a_process_is_terminated_before_it_is_killed(supervise: Supervise, tmp_path: Path) -> None:
    process = SupervisedProcess(
        _shell(
            'trap \'echo yes > "$DIR/terminated"; exit 0\' TERM; touch "$DIR/ready"; while :; do sleep 0.02; done',
            DIR=str(tmp_path),
        )
    )
    task = supervise(process)
    await eventually((tmp_path / "ready").exists)
    pid = process.pid
    await _stop(task)
    assert (tmp_path / "terminated").exists()
    assert pid is not None and not _is_running(pid)
    assert (process.pid, process.starts) == (None, 1)


async def test_a_process_that_ignores_sigterm_is_killed_after_the_timeout(supervise: Supervise, tmp_path: Path) -> None:
    process = SupervisedProcess(
        _shell('trap "" TERM; touch "$DIR/ready"; while :; do sleep 0.02; done', DIR=str(tmp_path)), stop_seconds=0.3
    )
    task = supervise(process)
    await eventually((tmp_path / "ready").exists)
    pid = process.pid
    started = asyncio.get_running_loop().time()
    await _stop(task)
    assert 0.3 <= asyncio.get_running_loop().time() - started < 3
    assert pid is not None and not _is_running(pid)


async def test_stopping_between_two_starts_leaves_no_process(supervise: Supervise) -> None:
    process = SupervisedProcess(Command("false", ("false",)), backoff_max_seconds=60)
    task = supervise(process)
    await eventually(lambda: process.starts == 1 and process.pid is None)
    await _stop(task)
    assert process.pid is None


async def test_a_process_gets_the_inherited_and_its_own_environment(
    supervise: Supervise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIVEN", "by the parent")
    supervise(
        SupervisedProcess(
            _shell(
                'echo "$GIVEN, $ADDED" > "$DIR/.new"; mv "$DIR/.new" "$DIR/output"; sleep 60',
                DIR=str(tmp_path),
                ADDED="by the command",
            )
        )
    )
    await eventually((tmp_path / "output").exists)
    assert (tmp_path / "output").read_text() == "by the parent, by the command\n"


async def test_a_descriptor_is_passed_to_the_process(supervise: Supervise) -> None:
    reader, writer = os.pipe()
    try:
        supervise(
            SupervisedProcess(
                Command("writer", (sys.executable, "-c", f"import os; os.write({writer}, b'hello')"), pass_fds=(writer,))
            )
        )
        os.set_blocking(reader, False)
        await eventually(lambda: _has_received(reader, b"hello"))
    finally:
        os.close(reader)
        os.close(writer)


def _started(script: str) -> tuple["subprocess.Popen[bytes]", int]:
    """A Python process that runs the script, and the number that it prints first."""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        return process, int(process.stdout.readline())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does this on Linux only")
async def test_a_process_ends_when_its_supervisor_is_killed() -> None:
    script = (
        "import asyncio; from postroad.runtime.process_supervisor import Command, SupervisedProcess\n"
        "async def main():\n"
        "    process = SupervisedProcess(Command('sleeper', ('sleep', '60')))\n"
        "    running = asyncio.create_task(process.run())\n"
        "    while process.pid is None: await asyncio.sleep(0.01)\n"
        "    print(process.pid, flush=True)\n"
        "    await running\n"
        "asyncio.run(main())"
    )
    supervisor, pid = _started(script)
    try:
        assert _is_running(pid)
        supervisor.kill()
        supervisor.wait()
        await eventually(lambda: not _is_running(pid))
    finally:
        if _is_running(pid):
            os.kill(pid, signal.SIGKILL)
