"""The pipeline shares the machine with the service: what its settings leave it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from postroad.pipeline.spark_session import worker_python
from postroad.runtime import supervisor
from postroad.settings import Settings

pytestmark = pytest.mark.engine


def _printed(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_python_processes_of_spark_have_a_limit_of_their_address_space() -> None:
    asked = "import resource; print(*resource.getrlimit(resource.RLIMIT_AS))"
    assert _printed(worker_python("300m"), "-c", asked).split() == [str(300 * 1024**2)] * 2
    assert _printed(worker_python("2g"), "-c", asked).split() == [str(2 * 1024**3)] * 2


def test_the_pipeline_of_an_installation_has_the_niceness_of_the_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_pipeline_requirements", list)
    command = supervisor._pipeline_command(Settings.of(data_dir=tmp_path, pipeline_nice=7))
    assert command is not None
    before, python, after = command.argv[:3], command.argv[3], command.argv[4:]
    assert (python, after) == (sys.executable, ("-m", "postroad", "pipeline", "run", "--quiet"))
    assert int(_printed(*before, python, "-c", "import os; print(os.nice(0))")) == min(19, os.nice(0) + 7)
