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

KILL_SECONDS = float(os.environ.get("POSTROAD_TEST_KILL_SECONDS", "4"))  # more for runs of full size, on a busy machine
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
def killing(running: Installation, seconds: float, seed: int, words: Sequence[str]) -> Iterator[list[str]]:
    """kill -9 one process of the installation every `seconds`, once all are back; what was killed."""
    stop, killed, rng = threading.Event(), list[str](), random.Random(seed)
    complete = {word: len(running.children(word)) for word in words}

    def run() -> None:
        while not stop.wait(seconds * rng.uniform(0.6, 1.4)):
            word = rng.choice(words)
            if _is_ready(running) and all(len(running.children(one)) == count for one, count in complete.items()):
                _kill(rng.choice(running.children(word)))
                killed.append(word)

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
