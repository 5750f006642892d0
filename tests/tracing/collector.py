"""An OpenTelemetry collector that decodes what it receives with the official package."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from postroad.kernel.spans import SpanKind
from tests.subscriptions.receiver import Received, Receiver, receiving


@dataclass(frozen=True, slots=True)
class SeenSpan:
    """A span as the collector sees it, with the attributes of its resource."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: SpanKind
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    is_error: bool
    resource: dict[str, Any]

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-01"


def decode(received: Received) -> list[SeenSpan]:
    """aiohttp has decompressed the body already."""
    request = ExportTraceServiceRequest.FromString(received.body)
    return [
        SeenSpan(
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.name,
            SpanKind(span.kind),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            _attributes(span.attributes),
            tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
            span.status.code == 2,
            _attributes(of_resource.resource.attributes),
        )
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def _attributes(pairs: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        assert isinstance(pair, KeyValue) and isinstance(pair.value, AnyValue)
        assert pair.key not in found
        found[pair.key] = getattr(pair.value, str(pair.value.WhichOneof("value")))
    return found


@dataclass(frozen=True, slots=True)
class Collector:
    receiver: Receiver

    @property
    def url(self) -> str:
        return self.receiver.url

    @property
    def spans(self) -> list[SeenSpan]:
        """Each once: a batch can be sent twice."""
        found = {span.span_id: span for received in self.receiver.received for span in decode(received)}
        return list(found.values())

    def trace(self, trace_id: str) -> list[SeenSpan]:
        return sorted((one for one in self.spans if one.trace_id == trace_id), key=lambda one: one.start_ns)

    def named(self, name: str, tenant: str) -> list[SeenSpan]:
        keys = ("messaging.postroad.tenant", "postroad.tenant")
        return [one for one in self.spans if one.name == name and tenant in [one.attributes.get(key) for key in keys]]


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    async with receiving() as receiver:
        yield Collector(receiver)
