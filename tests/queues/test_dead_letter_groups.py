"""Groups of dead letters by cause, and their distribution over time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.queues.dead_letter_groups import GroupedLetter, error_group, groups_of, histogram_of


@pytest.mark.parametrize(
    ("error", "group"),
    [
        ("HTTP 500 from crm", "HTTP # from crm"),
        ("no template order-shipped.17", "no template order-shipped.#"),
        ("job 0192f0a1-7b1c-7d3e-8a4b-1234567890ab failed", "job # failed"),
        ("trace 4bf92f3577b34da6a3ce929d0e0e4736", "trace #"),
        ("connect to 10.0.0.17:5432 timed out after 30.5 s", "connect to # timed out after # s"),
        ("customer cus_9fK2mQ7xT1bZ4wPd not found", "customer # not found"),
        ("facade decade", "facade decade"),
        ("maxAttempts reached", "maxAttempts reached"),
        ("", ""),
    ],
)
def test_digits_and_ids_make_no_difference(error: str, group: str) -> None:
    assert error_group(error) == group


def letter(group: str | None, at: int, name: str = "m") -> GroupedLetter:
    return GroupedLetter(group, at, name, f"{group} at {at}")


def test_the_largest_group_is_first_and_has_its_newest_sample() -> None:
    groups, others, histogram = groups_of([letter("a", 5_000, "m1"), letter("b", 1_000), letter("a", 3_000), letter(None, 2_000)])
    assert [(one.group, one.count) for one in groups] == [("a", 2), (None, 1), ("b", 1)]
    assert (groups[0].sample_id, groups[0].sample) == ("m1", "a at 5000")
    assert (groups[0].first_at, groups[0].last_at) == ("1970-01-01T00:00:03.000Z", "1970-01-01T00:00:05.000Z")
    assert others == 0
    assert (histogram.start, histogram.bucket_ms, histogram.counts) == ("1970-01-01T00:00:01.000Z", 1000, [1, 1, 1, 0, 1])
    assert groups[0].counts == [0, 0, 1, 0, 1]


def test_many_groups_are_limited_and_the_others_counted() -> None:
    groups, others, _ = groups_of([letter(str(number), number) for number in range(250)])
    assert (len(groups), others) == (200, 50)


times = st.lists(st.integers(0, 4_000_000_000_000), max_size=50)


@given(times)
def test_a_histogram_counts_each_time_in_few_intervals(some: list[int]) -> None:
    histogram = histogram_of(some)
    assert sum(histogram.counts) == len(some) and len(histogram.counts) <= 62
    assert (histogram.start is None) == (not some)
    if some:
        assert histogram.counts[0] and histogram.counts[-1], "it begins and ends with a count"
