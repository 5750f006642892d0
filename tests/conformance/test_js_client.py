"""The JavaScript client as a package, and its tests in Node.js against a whole installation. The same tests run in chromium:
`tests/browser/test_js_client.py`."""

import asyncio
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import postroad
from tests.architecture.source import ROOT
from tests.conformance.conftest import Project
from tests.node import NODE

pytestmark = pytest.mark.engine
CLIENT = ROOT / "clients" / "js"
SIZE_MAX = 8000


@pytest.fixture(scope="module")
def package() -> Path:
    """The built package, with its checkers."""
    subprocess.run(["sh", "scripts/build-js-client"], cwd=ROOT, check=True)
    return CLIENT


@pytest.fixture(scope="module")
def archive(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive that would be published."""
    folder = tmp_path_factory.mktemp("package")
    tools = Path(sys.executable).parent
    command = [str(tools / "npm"), "pack", "--silent", "--pack-destination", str(folder)]
    subprocess.run(command, cwd=package, env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}, check=True)
    [packed] = folder.glob("*.tgz")
    return packed


def check(script: str, *arguments: str) -> str:
    """The output of a checker, which succeeds."""
    command = [NODE, str(CLIENT / "node_modules" / script), *arguments]
    checked = subprocess.run(command, cwd=CLIENT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    return checked.stdout


def test_the_client_is_small_and_has_no_dependencies(package: Path) -> None:
    described = json.loads((package / "package.json").read_text())
    assert "dependencies" not in described
    assert described["version"] == postroad.__version__
    script = (package / "dist" / "index.js").read_bytes()
    assert b"import" not in script.split(b"{", 1)[0], "one module"
    assert len(gzip.compress(script, 9)) <= SIZE_MAX


def test_publint_accepts_the_package(archive: Path) -> None:
    assert "All good" in check("publint/src/cli.js", str(archive), "--strict")


def test_the_types_of_the_package_resolve(archive: Path) -> None:
    check("@arethetypeswrong/cli/dist/index.js", str(archive), "--profile", "esm-only", "--no-emoji")


@pytest.mark.timeout(600)  # twenty cases
async def test_the_client_in_node(package: Path, project: Project) -> None:
    key = project.client.headers["Authorization"].split()[1]
    environment = {**os.environ, "POSTROAD_URL": project.client.url, "POSTROAD_KEY": key}
    process = await asyncio.create_subprocess_exec(
        NODE, "--test", "--test-reporter=spec", str(package / "tests" / "node.test.js"), env=environment, stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


async def test_the_example_of_a_worker(package: Path, project: Project) -> None:
    key = project.client.headers["Authorization"].split()[1]
    environment = {**os.environ, "POSTROAD_URL": project.client.url, "POSTROAD_KEY": key}
    example = str(ROOT / "examples" / "javascript" / "worker.mjs")
    process = await asyncio.create_subprocess_exec(NODE, example, env=environment, stdout=subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    lines = output.decode().splitlines()
    assert "order 3 shipped to Edsger, attempt 2" in lines
    assert lines[-1] == "all orders are done"
