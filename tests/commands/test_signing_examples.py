"""The code that the documentation shows for signing a command, run as it is."""

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from postroad.api.command_signing import command_signature, payload_hmac
from postroad.commands.registry_view import KnownSecret, Sender
from postroad.commands.shield import Accepted, ShieldPolicy, inspect

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
SECRET = "5ec2e7" * 10
COMMAND_ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
ARGUMENTS = (SECRET, "acme/billing", COMMAND_ID, "bot", "post-message", "2026-11-17T12:00:00.000Z", '{"text":"hí"}')


def example(language: str) -> str:
    """The code block of a language in the section about signing."""
    section = PAGE.read_text().partition("\n## Signing\n")[2].partition("\n## ")[0]
    [found] = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return str(found)


def expected() -> list[str]:
    secret, source, command_id, target, name, timestamp, payload = ARGUMENTS
    signature = command_signature(
        secret.encode(),
        command_id=command_id,
        source=source,
        target=target,
        name=name,
        timestamp=timestamp,
        payload=payload.encode(),
    )
    return [payload_hmac(secret.encode(), payload.encode(), timestamp, name), signature]


def run(*command: str, folder: Path | None = None) -> str:
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120, cwd=folder)
    return done.stdout


def test_python() -> None:
    names: dict[str, Any] = {}
    exec(example("python"), names)
    assert list(names["sign"](*ARGUMENTS[:-1], ARGUMENTS[-1].encode())) == expected()


@pytest.mark.engine
@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_javascript() -> None:
    call = f"console.log(JSON.stringify(sign(...{json.dumps(ARGUMENTS)})))"
    assert json.loads(run("node", "-e", f"{example('js')}\n{call}")) == expected()


@pytest.mark.engine
@pytest.mark.skipif(shutil.which("go") is None, reason="go is not installed")
def test_go(tmp_path: Path) -> None:
    imports = '"crypto/hmac"\n"crypto/sha256"\n"encoding/hex"\n"fmt"\n"strings"'
    call = f"fmt.Println(Sign({', '.join(map(json.dumps, ARGUMENTS))}))"
    (tmp_path / "main.go").write_text(f"package main\nimport (\n{imports}\n)\n{example('go')}\nfunc main() {{ {call} }}\n")
    assert run("go", "run", "main.go", folder=tmp_path).split() == expected()


@pytest.mark.engine
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_shell() -> None:
    """The envelope that it sends is accepted by the shield."""
    sent = run("sh", "-c", f"secret={SECRET}; curl() {{ cat; }}\n{example('sh')}")
    sender = Sender("acme", "billing", "", frozenset(), {"hmac-v1": KnownSecret(SECRET.encode(), None, True)}, 0)
    now_ms = int(datetime.now(UTC).timestamp() * 1000)
    found = inspect(sent.encode(), sender, now_ms, ShieldPolicy(256 * 1024, 60_000))
    assert isinstance(found, Accepted), found
    assert (found.target, found.name, found.payload) == ("bot", "post-message", b'{"text":"hi"}')
