"""Reading a sequence range of a stream: each message once and in order, across lost connections."""

import logging
import time
from collections.abc import Iterator

from spark_jetstream.api import JetStreamApi, StreamInfo
from spark_jetstream.client import Client
from spark_jetstream.errors import ConnectionLost, DataLoss, Unreachable
from spark_jetstream.fetchers import ConsumerFetcher, DirectFetcher, Fetcher, select_fetch_mode
from spark_jetstream.options import ReadOptions
from spark_jetstream.plan import SequenceRange, recreation_loss, retention_loss
from spark_jetstream.protocol import MessageColumns
from spark_jetstream.retry import ATTEMPTS_MAX, backoff_seconds

log = logging.getLogger("spark_jetstream")


def report_loss(options: ReadOptions, loss: str) -> None:
    """Raise DataLoss, or log a warning if `failOnDataLoss` is false."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{loss} (failOnDataLoss=false continues with the remaining messages)")
    log.warning("%s; continuing with the remaining messages", loss)


def read_range(options: ReadOptions, sequences: SequenceRange, created: str) -> Iterator[MessageColumns]:
    """Yield the messages of a range in order, each once.

    Raises DataLoss if messages that existed when the range was planned were removed by retention or with their stream (unless
    `failOnDataLoss` is false), and Unreachable if five attempts in a row made no progress.
    """
    with Client(options.connection) as client:
        yield from _RangeReader(options, sequences, created, client).batches()


class _RangeReader:
    """State of one read: `_next` is the first sequence that was not yet yielded."""

    def __init__(self, options: ReadOptions, sequences: SequenceRange, created: str, client: Client) -> None:
        self._options, self._created, self._client = options, created, client
        self._sequences, self._last = sequences, sequences.last
        self._api = JetStreamApi(client, options.connection.api_prefix)
        self._fetcher: Fetcher | None = None
        self._next = sequences.first
        self._failures = 0
        self._has_reported_loss = False

    def batches(self) -> Iterator[MessageColumns]:
        try:
            yield from self._batches()
        finally:
            if self._fetcher is not None:
                self._fetcher.close()

    def _batches(self) -> Iterator[MessageColumns]:
        is_exhausted = False
        while self._next <= self._last:
            if is_exhausted and self._is_exhausted_on_leader():
                self._check_retention(self._next)
                break
            columns = MessageColumns()
            try:
                if is_exhausted:
                    raise ConnectionLost("the replica that replied does not have all messages yet")
                is_exhausted = self._fetch(columns)
            except ConnectionLost as exc:
                is_exhausted = False
                self._prepare_retry(exc)
            is_past_range = columns.truncate_after(self._last)
            if len(columns):
                self._failures = 0
                first, self._next = self._next, int(columns.sequences[-1]) + 1
                if self._next - first != len(columns):
                    self._check_retention(first)
                yield columns
            if is_past_range:
                if self._next <= self._last:
                    self._check_retention(self._next)
                break

    def _fetch(self, columns: MessageColumns) -> bool:
        if self._fetcher is None:
            info = self._stream_info()
            if info.created != self._created:
                self._next = self._last + 1  # no message of the planned stream is left
                return True
            self._fetcher = self._create_fetcher(info)
        return self._fetcher.fetch(self._next, self._last - self._next + 1, columns)

    def _create_fetcher(self, info: StreamInfo) -> Fetcher:
        subjects = self._options.subjects
        if select_fetch_mode(info, self._options, self._sequences) == "direct":
            return DirectFetcher(self._api, info.name, next(iter(subjects), None))
        return ConsumerFetcher(self._api, info.name, subjects)

    def _stream_info(self) -> StreamInfo:
        info = self._client.with_retries(lambda _: self._api.stream_info(self._options.stream))
        self._report_once(recreation_loss(self._created, info))
        return info

    def _is_exhausted_on_leader(self) -> bool:
        """Ask the leader if the range has no more messages: the replica that reported its end may be behind."""
        stream, subjects = self._options.stream, self._options.subjects
        found = self._client.with_retries(lambda _: self._api.next_sequence(stream, self._next, subjects))
        return found is None or found > self._last

    def _check_retention(self, missing: int) -> None:
        """Report missing sequences if retention removed them. Gaps from deleted or filtered messages are no loss."""
        info = self._stream_info()
        if missing < info.first:
            self._report_once(retention_loss(missing, info))

    def _report_once(self, loss: str | None) -> None:
        if loss is not None and not self._has_reported_loss:
            report_loss(self._options, loss)
            self._has_reported_loss = True

    def _prepare_retry(self, exc: ConnectionLost) -> None:
        """Close the connection and wait before the next attempt. Raises Unreachable after too many failures."""
        self._failures += 1
        if self._failures > ATTEMPTS_MAX:
            raise Unreachable(
                f"reading {self._options.stream!r} at sequence {self._next} failed {ATTEMPTS_MAX} times: {exc}"
            ) from exc
        log.warning("reading %r at sequence %d: %s; retrying", self._options.stream, self._next, exc)
        self._client.close()
        self._fetcher = None
        time.sleep(backoff_seconds(self._failures + 1))
