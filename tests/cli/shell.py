"""The command line as a person or a script uses it: words in; an exit code, an output and complaints out.

Commands run inside the test process, which spares the start of Python for each; `by_process` starts a real one.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from postroad.cli.root import cli


@dataclass(frozen=True, slots=True)
class Finished:
    code: int
    output: str
    complaints: str

    @property
    def json(self) -> Any:
        return json.loads(self.output)


@dataclass(frozen=True, slots=True)
class Shell:
    """`home` is where its profiles are; nothing of the environment that the tests run in is seen."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)

    def with_environment(self, **more: str) -> "Shell":
        return replace(self, environment={**self.environment, **more})

    def try_to(self, *words: str, given: str = "") -> Finished:
        env: dict[str, str | None] = {name: None for name in os.environ if name.startswith("POSTROAD_")}
        env |= {"COLUMNS": "250", "XDG_CONFIG_HOME": str(self.home), **self.environment}
        result = CliRunner().invoke(cli, list(words), input=given, env=env, catch_exceptions=False)
        return Finished(result.exit_code, result.stdout, result.stderr)

    def run(self, *words: str, given: str = "") -> Finished:
        finished = self.try_to(*words, given=given)
        assert finished.code == 0, finished
        return finished

    def by_process(self, *words: str, given: str = "") -> Finished:
        env = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
        done = subprocess.run(
            [sys.executable, "-m", "postroad", *words],
            env=env | {"COLUMNS": "250", "XDG_CONFIG_HOME": str(self.home), **self.environment},
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Finished(done.returncode, done.stdout, done.stderr)
