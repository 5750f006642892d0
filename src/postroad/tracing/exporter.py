"""Export of spans: a bounded queue, and a task that sends them in batches. Tracing never delays or fails what it observes."""

import asyncio
import random
import ssl
import zlib
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import structlog

from postroad import __version__
from postroad.kernel.backoff import Backoff
from postroad.kernel.log_limit import LogLimit
from postroad.kernel.spans import Attribute, Span
from postroad.outbound.http_connection import HttpConnection, HttpResult
from postroad.outbound.rules import OutboundFailed
from postroad.tracing import metrics
from postroad.tracing.otlp import encode_span, export_request, rejected_spans
from postroad.tracing.settings import Endpoint, TracingSettings, resource_attributes

_SLICE = 32  # spans that are encoded without a pause: less than a millisecond
_RETRIED_STATUSES = (429, 502, 503, 504)  # as OTLP/HTTP says; a failed connection is retried, too
_ATTEMPTS_MAX = 5
_RETRY_AFTER_SECONDS_MAX = 60.0
_BACKOFF = Backoff(1.0, 16.0, jitter=(0.5, 1.5))
_LOG_SECONDS = 60.0
_GZIP_WINDOW = 31  # zlib's way to ask for the gzip format

log = structlog.get_logger("postroad.tracing")


class ExportFailed(Exception):
    """The collector did not accept a batch. `reason` is that of the metric; `retry_after`: seconds, if a retry can help."""

    def __init__(self, reason: str, detail: str, retry_after: float | None = None, *, is_final: bool = False) -> None:
        super().__init__(detail)
        self.reason, self.detail, self.retry_after, self.is_final = reason, detail, retry_after, is_final


