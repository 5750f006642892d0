"""Rules of load tests."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.api.loadtests import LoadTestLimits, NewLoadTest
from postroad.kernel.errors import BodyInvalid
from postroad.loadtests.rules import (
    LatencyHistogram,
    Measurement,
    Schedule,
    check_wanted,
    percentile,
    publish_body,
    pull_size,
    queue_of,
    rate_of,
)
from postroad.loadtests.settings import is_enabled

LIMITS = LoadTestLimits(enabled=True, rate_per_second=1000, seconds=60, publishers=16, consumers=8, payload_bytes=32_768)


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (NewLoadTest(rate_per_second=1001), "$.ratePerSecond"),
        (NewLoadTest(seconds=61), "$.seconds"),
        (NewLoadTest(publishers=17), "$.publishers"),
        (NewLoadTest(consumers=9), "$.consumers"),
        (NewLoadTest(queue="orders", consumers=1), "$.consumers"),
    ],
)
def test_the_field_over_a_limit_is_named(wanted: NewLoadTest, field: str) -> None:
    with pytest.raises(BodyInvalid) as refused:
        check_wanted(wanted, LIMITS)
    assert refused.value.extra["errors"][0]["path"] == field  # type: ignore[index]


def test_what_is_within_the_limits_is_accepted() -> None:
    check_wanted(NewLoadTest(rate_per_second=1000, seconds=60, publishers=16, consumers=8), LIMITS)
    check_wanted(NewLoadTest(queue="orders", consumers=0), LIMITS)


def test_without_a_rate_the_limit_applies() -> None:
    assert rate_of(NewLoadTest(), LIMITS) == 1000
    assert rate_of(NewLoadTest(rate_per_second=5), LIMITS) == 5


def test_a_test_without_a_queue_has_its_own() -> None:
    assert queue_of(NewLoadTest(queue="orders"), "0199-abc") == "orders"
    assert queue_of(NewLoadTest(), "01999999-aaaa-7bbb-8ccc-0123456789ab") == "loadtest-0123456789ab"


@given(st.integers(64, 32_768))
def test_payloads_have_the_wanted_size(size: int) -> None:
    body = msgspec.json.decode(publish_body("01999999-aaaa-7bbb-8ccc-0123456789ab", size), type=dict[str, msgspec.Raw])
    assert len(bytes(body["payload"])) == max(size, 64)
    assert pull_size(size) * (size + 500) <= 48 * 1024


@given(st.integers(1, 2000), st.integers(1, 5))
def test_a_schedule_spreads_its_messages_evenly(rate: int, seconds: int) -> None:
    schedule, due = Schedule(rate, seconds), list[float]()
    while (at := schedule.take()) is not None:
        due.append(at)
    assert len(due) == rate * seconds
    assert due == sorted(due) and due[0] == 0 and due[-1] < seconds
    for second in range(seconds):
        assert sum(second <= at < second + 1 for at in due) == rate


@given(st.lists(st.floats(0.02, 60_000), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
def test_percentiles(values: list[float], share: float) -> None:
    ordered = sorted(values)
    exact = percentile(ordered, share)
    assert exact is not None
    assert sum(one <= exact for one in ordered) >= math.ceil(len(ordered) * share)
    histogram = LatencyHistogram()
    for value in values:
        histogram.add(value)
    found = histogram.percentile(share)
    assert found is not None
    assert exact - 0.006 <= found <= exact * 1.024 + 0.006
    assert histogram.max_ms == round(ordered[-1], 2)


def test_nothing_has_no_percentile() -> None:
    assert percentile([], 0.5) is None
    assert LatencyHistogram().percentile(0.5) is None


def test_a_point_has_what_was_reported_since_the_last_one() -> None:
    measurement = Measurement()
    for latency in (1.0, 2.0, 3.0):
        measurement.add_published(latency)
    measurement.add_consumed(2)
    measurement.add_error("overloaded")
    first = measurement.end_second(0, 3, 1)
    assert (first.published, first.consumed, first.errors, first.p50_ms, first.p99_ms) == (3, 2, 1, 2.0, 3.0)
    measurement.add_consumed(1)
    second = measurement.end_second(1, 0, 0)
    assert (second.published, second.consumed, second.errors, second.p50_ms, second.requested) == (0, 1, 0, None, 0)
    totals = measurement.totals(2)
    assert (totals.published, totals.consumed, totals.errors, totals.per_second) == (3, 3, {"overloaded": 1}, 1.5)


@pytest.mark.parametrize(
    ("mode", "host", "expected"),
    [
        ("auto", "127.0.0.1", True),
        ("auto", "::1", True),
        ("auto", "localhost", True),
        ("auto", "0.0.0.0", False),  # compared, not bound
        ("auto", "10.0.0.1", False),
        ("auto", "mq.example.com", False),
        ("on", "10.0.0.1", True),
        ("off", "127.0.0.1", False),
    ],
)
def test_tests_are_on_by_themselves_on_loopback_only(mode: str, host: str, expected: bool) -> None:
    assert is_enabled(mode, host) is expected
