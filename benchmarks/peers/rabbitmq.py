"""RabbitMQ (Debian), management API: a durable queue, persistent messages; the API answers after the publisher confirm."""

import base64
import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.peers.peer import (
    FSYNC,
    JSON,
    PAYLOAD,
    Peer,
    Queue,
    Request,
    Unavailable,
    debian_version,
    encoded,
    folder,
    process,
    settled,
    wait_for,
)
from postroad.runtime.embedded_server import free_port

_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one on the PATH changes the user and drops the environment
_HEADERS = {**JSON, "Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}


@contextlib.contextmanager
def server() -> Iterator[tuple[str, str]]:
    """The URLs of a server: of its management API and for AMQP."""
    epmd = shutil.which("epmd")
    if epmd is None or not _SERVER.exists():
        raise Unavailable("rabbitmq-server is not installed")
    amqp, distribution, names, port = (free_port() for _ in range(4))
    with contextlib.ExitStack() as stack:
        home = stack.enter_context(folder("rabbitmq"))
        (home / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{amqp}\nmanagement.tcp.ip = 127.0.0.1\nmanagement.tcp.port = {port}\n"
        )
        (home / "plugins").write_text("[rabbitmq_management].\n")
        environment = {
            **os.environ,
            "HOME": str(home),  # Erlang stores its cookie there
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "bench@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_PID_FILE": str(home / "pid"),
        }
        stack.enter_context(process([epmd, "-port", str(names), "-address", "127.0.0.1"], home))
        stack.enter_context(process([_SERVER], home, environment))
        url = f"http://127.0.0.1:{port}"
        wait_for(url, Request("GET", "/api/overview", headers=_HEADERS), 180)  # on a busy machine
        yield url, f"amqp://guest:guest@127.0.0.1:{amqp}/"


@contextlib.contextmanager
def running() -> Iterator[Queue]:
    with server() as (url, _):
        yield management_queue(url, "bench", "classic")


def management_queue(url: str, name: str, kind: str) -> Queue:
    """A new durable queue, used by the management API."""
    settled(
        url, Request("PUT", f"/api/queues/%2f/{name}", encoded({"durable": True, "arguments": {"x-queue-type": kind}}), _HEADERS)
    )
    message = {"properties": {"delivery_mode": 2}, "routing_key": name, "payload": PAYLOAD, "payload_encoding": "string"}

    def pull(count: int) -> Request:
        body = f'{{"count":{count},"ackmode":"ack_requeue_false","encoding":"auto"}}'
        return Request("POST", f"/api/queues/%2f/{name}/get", body, _HEADERS)

    queue = Queue(
        url,
        publish=Request("POST", "/api/exchanges/%2f/amq.default/publish", encoded(message), _HEADERS),
        pull=pull(1),
        taken=lambda pulled: pulled.count(b'"payload":'),
        of_batches=lambda size: replace(queue, pull=pull(size)),
    )
    return queue


PEER = Peer(
    "RabbitMQ, management API",
    FSYNC,
    "durable queue, persistent message, publisher confirm: fsynced before the response",
    "get with ack_requeue_false: acknowledged when read",
    "rabbitmq",
    partial(debian_version, "rabbitmq-server"),
    running,
)
