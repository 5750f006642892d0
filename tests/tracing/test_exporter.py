"""Export to a collector that works, is slow, refuses, or is gone."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess, ExportTraceServiceResponse

from postroad.kernel.backoff import Backoff
from postroad.kernel.configuration import Secret
from postroad.kernel.spans import Span, SpanKind
from postroad.tracing import exporter as exporting
from postroad.tracing import metrics
from postroad.tracing.exporter import SpanExporter, span_exporter
from postroad.tracing.settings import TracingSettings
from tests.certificates import Authority
from tests.subscriptions.receiver import receiving
from tests.tracing.collector import Collector
from tests.waiting import eventually

RESOURCE = {"service.name": "postroad", "service.instance.id": "w1"}


@pytest.fixture(autouse=True)
def _short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "_BACKOFF", Backoff(0.01, 0.02))


def exporter_of(url: str, **settings: object) -> SpanExporter:
    chosen = {"otel_exporter_otlp_endpoint": url, "otel_bsp_schedule_delay": 20, **settings}
    made = span_exporter(TracingSettings(**chosen), RESOURCE)  # type: ignore[arg-type]
    assert made is not None
    return made


def record(exporter: SpanExporter, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        Span(exporter.record, "1" * 32, "", f"span {number}", SpanKind.INTERNAL, {"number": number}).end()


@asynccontextmanager
async def running(exporter: SpanExporter) -> AsyncIterator[SpanExporter]:
    task = asyncio.create_task(exporter.run())
    try:
        yield exporter
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await exporter.flush()


class Drops:
    """Counts of the metric since the start of a test."""

    def __init__(self) -> None:
        self._before = self._read()

    def _read(self) -> dict[str, float]:
        reasons = ("queue_full", "unreachable", "refused", "rejected", "stopped")
        found = {reason: metrics.dropped.labels(reason)._value.get() for reason in reasons}
        return {**found, "exported": metrics.exported._value.get()}

    @property
    def counts(self) -> dict[str, float]:
        return {name: count - self._before[name] for name, count in self._read().items() if count != self._before[name]}

    def are(self, **counts: float) -> bool:
        return self.counts == counts


@pytest.fixture
def drops() -> Drops:
    return Drops()


def numbers(collector: Collector) -> list[int]:
    return sorted(one.attributes["number"] for one in collector.spans)


async def test_few_spans_are_sent_after_the_delay_and_a_full_batch_at_once(collector: Collector, drops: Drops) -> None:
    async with running(exporter_of(collector.url, otel_bsp_max_export_batch_size=10)) as exporter:
        record(exporter, 3)
        await eventually(lambda: len(collector.spans) == 3)
        record(exporter, 25, first=3)
        await eventually(lambda: len(collector.spans) == 28)
    assert numbers(collector) == list(range(28))
    sizes = [len(one.body) for one in collector.receiver.received]
    assert len(sizes) >= 4
    [first, *_] = collector.receiver.received
    assert (first.path, first.headers["content-type"]) == ("/v1/traces", "application/x-protobuf")
    assert {one.resource["service.name"] for one in collector.spans} == {"postroad"}
    assert drops.counts == {"exported": 28}


async def test_a_batch_does_not_wait_for_the_delay(collector: Collector) -> None:
    chosen = {"otel_bsp_max_export_batch_size": 5, "otel_bsp_schedule_delay": 3_600_000}
    async with running(exporter_of(collector.url, **chosen)) as exporter:
        record(exporter, 5)
        await eventually(lambda: len(collector.spans) == 5)


async def test_standard_variables_apply(collector: Collector) -> None:
    exporter = exporter_of(
        "http://127.0.0.1:1",
        otel_exporter_otlp_traces_endpoint=f"{collector.url}/custom?x=1",
        otel_exporter_otlp_headers=Secret("authorization=Bearer%20abc,x-a=1"),
        otel_exporter_otlp_traces_headers=Secret("x-a=2"),
        otel_exporter_otlp_compression="gzip",
        otel_service_name="shop",
        otel_resource_attributes="service.name=other,team=a%2Cb",
    )
    async with running(exporter):
        record(exporter, 1)
        [span] = await eventually(lambda: collector.spans)
    received = collector.receiver.received[0]  # a batch without an answer in time is sent again
    assert received.path == "/custom"
    assert (received.headers["authorization"], received.headers["x-a"]) == ("Bearer abc", "2")
    assert received.headers["content-encoding"] == "gzip"
    assert span.resource == {"service.name": "shop", "service.instance.id": "w1", "team": "a,b"}


async def test_a_full_queue_drops_spans_and_counts_them(collector: Collector, drops: Drops) -> None:
    collector.receiver.hold()
    chosen = {"otel_bsp_max_queue_size": 10, "otel_bsp_max_export_batch_size": 10}
    async with running(exporter_of(collector.url, **chosen)) as exporter:
        record(exporter, 10)
        await eventually(lambda: collector.receiver.in_flight == 1)
        record(exporter, 25, first=10)
        assert exporter.pending == 10
        assert drops.counts == {"queue_full": 15}
        collector.receiver.released.set()
        await eventually(lambda: len(collector.spans) == 20)
    assert numbers(collector) == list(range(20))
    assert drops.counts == {"queue_full": 15, "exported": 20}


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_collector_that_is_busy_gets_the_batch_again(collector: Collector, drops: Drops, status: int) -> None:
    loop, times = asyncio.get_running_loop(), list[float]()

    def answer(_received: object) -> int | tuple[int, dict[str, str], bytes]:
        times.append(loop.time())
        return (status, {"Retry-After": "1"}, b"") if len(times) == 1 else 200

    collector.receiver.answer = answer
    async with running(exporter_of(collector.url)) as exporter:
        record(exporter, 2)
        await eventually(lambda: drops.counts == {"exported": 2})
    assert len(collector.spans) == 2
    assert times[1] - times[0] >= 1  # the backoff of this test is shorter


async def test_a_collector_that_stays_busy_loses_the_batch_not_the_next_one(collector: Collector, drops: Drops) -> None:
    collector.receiver.answer = lambda _received: 503
    async with running(exporter_of(collector.url)) as exporter:
        record(exporter, 2)
        await eventually(lambda: drops.counts == {"refused": 2})
        assert len(collector.receiver.received) == 5
        collector.receiver.answer = lambda _received: 200
        record(exporter, 1)
        await eventually(lambda: drops.counts == {"refused": 2, "exported": 1})


@pytest.mark.parametrize("status", [400, 401, 404, 413, 500, 302])
async def test_a_refused_batch_is_not_repeated(collector: Collector, drops: Drops, status: int) -> None:
    collector.receiver.answer = lambda _received: status
    async with running(exporter_of(collector.url)) as exporter:
        record(exporter, 3)
        await eventually(lambda: drops.counts == {"refused": 3})
    assert len(collector.receiver.received) == 1


async def test_spans_that_the_collector_rejects_are_counted(collector: Collector, drops: Drops) -> None:
    response = ExportTraceServiceResponse(partial_success=ExportTracePartialSuccess(rejected_spans=2, error_message="old"))
    collector.receiver.answer = lambda _received: (200, {}, response.SerializeToString())
    async with running(exporter_of(collector.url)) as exporter:
        record(exporter, 3)
        await eventually(lambda: drops.counts == {"exported": 1, "rejected": 2})


async def test_a_collector_that_is_down_loses_spans_and_gets_later_ones(collector: Collector, drops: Drops) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{unused.getsockname()[1]}"
    async with running(exporter_of(closed)) as exporter:
        record(exporter, 2)
        await eventually(lambda: drops.counts == {"unreachable": 2})
        exporter._collector = exporter_of(collector.url)._collector  # as if it had come back at its address
        record(exporter, 1)
        await eventually(lambda: drops.counts == {"unreachable": 2, "exported": 1})


async def test_a_slow_collector_is_given_up_after_the_timeout(collector: Collector, drops: Drops) -> None:
    collector.receiver.hold()
    async with running(exporter_of(collector.url, otel_exporter_otlp_timeout=300)) as exporter:
        record(exporter, 2)
        await eventually(lambda: drops.counts == {"unreachable": 2})
    assert 1 <= len(collector.receiver.received) <= 5


async def test_the_connection_is_used_again_and_replaced_when_it_is_closed(collector: Collector, drops: Drops) -> None:
    async with running(exporter_of(collector.url)) as exporter:
        for count in range(1, 4):
            record(exporter, 1)
            await eventually(partial(drops.are, exported=count))
            if count == 1:
                first = exporter._collector._connection
            elif count == 2:
                assert exporter._collector._connection is first
                assert first is not None
                first.close()
        assert exporter._collector._connection is not first


async def test_the_last_spans_are_sent_when_the_process_stops(collector: Collector, drops: Drops) -> None:
    exporter = exporter_of(collector.url, otel_bsp_schedule_delay=3_600_000)
    async with running(exporter):
        record(exporter, 600)  # more than a batch
    assert len(collector.spans) == 600
    assert drops.counts == {"exported": 600}


async def test_a_stop_during_a_request_sends_the_batch_again(collector: Collector, drops: Drops) -> None:
    collector.receiver.hold()
    exporter = exporter_of(collector.url)
    task = asyncio.create_task(exporter.run())
    record(exporter, 2)
    await eventually(lambda: collector.receiver.in_flight == 1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert exporter.pending == 2
    collector.receiver.released.set()
    await exporter.flush()
    assert drops.counts == {"exported": 2}


async def test_a_stop_with_a_collector_that_is_gone_loses_and_counts_the_rest(collector: Collector, drops: Drops) -> None:
    collector.receiver.hold()
    exporter = exporter_of(collector.url)
    record(exporter, 2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await exporter.flush()
    assert drops.counts == {"stopped": 2}


async def test_a_collector_with_tls_is_verified_with_the_given_certificate(tmp_path: Path, drops: Drops) -> None:
    authority = Authority(tmp_path)
    authority.issue()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(authority.certificate, authority.key)
    async with receiving(tls) as receiver:
        assert receiver.url.startswith("https://")
        async with running(exporter_of(receiver.url)) as exporter:  # with the certificates of the system
            record(exporter, 1)
            await eventually(lambda: drops.counts == {"unreachable": 1})
        assert not receiver.received
        async with running(exporter_of(receiver.url, otel_exporter_otlp_certificate=authority.ca_file)) as exporter:
            record(exporter, 1)
            await eventually(lambda: drops.counts == {"unreachable": 1, "exported": 1})
        async with running(exporter_of(receiver.url, otel_exporter_otlp_certificate=tmp_path / "missing.pem")) as exporter:
            record(exporter, 1)
            await eventually(lambda: drops.counts == {"unreachable": 2, "exported": 1})
