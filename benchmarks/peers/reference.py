"""The reference server of the Durable Streams protocol (npm), in files or in memory. The tests use it, too."""

import msgspec
from tests.conformance.reference import HERE

from benchmarks import streams
from benchmarks.peers.peer import FSYNC, MEMORY

SETUP = "reference"
PROMISES = {
    "files": (FSYNC, "fdatasync before the response"),
    "memory": (MEMORY, "in the memory of the process; lost when it stops"),
}
running = streams.reference


def version() -> str:
    file = HERE / "node_modules" / "@durable-streams" / "server" / "package.json"
    return str(msgspec.json.decode(file.read_bytes())["version"]) if file.exists() else "?"
