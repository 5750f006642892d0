"""Redis behind webdis (both Debian): a list, LPUSH and RPOP. There are no acknowledgements: reading deletes the message."""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from benchmarks.peers.peer import (
    FSYNC,
    INTERVAL,
    PAYLOAD,
    Peer,
    Queue,
    Request,
    Unavailable,
    debian_version,
    encoded,
    folder,
    process,
    wait_for,
)
from postroad.runtime.embedded_server import free_port


@contextlib.contextmanager
def running(appendfsync: str) -> Iterator[Queue]:
    redis, webdis = shutil.which("redis-server"), shutil.which("webdis")
    if redis is None or webdis is None:
        raise Unavailable("redis-server or webdis is not installed")
    redis_port, port = free_port(), free_port()
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(folder("webdis"))
        options = {
            "bind": "127.0.0.1",
            "port": str(redis_port),
            "dir": str(home),
            "save": "",
            "appendonly": "yes",
            "appendfsync": appendfsync,
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        stack.enter_context(process([redis, *arguments], home))
        settings = {  # threads and pool as in Debian's webdis.json
            "redis_host": "127.0.0.1",
            "redis_port": redis_port,
            "redis_auth": None,
            "http_host": "127.0.0.1",
            "http_port": port,
            "threads": 5,
            "pool_size": 20,
            "daemonize": False,
            "websockets": False,
            "database": 0,
            "acl": [],
            "verbosity": 0,
            "logfile": str(home / "webdis-access.log"),
        }
        (home / "webdis.json").write_text(encoded(settings))
        stack.enter_context(process([webdis, home / "webdis.json"], home))
        url = f"http://127.0.0.1:{port}"
        wait_for(url, Request("GET", "/PING"))
        queue = Queue(
            url,
            publish=Request("PUT", "/LPUSH/bench", PAYLOAD),  # the body is the last argument
            pull=Request("GET", "/RPOP/bench"),
            taken=lambda pulled: pulled.count(b"orderId"),
            of_batches=lambda size: replace(queue, pull=Request("GET", f"/RPOP/bench/{size}")),
        )
        yield queue


def version() -> str:
    return f"{debian_version('redis-server')}, webdis {debian_version('webdis')}"


_ONE_PULL = "RPOP: removed when read, no ack"
ALWAYS = Peer(
    "Redis appendfsync always, webdis",
    FSYNC,
    "fsynced before the response",
    _ONE_PULL,
    "webdis",
    version,
    partial(running, "always"),
)
EVERYSEC = Peer(
    "Redis appendfsync everysec, webdis",
    INTERVAL,
    "in the page cache; fsync every second",
    _ONE_PULL,
    "webdis",
    version,
    partial(running, "everysec"),
)
