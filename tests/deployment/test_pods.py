"""Every container of the Kubernetes manifests, started as a process with its settings and mounted files, serves together."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from postroad.client import Postroad
from postroad.runtime.deployment_secrets import write_secrets
from tests.deployment.kustomize import render
from tests.deployment.pods import Pods
from tests.deployment.test_files import DEPLOY
from tests.waiting import eventually

pytestmark = pytest.mark.slow


def variables_of_the_image() -> dict[str, str]:
    """Those that the Dockerfile sets for all images of Postroad."""
    [line] = re.findall(r"^ENV (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    return {name: value for name, _, value in (word.partition("=") for word in line.split()) if name.startswith("POSTROAD_")}


@pytest.fixture(params=["base", "overlays/small"])
def pods(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pods]:
    write_secrets(tmp_path / "secrets")
    resources = render((DEPLOY / "kubernetes" / request.param).resolve())
    found = Pods(resources, variables_of_the_image(), tmp_path / "secrets", tmp_path)
    try:
        yield found
    finally:
        found.stop_all()


async def start(pods: Pods) -> list[str]:
    """Start all but the pipeline, and return their names once they pass their probes."""
    names = [name for name in pods.pods if not name.startswith("pipeline-")]
    pods.start(names)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        for name in names:
            await eventually(lambda name=name, probe=probe: pods.pods[name].passes(probe), 120)  # type: ignore[misc]
    return names


@pytest.mark.timeout(300)
async def test_the_containers_become_ready_serve_and_stop_in_time(pods: Pods, tmp_path: Path) -> None:
    names = await start(pods)
    for name in names:
        if name.startswith("gateway-"):
            _verify(pods.pods[name].port("http"), tmp_path / "secrets" / "tenant.key")
    for name in reversed(names):  # the servers last
        assert pods.pods[name].stop() == 0, pods.pods[name].log[-1500:]


@pytest.mark.xdist_group("pipeline")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("pods", ["overlays/small"], indirect=True)
async def test_the_container_of_the_pipeline_reads_events_and_stops_in_time(pods: Pods, tmp_path: Path) -> None:
    await start(pods)
    pods.start(["pipeline-0"])
    pipeline = pods.pods["pipeline-0"]
    key = (tmp_path / "secrets" / "admin.key").read_text().strip()
    with Postroad(f"http://127.0.0.1:{pods.pods['gateway-0'].port('http')}", key, tenant="default") as client:
        client.queues.put("orders")
        client.queues.publish("orders", {"n": 1})

        def has_read() -> bool:
            assert pipeline.process is not None and pipeline.process.poll() is None, pipeline.log[-1500:]
            status = client.pipeline.status()
            return status.state == "running" and bool(status.events)

        await eventually(has_read, 600)
    assert (pipeline.home / "root" / "lake").is_dir() and pipeline.stop() == 0, pipeline.log[-1500:]


def _verify(port: int, key_file: Path) -> None:
    environment = {"POSTROAD_URL": f"http://127.0.0.1:{port}", "POSTROAD_KEY": key_file.read_text().strip()}
    done = subprocess.run([sys.executable, "-m", "postroad", "verify"], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
