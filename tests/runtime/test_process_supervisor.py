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

Keep = Callable[[SupervisedProcess], "asyncio.Task[None]"]


@pytest.fixture
async def keep() -> AsyncIterator[Keep]:
    """Runs what it is given; whatever is still running after the test is stopped."""
    running: list[asyncio.Task[None]] = []

    def start(kept: SupervisedProcess) -> "asyncio.Task[None]":
        running.append(asyncio.create_task(kept.run()))
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
    status = Path(f"/proc/{pid}/stat")  # a zombie that nobody has fetched is not running
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def _has_come(descriptor: int, wanted: bytes) -> bool:
    try:
        return os.read(descriptor, 100).startswith(wanted)
    except BlockingIOError:
        return False


async def _stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_killed_process_is_started_again(keep: Keep) -> None:
    kept = SupervisedProcess(Command("sleeper", ("sleep", "60")))
    keep(kept)
    first = await eventually(lambda: kept.pid)
    assert first
    os.kill(first, signal.SIGKILL)
    second = await eventually(lambda: kept.pid if kept.starts == 2 else None)
    assert second
    assert second != first
    assert _is_running(second) and not _is_running(first)


async def test_a_process_that_ends_at_once_is_started_again_and_again_but_not_in_a_rush(keep: Keep) -> None:
    kept = SupervisedProcess(Command("false", ("false",)), backoff_max_seconds=0.2)
    started = asyncio.get_running_loop().time()
    keep(kept)
    await eventually(lambda: kept.starts >= 4)
    assert asyncio.get_running_loop().time() - started >= 0.1 + 0.2 + 0.2


async def test_a_process_is_stopped_politely(keep: Keep, tmp_path: Path) -> None:
    kept = SupervisedProcess(
        _shell('trap \'echo bye > "$DIR/bye"; exit 0\' TERM; touch "$DIR/ready"; while :; do sleep 0.02; done', DIR=str(tmp_path))
    )
    task = keep(kept)
    await eventually((tmp_path / "ready").exists)
    pid = kept.pid
    await _stop(task)
    assert (tmp_path / "bye").exists()
    assert pid is not None and not _is_running(pid)
    assert (kept.pid, kept.starts) == (None, 1)


async def test_a_process_that_will_not_stop_is_killed_when_its_time_is_up(keep: Keep, tmp_path: Path) -> None:
    kept = SupervisedProcess(
        _shell('trap "" TERM; touch "$DIR/ready"; while :; do sleep 0.02; done', DIR=str(tmp_path)), stop_seconds=0.3
    )
    task = keep(kept)
    await eventually((tmp_path / "ready").exists)
    pid = kept.pid
    started = asyncio.get_running_loop().time()
    await _stop(task)
    assert 0.3 <= asyncio.get_running_loop().time() - started < 3
    assert pid is not None and not _is_running(pid)


async def test_stopping_between_two_starts_leaves_nothing_running(keep: Keep) -> None:
    kept = SupervisedProcess(Command("false", ("false",)), backoff_max_seconds=60)
    task = keep(kept)
    await eventually(lambda: kept.starts == 1 and kept.pid is None)
    await _stop(task)
    assert kept.pid is None


async def test_a_process_gets_our_environment_and_its_own(keep: Keep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIVEN", "by the parent")
    keep(
        SupervisedProcess(
            _shell(
                'echo "$GIVEN, $ADDED" > "$DIR/.new"; mv "$DIR/.new" "$DIR/said"; sleep 60',
                DIR=str(tmp_path),
                ADDED="by the command",
            )
        )
    )
    await eventually((tmp_path / "said").exists)
    assert (tmp_path / "said").read_text() == "by the parent, by the command\n"


async def test_a_descriptor_is_passed_on_when_asked(keep: Keep) -> None:
    reader, writer = os.pipe()
    try:
        keep(
            SupervisedProcess(
                Command("writer", (sys.executable, "-c", f"import os; os.write({writer}, b'hello')"), pass_fds=(writer,))
            )
        )
        os.set_blocking(reader, False)
        await eventually(lambda: _has_come(reader, b"hello"))
    finally:
        os.close(reader)
        os.close(writer)


def _started(script: str) -> tuple["subprocess.Popen[bytes]", int]:
    """A Python that runs the script, and the number that it says first."""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        return process, int(process.stdout.readline())


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel does this on Linux only")
async def test_a_process_ends_when_its_keeper_is_killed() -> None:
    script = (
        "import asyncio; from postroad.runtime.process_supervisor import Command, SupervisedProcess\n"
        "async def main():\n"
        "    kept = SupervisedProcess(Command('sleeper', ('sleep', '60')))\n"
        "    running = asyncio.create_task(kept.run())\n"
        "    while kept.pid is None: await asyncio.sleep(0.01)\n"
        "    print(kept.pid, flush=True)\n"
        "    await running\n"
        "asyncio.run(main())"
    )
    keeper, pid = _started(script)
    try:
        assert _is_running(pid)
        keeper.kill()
        keeper.wait()
        await eventually(lambda: not _is_running(pid))
    finally:
        if _is_running(pid):
            os.kill(pid, signal.SIGKILL)
