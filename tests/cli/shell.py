"""The command line: arguments in; exit code, standard output and standard error out.

Commands run inside the test process, which saves the start of Python; `run_process` starts a real process.
"""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from postroad.cli.root import cli

# The command runs in this process, and so may a gateway, which logs to standard output meanwhile.
_LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \[\w+ *\] .*\n", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Completed:
    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)


@dataclass(frozen=True, slots=True)
class Shell:
    """`home` holds the profiles. POSTROAD_ variables of the test run are not passed on."""

    home: Path
    environment: dict[str, str] = field(default_factory=dict)

    def with_environment(self, **more: str) -> "Shell":
        return replace(self, environment={**self.environment, **more})

    def invoke(self, *words: str, stdin: str = "") -> Completed:
        env: dict[str, str | None] = {name: None for name in os.environ if name.startswith("POSTROAD_")}
        env |= {"COLUMNS": "250", "XDG_CONFIG_HOME": str(self.home), **self.environment}
        result = CliRunner().invoke(cli, list(words), input=stdin, env=env, catch_exceptions=False)
        return Completed(result.exit_code, _LOG_LINE.sub("", result.stdout), result.stderr)

    def run(self, *words: str, stdin: str = "") -> Completed:
        finished = self.invoke(*words, stdin=stdin)
        assert finished.code == 0, finished
        return finished

    def run_process(self, *words: str, stdin: str = "") -> Completed:
        env = {name: value for name, value in os.environ.items() if not name.startswith("POSTROAD_")}
        done = subprocess.run(
            [sys.executable, "-m", "postroad", *words],
            env=env | {"COLUMNS": "250", "XDG_CONFIG_HOME": str(self.home), **self.environment},
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Completed(done.returncode, done.stdout, done.stderr)
