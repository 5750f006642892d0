"""A native program and Postroad share a queue of RabbitMQ."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.installation import Installation
from tests.rabbitmq_server import RabbitServer, needs_rabbitmq, rabbit_server

__all__ = ["rabbit_server"]

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "rabbitmq.py"

pytestmark = [pytest.mark.slow, needs_rabbitmq, pytest.mark.timeout(600)]


@pytest.fixture
async def running(tmp_path: Path, rabbit_server: RabbitServer) -> AsyncIterator[Installation]:
    installation = Installation(tmp_path, POSTROAD_RABBITMQ_URL=rabbit_server.url)
    yield await installation.start().ready(300)
    installation.end()


async def test_a_native_program_and_postroad_share_a_queue(running: Installation, rabbit_server: RabbitServer) -> None:
    keys = {"POSTROAD_URL": running.url, "POSTROAD_KEY": running.credentials["tenant_key"], "RABBITMQ_URL": rabbit_server.url}
    finished = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, **keys},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.splitlines() == [
        "the queue is in rabbitmq and supports amqp",
        "the native program read {'order': 1} of the shop north",
        "Postroad read {'order': 2} of the shop south, attempt 1",
        "its job is done",
        "the native program rejected {'order': 3}; it is a dead letter: RabbitMQ dead-lettered the message: rejected",
    ]
