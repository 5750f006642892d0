"""Reading a span of a stream: by direct gets in batches or by a consumer, through lost connections, each message once."""

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Protocol

from spark_jetstream import protocol
from spark_jetstream.api import Api, StreamInfo
from spark_jetstream.client import Client
from spark_jetstream.errors import ConnectionLost, DataLoss, OptionError, Refused, Unreachable
from spark_jetstream.options import ReadOptions
from spark_jetstream.plan import Span, recreation_loss, retention_loss
from spark_jetstream.protocol import Columns

log = logging.getLogger("spark_jetstream")

BATCH_MESSAGES = 10_000
BATCH_BYTES = 8 * 1024 * 1024
_ATTEMPTS = 5
# Message for message a consumer costs less than a direct get (docs/jetstream-source.md), but it has to be made and taken away
# again, in a cluster by agreement of its servers. That is worth it from about here on.
_CONSUMER_FROM = 10_000


class Fetcher(Protocol):
    def fetch(self, first: int, most: int, columns: Columns) -> bool:
        """Append messages from `first` on; whether there are no more, as far as who answered knows.

        Raises ConnectionLost; what was appended until then is whole and in order.
        """
        ...


class DirectFetcher:
    """Direct gets in batches: nothing is made on the server, and any replica answers."""

    def __init__(self, api: Api, stream: str, subject: str | None) -> None:
        self._api, self._subject = api, subject
        self._call = f"{api.prefix}.DIRECT.GET.{stream}".encode()

    def fetch(self, first: int, most: int, columns: Columns) -> bool:
        client = self._api.client
        body = b'{"seq":%d,"batch":%d,"max_bytes":%d' % (first, min(most, BATCH_MESSAGES), BATCH_BYTES)
        body += b"}" if self._subject is None else b',"next_by_subj":"%b"}' % self._subject.encode()
        inbox = client.new_inbox()
        client.send(protocol.publish(self._call, inbox, b"", body))
        while True:
            client.position = protocol.take_direct(client.buffer, client.position, columns)
            frame = client.poll()
            if frame is None or frame.subject != inbox:
                continue
            if frame.status == 204:
                return b"Nats-Num-Pending: 0\r\n" in frame.headers
            if frame.status == 404:
                return True
            raise Refused(f"a direct get was answered by {frame.status} {frame.description}")


class ConsumerFetcher:
    """A pull consumer without acknowledgements, gone soon after: quicker, but it is something on the server."""

    def __init__(self, api: Api, stream: str, subjects: tuple[str, ...]) -> None:
        self._api, self._stream, self._subjects = api, stream, subjects
        self._name = ""
        self._next = 0
        self._place = 0
        self._pending = 0

    def fetch(self, first: int, most: int, columns: Columns) -> bool:
        if self._next != first:
            self._start(first)
        if not self._pending:
            return True
        count = min(most, BATCH_MESSAGES, self._pending)
        self._pull(count, columns)
        if columns.sequences:
            self._next = int(columns.sequences[-1]) + 1
        return not self._pending

    def _start(self, first: int) -> None:
        self._name, self._pending = self._api.create_consumer(self._stream, first, self._subjects)
        self._pattern = protocol.delivery_pattern(self._stream, self._name)
        self._next, self._place = first, 0

    def _pull(self, count: int, columns: Columns) -> None:
        client = self._api.client
        max_bytes = max(BATCH_BYTES, client.max_payload + 65_536)
        inbox = client.new_inbox()
        call = f"{self._api.prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}".encode()
        client.send(protocol.publish(call, inbox, b"", b'{"batch":%d,"max_bytes":%d,"no_wait":true}' % (count, max_bytes)))
        wanted = len(columns) + count
        while True:
            had = len(columns)
            client.position, last = protocol.take_deliveries(client.buffer, client.position, self._pattern, columns, wanted - had)
            if last is not None:
                self._heed(int(last[0]), int(last[1]), len(columns) - had)
            if len(columns) >= wanted:
                return
            frame = client.poll()
            if frame is not None and frame.subject == inbox:
                self._heed_status(frame)
                return

    def _heed(self, place: int, pending: int, count: int) -> None:
        """The consumer numbers what it sends: a missing number is a message lost on the way."""
        if place != self._place + count:
            raise ConnectionLost("messages of the consumer were lost on the way")
        self._place, self._pending = place, pending

    def _heed_status(self, frame: protocol.Frame) -> None:
        if frame.status == 404:
            self._pending = 0
        elif frame.status == 503:
            raise ConnectionLost("the consumer is gone")
        elif frame.status not in (408, 409):
            raise Refused(f"the consumer answered {frame.status} {frame.description}")

    def end(self) -> None:
        """Take the consumer away; if that fails it goes by itself."""
        if self._name and self._api.client.is_open:
            call = f"{self._api.prefix}.CONSUMER.DELETE.{self._stream}.{self._name}".encode()
            with contextlib.suppress(ConnectionLost):
                self._api.client.send(b"PUB %b 0\r\n\r\n" % call)


