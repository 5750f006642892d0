"""Fetching messages of a stream in batches: by direct gets or by an ephemeral consumer."""

import contextlib
from typing import Literal, Protocol

from spark_jetstream import protocol
from spark_jetstream.api import JetStreamApi, StreamInfo
from spark_jetstream.errors import ConnectionLost, OptionError, Rejected
from spark_jetstream.options import ReadOptions
from spark_jetstream.plan import SequenceRange
from spark_jetstream.protocol import MessageColumns

BATCH_MESSAGES = 10_000
BATCH_BYTES = 8 * 1024 * 1024
# A consumer costs less per message than direct gets (measured in README.md), but has to be created and deleted, in a cluster
# by consensus. It pays off from about this many messages on.
_CONSUMER_MIN_MESSAGES = 10_000


class Fetcher(Protocol):
    def fetch(self, first: int, limit: int, columns: MessageColumns) -> bool:
        """Append a batch of at most `limit` messages from sequence `first` on. Returns true if the server reports no more.

        Raises ConnectionLost; messages appended before it are complete and in order.
        """
        ...

    def close(self) -> None:
        """Release resources on the server."""
        ...


class DirectFetcher:
    """Batched direct gets. They create nothing on the server, and any replica may reply."""

    def __init__(self, api: JetStreamApi, stream: str, subject: str | None) -> None:
        self._client, self._subject = api.client, subject
        self._endpoint = f"{api.prefix}.DIRECT.GET.{stream}".encode()

    def fetch(self, first: int, limit: int, columns: MessageColumns) -> bool:
        client = self._client
        body = b'{"seq":%d,"batch":%d,"max_bytes":%d' % (first, min(limit, BATCH_MESSAGES), BATCH_BYTES)
        body += b"}" if self._subject is None else b',"next_by_subj":"%b"}' % self._subject.encode()
        reply = client.new_reply_subject()
        client.send(protocol.encode_publish(self._endpoint, reply, b"", body))
        while True:
            client.position = protocol.parse_direct_replies(client.buffer, client.position, columns)
            frame = client.poll()
            if frame is None or frame.subject != reply:
                continue
            if frame.status == 204:
                return b"Nats-Num-Pending: 0\r\n" in frame.headers
            if frame.status == 404:
                return True
            raise Rejected(f"direct get failed: {frame.status} {frame.description}")

    def close(self) -> None:
        pass


class ConsumerFetcher:
    """An ephemeral pull consumer without acknowledgements."""

    def __init__(self, api: JetStreamApi, stream: str, subjects: tuple[str, ...]) -> None:
        self._api, self._stream, self._subjects = api, stream, subjects
        self._name = ""
        self._next = 0
        self._consumer_sequence = 0
        self._pending = 0

    def fetch(self, first: int, limit: int, columns: MessageColumns) -> bool:
        if self._next != first:
            self._create(first)
        if not self._pending:
            return True
        self._pull(min(limit, BATCH_MESSAGES, self._pending), columns)
        if columns.sequences:
            self._next = int(columns.sequences[-1]) + 1
        return not self._pending

    def _create(self, first: int) -> None:
        self._name, self._pending = self._api.create_consumer(self._stream, first, self._subjects)
        self._pattern = protocol.delivery_pattern(self._stream, self._name)
        self._next, self._consumer_sequence = first, 0

    def _pull(self, count: int, columns: MessageColumns) -> None:
        client = self._api.client
        max_bytes = max(BATCH_BYTES, client.max_payload + 65_536)
        reply = client.new_reply_subject()
        endpoint = f"{self._api.prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}".encode()
        body = b'{"batch":%d,"max_bytes":%d,"no_wait":true}' % (count, max_bytes)
        client.send(protocol.encode_publish(endpoint, reply, b"", body))
        target = len(columns) + count
        while True:
            before = len(columns)
            client.position, last = protocol.parse_deliveries(
                client.buffer, client.position, self._pattern, columns, target - before
            )
            if last is not None:
                self._advance(int(last[0]), int(last[1]), len(columns) - before)
            if len(columns) >= target:
                return
            frame = client.poll()
            if frame is not None and frame.subject == reply:
                self._handle_status(frame)
                return

    def _advance(self, consumer_sequence: int, pending: int, count: int) -> None:
        """Record `count` deliveries. A gap in the consumer's sequence is a delivery that the server dropped."""
        if consumer_sequence != self._consumer_sequence + count:
            raise ConnectionLost("deliveries of the consumer were dropped")
        self._consumer_sequence, self._pending = consumer_sequence, pending

    def _handle_status(self, frame: protocol.Frame) -> None:
        if frame.status == 404:
            self._pending = 0
        elif frame.status == 503:
            raise ConnectionLost("the consumer no longer exists")
        elif frame.status not in (408, 409):
            raise Rejected(f"pull failed: {frame.status} {frame.description}")

    def close(self) -> None:
        """Delete the consumer. If that fails, the server deletes it after a minute of inactivity."""
        if self._name and self._api.client.is_open:
            endpoint = f"{self._api.prefix}.CONSUMER.DELETE.{self._stream}.{self._name}".encode()
            with contextlib.suppress(ConnectionLost):
                self._api.client.send(b"PUB %b 0\r\n\r\n" % endpoint)


def select_fetch_mode(info: StreamInfo, options: ReadOptions, sequences: SequenceRange) -> Literal["direct", "consumer"]:
    """Choose how to read a range. Raises OptionError if the stream does not support `readBy`, Rejected if it supports neither."""
    allows_direct = info.allows_direct and len(options.subjects) <= 1
    # With interest or work-queue retention, a consumer would remove the messages it reads.
    allows_consumer = info.retention == "limits"
    if options.read_by == "direct" and not allows_direct:
        raise OptionError(f"option 'readBy' is 'direct', but stream {info.name!r} does not allow direct gets")
    if options.read_by == "consumer" and not allows_consumer:
        raise OptionError(
            f"option 'readBy' is 'consumer', which would remove messages from stream {info.name!r} (retention {info.retention})"
        )
    if not allows_direct and not allows_consumer:
        raise Rejected(
            f"stream {info.name!r} has retention {info.retention}: it can be read by direct gets only, which need allow_direct "
            "and at most one subject filter"
        )
    if options.read_by == "auto":
        prefers_direct = len(sequences) < _CONSUMER_MIN_MESSAGES or not allows_consumer
        return "direct" if allows_direct and prefers_direct else "consumer"
    return "direct" if options.read_by == "direct" else "consumer"
