"""moto's server (PyPI)."""

import contextlib
from collections.abc import Iterator

from benchmarks.peers import sqs
from benchmarks.peers.peer import HOME, MEMORY, Peer, Queue, Request, Unavailable, folder, process, python_version, wait_for
from postroad.runtime.embedded_server import free_port

_SERVER = HOME / "venv" / "bin" / "moto_server"


@contextlib.contextmanager
def running() -> Iterator[Queue]:
    if not _SERVER.exists():
        raise Unavailable("moto is not installed")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with folder("moto") as home, process([_SERVER, "-H", "127.0.0.1", "-p", str(port)], home):
        wait_for(url, Request("GET", "/moto-api/data.json"))
        yield sqs.queue(url)


PEER = Peer("moto, SQS", MEMORY, sqs.SAYS, sqs.ONE_PULL, "python", lambda: python_version("moto"), running)
