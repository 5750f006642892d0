"""Celery with real workers: tasks with retries and countdowns complete, also when a worker is killed."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.aws.clients import AwsTenant
from tests.waiting import eventually

APP = """
import os, sys
sys.path.insert(0, {examples!r})
from celery_app import app

app.conf.broker_transport_options = dict(app.conf.broker_transport_options, visibility_timeout=5, wait_time_seconds=1)
app.conf.task_default_queue = {queue!r}


@app.task(bind=True, max_retries=3, default_retry_delay=0)
def work(self, number):
    with open({log!r}, "a") as log:
        log.write(f"begin {{number}}\\n")
    if number % 5 == 0 and self.request.retries == 0:
        raise self.retry(countdown=1)
    import time
    time.sleep(0.2)
    with open({log!r}, "a") as log:
        log.write(f"end {{number}}\\n")
"""


@contextmanager
def worker(folder: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "celery", "-A", "tasks", "worker", "--pool", "solo", "--loglevel", "WARNING"]
    options = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    process = subprocess.Popen(
        [*command, *options], cwd=folder, env=environment, stdout=(folder / "out").open("ab"), stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.timeout(300)
async def test_every_task_completes_although_a_worker_is_killed(aws: AwsTenant, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    examples = str(Path(__file__).parent.parent.parent / "examples")
    (tmp_path / "tasks.py").write_text(APP.format(examples=examples, queue="celery-tasks", log=str(log)))
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL": aws.gateway.url,
        "AWS_ACCESS_KEY_ID": aws.credentials.access_key_id,
        "AWS_SECRET_ACCESS_KEY": aws.credentials.secret_access_key,
    }
    send = "from tasks import work\nfor n in range(12): work.apply_async((n,), countdown=n % 2)"

    def run_send() -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([sys.executable, "-c", send], cwd=tmp_path, env=environment, capture_output=True, timeout=120)

    sent = await asyncio.to_thread(run_send)
    assert sent.returncode == 0, sent.stderr[-2000:]
    with worker(tmp_path, environment) as first:
        await eventually(lambda: "end" in log.read_text(), 100)
        first.send_signal(signal.SIGKILL)
    with worker(tmp_path, environment):
        expected = {f"end {number}" for number in range(12)}
        await eventually(lambda: expected <= set(log.read_text().splitlines()), 120)
