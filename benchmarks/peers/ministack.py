"""ministack (PyPI), all services on one port; only SQS is used."""

import contextlib
import os
from collections.abc import Iterator

from benchmarks.peers import sqs
from benchmarks.peers.peer import HOME, MEMORY, Peer, Queue, Request, Unavailable, folder, process, python_version, wait_for
from postroad.runtime.embedded_server import free_port

_SERVER = HOME / "venv" / "bin" / "hypercorn"  # like its own command, but on loopback only


@contextlib.contextmanager
def running() -> Iterator[Queue]:
    if not _SERVER.exists():
        raise Unavailable("ministack is not installed")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [str(_SERVER), "ministack.app:app", "--bind", f"127.0.0.1:{port}", "--log-level", "WARNING"]
    with folder("ministack") as home:
        environment = {**os.environ, "GATEWAY_PORT": str(port), "LOG_LEVEL": "WARNING", "HOME": str(home)}
        with process(command, home, environment):
            wait_for(url, Request("GET", "/_localstack/health"))
            yield sqs.queue(url)


PEER = Peer("ministack, SQS", MEMORY, sqs.SAYS, sqs.ONE_PULL, "python", lambda: python_version("ministack"), running)