def chosen_way(info: StreamInfo, options: ReadOptions, span: Span) -> str:
    """`direct` or `consumer`. Raises OptionError or Refused when what is wanted is not to be had."""
    can_direct = info.allows_direct and len(options.subjects) <= 1
    # A consumer would take messages away from a stream that keeps them only until they are consumed.
    can_consume = info.retention == "limits"
    if options.read_by == "direct" and not can_direct:
        raise OptionError(f"the option 'readBy' is 'direct', and the stream {info.name!r} does not allow direct gets")
    if options.read_by == "consumer" and not can_consume:
        raise OptionError(
            f"the option 'readBy' is 'consumer', which would take messages away from {info.name!r} ({info.retention})"
        )
    if not can_direct and not can_consume:
        raise Refused(
            f"the stream {info.name!r} keeps messages for its consumers ({info.retention}): it can be read only by direct gets, "
            "with allow_direct and at most one subject filter"
        )
    if options.read_by != "auto":
        return options.read_by
    return "direct" if can_direct and (len(span) < _CONSUMER_FROM or not can_consume) else "consumer"


def read_span(options: ReadOptions, span: Span, created: str) -> Iterator[Columns]:
    """The messages of a span in order, each once, whatever happens to the connection.

    Raises DataLoss if something that was there when the span was planned has gone (unless `failOnDataLoss` is false), and
    Unreachable when several attempts in a row made no progress.
    """
    with Client(options.connection) as client:
        yield from _SpanReader(options, span, created, client).columns()


class _SpanReader:
    """Where a span's reader stands: `_next` is the first sequence that has not been handed on."""

    def __init__(self, options: ReadOptions, span: Span, created: str, client: Client) -> None:
        self._options, self._span, self._created, self._client = options, span, created, client
        self._api = Api(client, options.connection.api_prefix)
        self._fetcher: Fetcher | None = None
        self._next = span.first
        self._failures = 0
        self._has_warned = False

    def columns(self) -> Iterator[Columns]:
        try:
            yield from self._columns()
        finally:
            if isinstance(self._fetcher, ConsumerFetcher):
                self._fetcher.end()

    def _columns(self) -> Iterator[Columns]:
        seems_over = False
        while self._next <= self._span.last:
            if seems_over and self._is_over():
                self._check_loss(self._next)
                break
            columns = Columns()
            try:
                if seems_over:
                    raise ConnectionLost("the replica that answered does not have all messages yet")
                seems_over = self._fetch(columns)
            except ConnectionLost as exc:
                seems_over = False
                self._lost(exc)
            is_beyond = columns.cut_after(self._span.last)
            if len(columns):
                self._failures = 0
                before, self._next = self._next, int(columns.sequences[-1]) + 1
                if self._next - before != len(columns):
                    self._check_loss(before)
                yield columns
            if is_beyond:
                if self._next <= self._span.last:
                    self._check_loss(self._next)
                break

    def _fetch(self, columns: Columns) -> bool:
        if self._fetcher is None:
            info = self._info()
            if info.created != self._created:
                self._next = self._span.last + 1  # what was to be read is gone
                return True
            if chosen_way(info, self._options, self._span) == "direct":
                self._fetcher = DirectFetcher(self._api, info.name, next(iter(self._options.subjects), None))
            else:
                self._fetcher = ConsumerFetcher(self._api, info.name, self._options.subjects)
        return self._fetcher.fetch(self._next, self._span.last - self._next + 1, columns)

    def _info(self) -> StreamInfo:
        info = self._client.with_retries(lambda _: self._api.stream_info(self._options.stream))
        self._complain(recreation_loss(self._created, info))
        return info

    def _is_over(self) -> bool:
        """Whether the leader too has nothing more for us: the replica that answered may be behind."""
        stream, subjects = self._options.stream, self._options.subjects
        found = self._client.with_retries(lambda _: self._api.next_sequence(stream, self._next, subjects))
        return found is None or found > self._span.last

    def _check_loss(self, wanted: int) -> None:
        """There are sequences missing from `wanted` on: were they deleted, as may be, or did retention overtake us?"""
        info = self._info()
        if wanted < info.first:
            self._complain(retention_loss(wanted, info))

    def _complain(self, loss: str | None) -> None:
        if loss is None:
            return
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{loss} (failOnDataLoss=false reads what is there)")
        if not self._has_warned:
            log.warning("%s; going on with what is there", loss)
            self._has_warned = True

    def _lost(self, exc: ConnectionLost) -> None:
        """Wait a little longer each time, then let the next server be tried. Raises Unreachable after a few times in vain."""
        self._failures += 1
        if self._failures > _ATTEMPTS:
            raise Unreachable(
                f"reading {self._options.stream!r} at sequence {self._next} failed {_ATTEMPTS} times: {exc}"
            ) from exc
        log.warning("reading %r at sequence %d: %s; trying again", self._options.stream, self._next, exc)
        self._client.close()
        self._fetcher = None
        time.sleep(min(0.1 * 2**self._failures, 1.0))
