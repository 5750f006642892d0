"""Postroad, measured like its peers: one worker, and clients with a key."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import version

from benchmarks.harness import Server, postroad
from benchmarks.peers.peer import FSYNC, INTERVAL, JSON, PAYLOAD, Peer, Queue, Request, encoded, text_of, texts_of

INTERVAL_SECONDS = "2s"
_RECEIPT = rb'"receiptId":"([^"]+)"'


@contextlib.contextmanager
def running(sync: str) -> Iterator[Queue]:
    with postroad(POSTROAD_SYNC=sync) as server:
        yield queue_of(server)


def queue_of(server: Server) -> Queue:
    headers = {**JSON, "Authorization": f"Bearer {server.key}"}

    def ack(pulled: bytes) -> Request:
        receipt = text_of(_RECEIPT, pulled)
        return Request("POST", "/v1/queues/bench/ack", f'{{"receiptId":"{receipt}"}}', headers)

    def ack_all(pulled: bytes) -> Request:
        return Request("POST", "/v1/queues/bench/ack", encoded({"receiptIds": texts_of(_RECEIPT, pulled)}), headers)

    def pull(count: int) -> Request:
        return Request("POST", "/v1/queues/bench/pull", f'{{"maxMessages":{count}}}', headers)

    queue = Queue(
        server.url,
        publish=Request("POST", "/v1/queues/bench/messages", f'{{"payload":{PAYLOAD}}}', headers),
        pull=pull(1),
        taken=lambda pulled: pulled.count(b'"receiptId"'),
        ack=ack,
        of_batches=lambda size: replace(queue, pull=pull(size), ack=ack_all),
    )
    return queue


@contextlib.contextmanager
def running_topic(sync: str) -> Iterator[Queue]:
    """A topic, whose messages are read and not taken."""
    with postroad(POSTROAD_SYNC=sync) as server:
        headers = {**JSON, "Authorization": f"Bearer {server.key}"}
        yield Queue(
            server.url,
            publish=Request("POST", "/v1/topics/bench/messages", f'{{"subject":"a.b","payload":{PAYLOAD}}}', headers),
            pull=Request("GET", "/v1/topics/bench/messages?limit=1", headers=headers),
            taken=lambda read: read.count(b'"sequence"'),
        )


_VERSION = partial(version, "postroad")
_ONE_PULL = "pull, then ack of what it returned"
GROUP = Peer(
    "Postroad, sync group",
    FSYNC,
    "fsynced before the response, one sync for all that wait: the default on ext4 with a journal",
    _ONE_PULL,
    "",
    _VERSION,
    partial(running, "group"),
)
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
TOPIC_GROUP = replace(GROUP, running=partial(running_topic, "group"))
TOPIC_ALWAYS = replace(ALWAYS, running=partial(running_topic, "always"))
TOPIC_TIMED = replace(TIMED, running=partial(running_topic, INTERVAL_SECONDS))
