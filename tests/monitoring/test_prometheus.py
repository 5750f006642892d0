"""Debian's Prometheus scrapes an installation with all its parts while the demo runs: no panel and no alert is empty."""

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml  # type: ignore[import-untyped]

from postroad.client import AsyncPostroad
from postroad.monitoring.alerts import ALERTS
from postroad.runtime.embedded_server import free_port
from postroad.runtime.process_supervisor import _die_with_parent
from tests.architecture.source import ROOT
from tests.installation import Installation
from tests.monitoring.queries import queries
from tests.monitoring.test_files import needs_promtool
from tests.pipeline.test_whole import SETTINGS, Console
from tests.rabbitmq_server import RabbitServer, needs_rabbitmq, rabbit_server
from tests.waiting import eventually

__all__ = ["rabbit_server"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("pipeline"),
    pytest.mark.timeout(900),
    needs_rabbitmq,
    needs_promtool,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is missing: sh scripts/setup-prometheus"),
]
DEMO_SECONDS = 60  # a minute of samples


class Prometheus:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    async def get(self, path: str, **parameters: str) -> Any:
        async with aiohttp.ClientSession() as session, session.get(self.url + path, params=parameters) as answer:
            assert answer.status == 200, await answer.text()
            return (await answer.json())["data"]

    async def empty(self) -> list[str]:
        """The queries that have no value now."""
        return [query for query in queries() if not (await self.get("/api/v1/query", query=query))["result"]]


@contextmanager
def prometheus(home: Path, running: Installation) -> Iterator[Prometheus]:
    """With the configuration of deploy/, but for the address of the target and the interval."""
    config = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    (home / "admin.key").write_text(running.credentials["admin_key"])
    job["authorization"]["credentials_file"] = str(home / "admin.key")
    job["static_configs"] = [{"targets": [running.url.removeprefix("http://")]}]
    config["global"] = {"scrape_interval": "2s", "evaluation_interval": "2s"}
    shutil.copy(ROOT / "deploy" / "prometheus" / "rules.yml", home)
    (home / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    options = [f"--config.file={home / 'prometheus.yml'}", f"--storage.tsdb.path={home / 'data'}"]
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", *options, f"--web.listen-address=127.0.0.1:{port}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent,
        )
    try:
        yield Prometheus(port)
    finally:
        process.kill()
        process.wait()


async def use_rabbitmq(running: Installation) -> None:
    """A message through a queue in RabbitMQ."""
    async with AsyncPostroad(running.url, running.credentials["tenant_key"]) as client:
        await client.queues.put("in-rabbitmq", backend="rabbitmq")
        await client.queues.publish("in-rabbitmq", {"n": 1})
        [message] = (await client.queues.pull("in-rabbitmq", max_messages=1, wait_ms=20_000)).messages
        await client.queues.ack("in-rabbitmq", message)


async def test_no_panel_and_no_alert_is_empty_in_prometheus(tmp_path: Path, rabbit_server: RabbitServer) -> None:
    environment = {**SETTINGS, "POSTROAD_PIPELINE": "true", "POSTROAD_RABBITMQ_URL": rabbit_server.url}
    installation = Installation(tmp_path, **environment)
    (tmp_path / "prometheus").mkdir()
    try:
        running = await installation.start().ready(300)
        with prometheus(tmp_path / "prometheus", running) as scraping:
            await asyncio.gather(Console(running)("demo", "--seconds", str(DEMO_SECONDS)), use_rabbitmq(running))

            async def have_values() -> bool:
                empty.clear()
                empty.extend(await scraping.empty())
                return not empty

            empty: list[str] = []
            try:
                await eventually(have_values, 120)
            except AssertionError:
                pytest.fail(f"without a value: {empty}")
            groups = (await scraping.get("/api/v1/rules"))["groups"]
            evaluated = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
            assert evaluated == {alert.name: "ok" for alert in ALERTS}
        async with aiohttp.ClientSession() as session, session.get(f"{running.url}/metrics") as answer:
            check_metrics(await answer.text())
    finally:
        installation.end()


def check_metrics(text: str) -> None:
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, ""), done
