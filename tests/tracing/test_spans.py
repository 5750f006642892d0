"""Traceparents, samplers, spans."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.kernel.errors import EngineFull
from postroad.kernel.spans import Sampler, Span, SpanContext, SpanKind, Tracer, current_span, log_fields, parse_traceparent
from postroad.tracing.settings import parse_sampler

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ALL, NONE = 1 << 64, 0


def recording(sampler: Sampler) -> tuple[Tracer, list[Span]]:
    spans: list[Span] = []
    return Tracer(sampler, spans.append), spans


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_a_context_is_the_same_after_a_round_trip(trace: int, span: int, is_sampled: bool) -> None:
    context = SpanContext(f"{trace:032x}", f"{span:016x}", is_sampled)
    assert parse_traceparent(context.traceparent) == context


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"01-{TRACE}-{PARENT}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}-1",
    ],
)
def test_a_malformed_traceparent_is_no_context(text: str | None) -> None:
    assert parse_traceparent(text) is None


@pytest.mark.parametrize(("flags", "is_sampled"), [("01", True), ("00", False), ("03", True), ("02", False), ("ff", True)])
def test_only_the_lowest_flag_says_that_a_trace_is_sampled(flags: str, is_sampled: bool) -> None:
    found = parse_traceparent(f"00-{TRACE}-{PARENT}-{flags}")
    assert found is not None and found.is_sampled is is_sampled


@pytest.mark.parametrize(
    ("name", "sampled", "unsampled", "root"),
    [
        ("always_on", True, True, True),
        ("always_off", False, False, False),
        ("parentbased_always_on", True, False, True),
        ("parentbased_always_off", True, False, False),
        ("parentbased_traceidratio", True, False, False),  # with a ratio of 0
        ("traceidratio", False, False, False),
    ],
)
def test_samplers_decide_by_the_parent_or_themselves(name: str, sampled: bool, unsampled: bool, root: bool) -> None:
    tracer, _ = recording(parse_sampler(name, 0.0))
    begun = [
        tracer.begin(traceparent, "x", SpanKind.SERVER) is not None
        for traceparent in (f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00", None)
    ]
    assert begun == [sampled, unsampled, root]
    assert (tracer.sampled_context(f"00-{TRACE}-{PARENT}-01") is not None) is sampled
    assert tracer.sampled_context(None) is None


@given(st.floats(0, 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_a_ratio_decides_alike_in_every_process(ratio: float, high: int, low: int) -> None:
    """By the id of the trace alone, as the SDKs of OpenTelemetry do."""
    context = SpanContext(f"{high:016x}{low:016x}", PARENT, False)
    assert parse_sampler("traceidratio", ratio).samples(context) is (low < round(ratio * 2**64))


def test_a_ratio_samples_its_share_of_new_traces() -> None:
    tracer, _ = recording(parse_sampler("parentbased_traceidratio", 0.1))
    begun = [tracer.begin(None, "x", SpanKind.SERVER) for _ in range(20_000)]
    spans = [one for one in begun if one is not None]
    assert 1600 < len(spans) < 2400  # nine standard deviations
    assert len({one.trace_id for one in spans}) == len(spans)
    assert all(int(one.trace_id[16:], 16) < 2**64 // 10 + 1 for one in spans)  # others sample them, too


def test_a_child_belongs_to_the_trace_and_is_recorded_once() -> None:
    tracer, spans = recording(Sampler(True, ALL))
    parent = tracer.begin(f"00-{TRACE}-{PARENT}-01", "request", SpanKind.SERVER)
    assert parent is not None
    with parent.child("publish q", SpanKind.PRODUCER, {"a": 1}) as child:
        assert not spans
    child.end("late")
    assert spans == [child]
    assert (child.trace_id, child.parent_id, parent.parent_id) == (TRACE, parent.span_id, PARENT)
    assert (child.error, child.end_ns >= child.start_ns) == ("", True)
    assert child.traceparent == child.context.traceparent


def test_a_failure_is_named_by_its_code() -> None:
    tracer, spans = recording(Sampler(True, ALL))
    span = tracer.begin(None, "x", SpanKind.SERVER)
    assert span is not None
    with pytest.raises(EngineFull), span:
        raise EngineFull("full")
    other = span.child("y", SpanKind.CLIENT, {})
    other.end(KeyError("x"))
    assert [one.error for one in spans] == [EngineFull.code, "KeyError"]


def test_log_lines_have_the_present_span_until_it_ends() -> None:
    tracer, _ = recording(Sampler(True, ALL))
    assert log_fields() == {}
    span = tracer.begin(None, "x", SpanKind.SERVER)
    assert span is not None
    token = current_span.set(span)
    try:
        assert log_fields() == {"trace_id": span.trace_id, "span_id": span.span_id}
        span.end()
        assert log_fields() == {}
    finally:
        current_span.reset(token)
