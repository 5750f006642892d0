"""The encoding, decoded with opentelemetry-proto."""

from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from postroad.kernel.spans import Attribute, Span, SpanContext, SpanKind
from postroad.tracing.otlp import encode_span, export_request, rejected_spans
from tests.subscriptions.receiver import Received
from tests.tracing.collector import decode

TEXTS = st.text(max_size=300)
HEX = "0123456789abcdef"
CONTEXTS = st.builds(SpanContext, st.text(HEX, min_size=32, max_size=32), st.text(HEX, min_size=16, max_size=16), st.booleans())
VALUES: st.SearchStrategy[Attribute] = st.one_of(
    TEXTS, st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False)
)


@given(
    context=CONTEXTS,
    has_parent=st.booleans(),
    name=TEXTS,
    kind=st.sampled_from(SpanKind),
    attributes=st.dictionaries(TEXTS.filter(lambda name: name != "error.type"), VALUES, max_size=20),
    links=st.lists(CONTEXTS, max_size=4),
    times=st.tuples(st.integers(1, 2**64 - 1), st.integers(1, 2**64 - 1)),
    error=st.sampled_from(["", "engine-full"]),
    resource=st.dictionaries(TEXTS, TEXTS, max_size=4),
    copies=st.integers(1, 3),
)
def test_a_request_is_what_the_official_package_reads(
    context: SpanContext,
    has_parent: bool,
    name: str,
    kind: SpanKind,
    attributes: dict[str, Attribute],
    links: list[SpanContext],
    times: tuple[int, int],
    error: str,
    resource: dict[str, Attribute],
    copies: int,
) -> None:
    parent = context.span_id if has_parent else ""
    span = Span(lambda _span: None, context.trace_id, parent, name, kind, attributes, links, times[0])
    span.end_ns, span.error = times[1], error
    body = export_request(resource, "1.2.3", [encode_span(span)] * copies)
    [seen, *others] = decode(Received("/", {}, body))
    assert others == [seen] * (copies - 1)
    assert (seen.trace_id, seen.span_id, seen.parent_id) == (context.trace_id, span.span_id, parent)
    assert (seen.name, seen.kind, seen.start_ns, seen.end_ns) == (name, kind, *times)
    assert seen.attributes == (attributes | {"error.type": error} if error else attributes)
    assert {name: type(value) for name, value in seen.attributes.items()} == {
        name: type(value) for name, value in (attributes | ({"error.type": error} if error else {})).items()
    }
    assert seen.links == tuple((one.trace_id, one.span_id) for one in links)
    assert (seen.is_error, seen.resource) == (bool(error), resource)


def test_a_request_names_its_scope() -> None:
    request = ExportTraceServiceRequest.FromString(export_request({}, "1.2.3", []))
    scope = request.resource_spans[0].scope_spans[0].scope
    assert (scope.name, scope.version) == ("postroad", "1.2.3")


@given(st.integers(0, 2**40), st.text(max_size=200))
def test_a_response_says_how_many_spans_were_rejected(count: int, message: str) -> None:
    partial = ExportTracePartialSuccess(rejected_spans=count, error_message=message)
    response = ExportTraceServiceResponse(partial_success=partial)
    assert rejected_spans(response.SerializeToString()) == count


@given(st.binary(max_size=50))
def test_a_malformed_response_rejects_nothing_unusual(body: bytes) -> None:
    assert isinstance(rejected_spans(body), int)


def test_an_empty_response_rejects_nothing() -> None:
    assert rejected_spans(b"") == 0


def test_equal_values_of_different_types_stay_different() -> None:
    """Repeated attributes are encoded once, and True equals 1 and 1.0."""
    values: list[Attribute] = [True, 1, 1.0]
    spans = [Span(lambda _span: None, "1" * 32, "", "x", SpanKind.CLIENT, {"value": value}) for value in values]
    seen = decode(Received("/", {}, export_request({}, "1", [encode_span(one) for one in spans])))
    assert [type(one.attributes["value"]) for one in seen] == [bool, int, float]
