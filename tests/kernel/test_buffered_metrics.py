"""Metrics that processes share: counted in memory, written to the file later."""

import subprocess
import sys
from pathlib import Path

import pytest

COUNTING = """
import sys, threading, time
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from postroad.kernel import buffered_metrics

assert threading.active_count() == 1, "importing starts no thread"
buffered_metrics.start_flusher()

def in_the_files():
    registry = CollectorRegistry()
    MultiProcessCollector(registry, sys.argv[1])
    lines = [line.rpartition(" ") for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}

done = buffered_metrics.Counter("done_total", "Done.", ["queue"])
took = buffered_metrics.Histogram("took_seconds", "Took.", buckets=(1, 2))
open_now = buffered_metrics.Gauge("open_now", "Open.", multiprocess_mode="livesum")

def work():
    for _ in range(20_000):
        done.labels("a").inc()
        open_now.inc()
        open_now.dec()
    took.observe(1.5)

threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
open_now.inc()
buffered_metrics.flush()
found = in_the_files()
assert found['done_total{queue="a"}'] == 80_000, found
assert found["open_now"] == 1, found
assert (found['took_seconds_bucket{le="1.0"}'], found['took_seconds_bucket{le="2.0"}'], found["took_seconds_sum"]) == (0, 4, 6)
open_now.set(7)
assert in_the_files()["open_now"] == 7
deadline = time.monotonic() + 10
done.labels("a").inc(5)
assert done.labels("a")._value.get() == 80_005
while in_the_files()['done_total{queue="a"}'] != 80_005:
    assert time.monotonic() < deadline, "the thread has not flushed"
    time.sleep(0.01)
done.labels("a").inc()
"""

READING = """
import sys
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
registry = CollectorRegistry()
MultiProcessCollector(registry, sys.argv[1])
assert 'done_total{queue="a"} 80006.0' in generate_latest(registry).decode()
"""


def run(program: str, folder: Path) -> None:
    command = [sys.executable, "-c", program, str(folder)]
    ended = subprocess.run(command, env={"PROMETHEUS_MULTIPROC_DIR": str(folder)}, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.engine
def test_additions_of_all_threads_reach_the_files_while_running_and_at_exit(tmp_path: Path) -> None:
    run(COUNTING, tmp_path)
    run(READING, tmp_path)
