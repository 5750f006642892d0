"""boto3 clients of an installation, as programs use them: in threads, with the default retries."""

import os
import random
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from tests.installation import Installation
from tests.installation import is_running as is_alive

KILLS = int(os.environ.get("POSTROAD_TEST_KILLS", "3"))
UNCERTAIN = (BotoCoreError, ClientError)  # after all retries of the SDK: a program tries again


def client(running: Installation, service: str) -> Any:
    found = running.credentials
    return boto3.session.Session(found["aws_access_key_id"], found["aws_secret_access_key"], region_name="eu-central-1").client(
        service, endpoint_url=running.url, config=Config(read_timeout=30, connect_timeout=10)
    )


def persistently(call: Callable[..., Any], deadline: float, **arguments: Any) -> Any:
    """The result of a call that is repeated as long as its outcome is an error, as a program that must not lose anything does."""
    while True:
        try:
            return call(**arguments)
        except UNCERTAIN:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


@contextmanager
def killing(running: Installation, seed: int, words: Sequence[str], progress: Callable[[], float]) -> Iterator[list[str]]:
    """kill -9 one process of the installation after each further part of the work, once all are back; what was killed.

    `progress` is the part that is done, from 0 to 1.
    """
    stop, killed, rng = threading.Event(), list[str](), random.Random(seed)
    complete = {word: len(running.children(word)) for word in words}

    def run() -> None:
        while len(killed) < KILLS and not stop.wait(0.02):
            if progress() < (len(killed) + 1) / (KILLS + 1) or not _is_ready(running):
                continue
            if all(len(running.children(one)) == count for one, count in complete.items()):
                killed.append(rng.choice(words))
                _kill(rng.choice(running.children(killed[-1])))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def _is_ready(running: Installation) -> bool:
    try:
        with urllib.request.urlopen(f"{running.url}/readyz", timeout=5) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _kill(pid: int) -> None:
    if is_alive(pid):
        os.kill(pid, signal.SIGKILL)
