"""fauxqs (npm), with logging disabled."""

import contextlib
import os
from collections.abc import Iterator

import msgspec

from benchmarks.peers import sqs
from benchmarks.peers.peer import HOME, MEMORY, Peer, Queue, Request, Unavailable, folder, process, wait_for
from postroad.runtime.embedded_server import free_port

_PACKAGES = HOME / "node" / "node_modules"


@contextlib.contextmanager
def running() -> Iterator[Queue]:
    program = _PACKAGES / "fauxqs" / "dist" / "cli.js"
    if not program.exists():
        raise Unavailable("fauxqs is not installed")
    node = _PACKAGES / ".bin" / "node"  # Debian's may be too old for it
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with folder("fauxqs") as home:
        environment = {**os.environ, "FAUXQS_PORT": str(port), "FAUXQS_LOGGER": "false", "FAUXQS_DATA_DIR": ""}
        with process([node if node.exists() else "node", program], home, environment):
            wait_for(url, Request("GET", "/health"))
            yield sqs.queue(url)


def version() -> str:
    file = _PACKAGES / "fauxqs" / "package.json"
    return str(msgspec.json.decode(file.read_bytes())["version"]) if file.exists() else "?"


PEER = Peer("fauxqs, SQS", MEMORY, sqs.SAYS, sqs.ONE_PULL, "node", version, running)
