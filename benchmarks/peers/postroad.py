"""Postroad, measured like its peers: one worker, and clients with a key."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import version

from benchmarks.harness import postroad
from benchmarks.peers.peer import FSYNC, INTERVAL, JSON, PAYLOAD, Peer, Queue, Request, text_of

INTERVAL_SECONDS = "2s"


@contextlib.contextmanager
def running(sync: str) -> Iterator[Queue]:
    with postroad(POSTROAD_SYNC=sync) as server:
        headers = {**JSON, "Authorization": f"Bearer {server.key}"}

        def ack(pulled: bytes) -> Request:
            receipt = text_of(rb'"receiptId":"([^"]+)"', pulled)
            return Request("POST", "/v1/queues/bench/ack", f'{{"receiptId":"{receipt}"}}', headers)

        yield Queue(
            server.url,
            publish=Request("POST", "/v1/queues/bench/messages", f'{{"payload":{PAYLOAD}}}', headers),
            pull=Request("POST", "/v1/queues/bench/pull", '{"maxMessages":1,"visibilityTimeoutMs":600000}', headers),
            taken=lambda pulled: b'"receiptId"' in pulled,
            ack=ack,
        )


@contextlib.contextmanager
def running_topic(sync: str) -> Iterator[Queue]:
    """A topic, whose messages are read and not taken."""
    with postroad(POSTROAD_SYNC=sync) as server:
        headers = {**JSON, "Authorization": f"Bearer {server.key}"}
        yield Queue(
            server.url,
            publish=Request("POST", "/v1/topics/bench/messages", f'{{"subject":"a.b","payload":{PAYLOAD}}}', headers),
            pull=Request("GET", "/v1/topics/bench/messages?limit=1", headers=headers),
            taken=lambda read: b'"sequence"' in read,
        )


_VERSION = partial(version, "postroad")
_ONE_PULL = "pull(1) + ack"
ALWAYS = Peer("Postroad, sync always", FSYNC, "fsynced before the response", _ONE_PULL, "", _VERSION, partial(running, "always"))
TIMED = Peer(
    f"Postroad, sync {INTERVAL_SECONDS}",
    INTERVAL,
    f"in the page cache; fsync every {INTERVAL_SECONDS[:-1]} s",
    _ONE_PULL,
    "",
    _VERSION,
    partial(running, INTERVAL_SECONDS),
)
TOPIC_ALWAYS = replace(ALWAYS, running=partial(running_topic, "always"))
TOPIC_TIMED = replace(TIMED, running=partial(running_topic, INTERVAL_SECONDS))