class Collector:
    """The connection to the collector. The operator has chosen its address, so it may be private; proxies are not used."""

    def __init__(self, endpoint: Endpoint, *, seconds: float, is_compressed: bool, certificate: Path | None) -> None:
        self._endpoint, self._seconds, self._is_compressed = endpoint, seconds, is_compressed
        self._certificate = certificate
        self._tls: ssl.SSLContext | None = None
        self._connection: HttpConnection | None = None

    async def send(self, body: bytes) -> int:
        """Return the number of spans that the collector has not accepted. Raises ExportFailed."""
        if self._is_compressed:
            body = await asyncio.to_thread(zlib.compress, body, 1, _GZIP_WINDOW)
        request = b"%bContent-Length: %d\r\n\r\n%b" % (self._endpoint.head, len(body), body)
        deadline = asyncio.get_running_loop().time() + self._seconds
        try:
            async with asyncio.timeout_at(deadline):
                connection = await self._open()
            result = await connection.exchange(request, deadline)
        except OutboundFailed as failed:
            raise ExportFailed("unreachable", failed.reason) from failed
        except TimeoutError as exc:
            raise ExportFailed("unreachable", "timeout") from exc
        except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError; ValueError: a name that TLS does not accept
            raise ExportFailed("unreachable", str(exc)) from exc
        return _judge(result)

    async def _open(self) -> HttpConnection:
        """The connection of the last request if it is still open, else a new one."""
        if self._connection is None or not self._connection.is_idle:
            self.close()
            host, port, is_tls, _ = self._endpoint
            if is_tls and self._tls is None:
                self._tls = await asyncio.to_thread(ssl.create_default_context, cafile=self._certificate)
            _transport, self._connection = await asyncio.get_running_loop().create_connection(
                HttpConnection, host, port, ssl=self._tls
            )
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class SpanExporter:
    """`record` queues a span, or drops it if the queue is full; `run` sends them."""

    def __init__(
        self,
        collector: Collector,
        resource: Mapping[str, Attribute],
        *,
        queue_size: int,
        batch_size: int,
        delay_seconds: float,
    ) -> None:
        self._collector, self._resource = collector, resource
        self._queue_size, self._batch_size, self._delay_seconds = queue_size, batch_size, delay_seconds
        self._queue: deque[Span] = deque()
        self._has_batch = asyncio.Event()
        self._log_limit = LogLimit(_LOG_SECONDS)

    def record(self, span: Span) -> None:
        """Does not wait and does not raise."""
        queue = self._queue
        if len(queue) >= self._queue_size:
            metrics.dropped.labels("queue_full").inc()
            return
        queue.append(span)
        if len(queue) == self._batch_size:
            self._has_batch.set()

    @property
    def pending(self) -> int:
        return len(self._queue)

    async def run(self) -> None:
        """Export until cancelled: a full batch at once, fewer spans after a delay."""
        while True:
            if len(self._queue) < self._batch_size:
                self._has_batch.clear()
                try:
                    async with asyncio.timeout(self._delay_seconds):
                        await self._has_batch.wait()
                except TimeoutError:
                    pass
            if self._queue:
                await self._export(_ATTEMPTS_MAX)

    async def flush(self) -> None:
        """Send what is queued, before the process ends: each batch once."""
        try:
            while self._queue:
                await self._export(1)
        finally:
            metrics.dropped.labels("stopped").inc(len(self._queue))
            self._queue.clear()
            self._collector.close()

    async def _export(self, attempts: int) -> None:
        batch = [self._queue.popleft() for _ in range(min(len(self._queue), self._batch_size))]
        try:
            body = await self._encode(batch)
            rejected = min(await self._send(body, attempts), len(batch))
        except ExportFailed as failed:
            metrics.dropped.labels(failed.reason).inc(len(batch))
            suppressed = self._log_limit.admit()
            if suppressed is not None:
                log.warning("spans_not_exported", reason=failed.reason, detail=failed.detail, spans=len(batch))
        except asyncio.CancelledError:
            self._queue.extendleft(reversed(batch))  # for `flush`
            raise
        else:
            metrics.exported.inc(len(batch) - rejected)
            if rejected:
                metrics.dropped.labels("rejected").inc(rejected)

    async def _encode(self, batch: list[Span]) -> bytes:
        encoded: list[bytes] = []
        for start in range(0, len(batch), _SLICE):
            encoded += [encode_span(span) for span in batch[start : start + _SLICE]]
            await asyncio.sleep(0)
        return export_request(self._resource, __version__, encoded)

    async def _send(self, body: bytes, attempts: int) -> int:
        """Send a batch, repeatedly if that can help. Raises ExportFailed."""
        for attempt in range(1, attempts + 1):
            try:
                return await self._collector.send(body)
            except ExportFailed as failed:
                if failed.is_final or attempt == attempts:
                    raise
                delay = _BACKOFF.delay(attempt, random.random())  # noqa: S311  # spreads retries, no secret
                await asyncio.sleep(min(max(failed.retry_after or 0.0, delay), _RETRY_AFTER_SECONDS_MAX))
        raise AssertionError("unreachable")


def span_exporter(settings: TracingSettings, own: dict[str, str]) -> SpanExporter | None:
    """The exporter of a process with these resource attributes; None if tracing is off."""
    endpoint = settings.endpoint
    if endpoint is None:
        return None
    collector = Collector(
        endpoint, seconds=settings.timeout_seconds, is_compressed=settings.is_compressed, certificate=settings.certificate
    )
    return SpanExporter(
        collector,
        resource_attributes(own, settings.otel_resource_attributes or "", settings.otel_service_name),
        queue_size=settings.queue_size,
        batch_size=settings.batch_size,
        delay_seconds=settings.delay_seconds,
    )


def _judge(result: HttpResult) -> int:
    """The number of spans that were rejected. Raises ExportFailed."""
    if result.is_success:
        return rejected_spans(result.body)
    detail = f"HTTP {result.status}"
    if result.status not in _RETRIED_STATUSES:
        raise ExportFailed("refused", detail, is_final=True)
    given = result.headers.get("retry-after", "")
    raise ExportFailed("refused", detail, float(given) if given.isdigit() else None)
