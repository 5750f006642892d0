"""Listens for requests for a batch, in a thread."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from postroad.contracts.batch_requests import SUBJECT
from spark_jetstream.client import Client
from spark_jetstream.errors import JetStreamError
from spark_jetstream.options import write_options

_IDLE_SECONDS = 300.0  # servers send a ping every two minutes: without one the connection is dead
_RETRY_SECONDS = 5.0
_SUBSCRIPTION = b"2"  # 1 is the inbox of the client


def listen(options: Mapping[str, str], on_request: Callable[[], None], stop: threading.Event) -> None:
    """Call `on_request` for each request, until `stop` is set or the process ends. Returns at once."""
    threading.Thread(target=_listen, args=(options, on_request, stop), name="batch-requests", daemon=True).start()


def _listen(options: Mapping[str, str], on_request: Callable[[], None], stop: threading.Event) -> None:
    connection = replace(write_options(options).connection, timeout_seconds=_IDLE_SECONDS)
    while not stop.is_set():
        try:
            with Client(connection) as client:
                client.open()
                client.send(b"SUB %b %b\r\n" % (SUBJECT.encode(), _SUBSCRIPTION))
                while not stop.is_set():
                    if client.poll() is not None:
                        on_request()
        except JetStreamError:
            stop.wait(_RETRY_SECONDS)
