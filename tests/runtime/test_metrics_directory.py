import os
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from postroad.runtime.metrics_directory import SupervisorMetrics, metrics_directory


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.engine
def test_the_directory_of_a_killed_supervisor_is_removed_and_that_of_a_running_one_is_not(temporary: Path) -> None:
    script = (
        "import os, signal\nfrom postroad.runtime.metrics_directory import metrics_directory\n"
        "with metrics_directory() as path:\n"
        "    (path / 'counter_1.db').touch(); print(path, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "TMPDIR": str(temporary)}
    killed = subprocess.run([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True, timeout=60)
    left_behind = Path(killed.stdout.strip())
    assert left_behind.is_dir()

    with metrics_directory() as running, metrics_directory() as other:
        assert {running, other} == set(temporary.iterdir())
    assert not list(temporary.iterdir())


def test_metrics_of_the_supervisor_are_served_with_those_of_the_workers(tmp_path: Path) -> None:
    metrics = SupervisorMetrics(tmp_path)
    for _ in range(2):
        metrics.increment("restarts", "Restarts.", cause="hung")
    for value in (3, 1):
        metrics.set("damaged", "Damaged streams.", value)

    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))  # type: ignore[no-untyped-call]
    served = generate_latest(registry).decode()

    assert 'restarts_total{cause="hung"} 2.0' in served
    assert "damaged 1.0" in served
    metrics.close()
