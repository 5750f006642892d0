"""Ctrl-C while a batch runs: the driver and everything that Spark started end at once, without stack traces."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.test_pipeline import kill, start
from tests.pipeline.traffic import Traffic, framed, own_engine, send

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("pipeline"), pytest.mark.timeout(300)]


@pytest.mark.parametrize(("send_signal", "number"), [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)], ids=["Ctrl-C", "up"])
def test_a_driver_that_is_stopped_during_a_batch_prints_no_stack_trace(
    tmp_path: Path, send_signal: Callable[[int, int], None], number: int
) -> None:
    """A terminal signals the whole process group, with Spark's processes; `postroad up` the driver only."""
    with own_engine(tmp_path) as settings:
        for seed in range(6):
            send(settings, framed(Traffic(seed).jobs(2_000)))
        log, lake = tmp_path / "log", Path(settings.lake_root)
        process = start(settings, log, "--every", "1s")
        try:
            deadline = time.monotonic() + 240
            while not any(lake.glob("bronze/*/*.parquet")):  # the tasks of the batch are at work
                assert process.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)
            send_signal(process.pid, number)
            assert process.wait(120) == 0, log.read_text()
        finally:
            if process.poll() is None:
                kill(process)
        text = log.read_text()
        assert not any(sign in text for sign in ("Traceback", "\tat ", "Exception", "Error")), text[-3000:]
        assert len(text.splitlines()) < 20, text[-3000:]
