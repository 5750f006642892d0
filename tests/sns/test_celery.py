"""kombu broadcasts through SNS; with it, Celery workers are controlled remotely, reply, and send events."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue

from tests.sns.conftest import SnsTenant
from tests.waiting import eventually

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def connection(tenant: SnsTenant) -> Connection:
    found = tenant.aws.credentials
    secret, host = quote(found.secret_access_key, safe=""), urlsplit(tenant.aws.gateway.url).netloc
    options = {"is_secure": False, "region": "us-east-1", "supports_fanout": True, "wait_time_seconds": 1}
    return Connection(f"sqs://{quote(found.access_key_id, safe='')}:{secret}@{host}", transport_options=options)


def broadcast(tenant: SnsTenant, count: int) -> dict[str, list[int]]:
    """Publish to a fan-out exchange that two connections consume; what each got."""
    exchange, received = Exchange("news", type="fanout"), dict[str, list[int]](left=[], right=[])
    subscribed = threading.Barrier(3, timeout=60)

    def consume(name: str) -> None:
        with connection(tenant) as opened, opened.channel() as channel:

            def take(body: int, message: Any) -> None:
                received[name].append(body)
                message.ack()

            with Consumer(channel, [Queue(f"news.{name}", exchange)], callbacks=[take]):
                subscribed.wait()
                deadline = time.monotonic() + 60
                while len(received[name]) < count and time.monotonic() < deadline:
                    try:
                        opened.drain_events(timeout=1)
                    except TimeoutError:
                        continue

    threads = [threading.Thread(target=consume, args=(name,)) for name in received]
    for thread in threads:
        thread.start()
    with connection(tenant) as opened, opened.channel() as channel:
        subscribed.wait()
        for number in range(count):
            Producer(channel, exchange=exchange).publish(number, declare=[exchange])
    for thread in threads:
        thread.join()
    return received


@pytest.mark.timeout(180)
async def test_a_fan_out_exchange_of_kombu_reaches_every_queue(tenant: SnsTenant) -> None:
    found = await asyncio.to_thread(broadcast, tenant, 5)
    assert {name: sorted(numbers) for name, numbers in found.items()} == {"left": [*range(5)], "right": [*range(5)]}


def environment(tenant: SnsTenant) -> dict[str, str]:
    return {
        **os.environ,
        "AWS_ENDPOINT_URL": tenant.aws.gateway.url,
        "AWS_ACCESS_KEY_ID": tenant.aws.credentials.access_key_id,
        "AWS_SECRET_ACCESS_KEY": tenant.aws.credentials.secret_access_key,
    }


@contextmanager
def celery(tenant: SnsTenant, output: Path, *arguments: str) -> Iterator[None]:
    command = [sys.executable, "-u", "-m", "celery", "-A", "celery_control", *arguments]
    with output.open("wb") as log:
        process = subprocess.Popen(command, cwd=EXAMPLES, env=environment(tenant), stdout=log, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.kill()
            process.wait()


async def control(tenant: SnsTenant, *arguments: str) -> str:
    def run() -> str:
        command = [sys.executable, "-m", "celery", "-A", "celery_control", *arguments]
        done = subprocess.run(command, cwd=EXAMPLES, env=environment(tenant), capture_output=True, text=True, timeout=120)
        return done.stdout + done.stderr

    return await asyncio.to_thread(run)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_celery_workers_are_controlled_and_send_events(tenant: SnsTenant, tmp_path: Path) -> None:
    """Two workers reply to a broadcast; a command changes them; the events of a task reach another process."""
    worker = ("worker", "--pool", "solo", "--loglevel", "INFO", "-E", "--without-gossip", "--without-mingle")
    one, two, events = (tmp_path / name for name in ("one", "two", "events"))
    with celery(tenant, one, *worker, "-n", "one@test"), celery(tenant, two, *worker, "-n", "two@test"):
        await eventually(lambda: "ready." in one.read_text() and "ready." in two.read_text(), 120)
        replied = await control(tenant, "inspect", "ping", "--timeout", "20", "--destination", "one@test,two@test")
        assert "one@test: OK" in replied and "two@test: OK" in replied, replied
        limited = await control(
            tenant, "control", "--timeout", "20", "--destination", "two@test", "rate_limit", "celery_app.add", "600/m"
        )
        assert "two@test: OK" in limited, limited
        with celery(tenant, events, "events", "--dump"):
            await eventually(lambda: "worker-heartbeat" in events.read_text() or "heartbeat" in events.read_text(), 120)
            await control(tenant, "call", "celery_app.add", "--args", "[1, 2]")
            await eventually(lambda: "succeeded" in events.read_text(), 120)
