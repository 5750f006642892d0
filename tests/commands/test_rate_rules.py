"""Rules of rate limits as a model: any w consecutive intervals admit at most w · max + burst, whatever happens."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.commands.rate_rules import (
    Limit,
    RateRecord,
    acquire,
    allowed,
    available,
    current,
    end_ms,
    give_back,
    retry_at_ms,
    ttl_seconds,
)

LIMITS = st.builds(
    Limit,
    st.integers(1, 8),
    st.sampled_from([1000, 2000, 60_000]),
    st.integers(0, 12),
    st.sampled_from([0, 0, 500, 3000]),
    st.sampled_from([0, 0, 1, 3]),
)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["acquire", "acquire", "acquire", "wait", "skew", "return", "crash", "expire"]),
        st.integers(0, 20),
        st.integers(0, 5),
    ),
    max_size=60,
)


def check(admitted: Counter[int], limit: Limit) -> None:
    """The invariant for every run of intervals."""
    if not admitted:
        return
    first, last = min(admitted), max(admitted)
    for start in range(first, last + 1):
        total = 0
        for end in range(start, last + 1):
            total += admitted[end]
            assert total <= (end - start + 1) * limit.max + limit.burst, (start, end, admitted)


@given(LIMITS, STEPS)
def test_any_run_of_intervals_admits_at_most_its_share_and_a_burst(limit: Limit, steps: list[tuple[str, int, int]]) -> None:
    """Requirements 95, 113: acquisitions, clocks that jump, returned tokens, crashed workers, forgotten records."""
    record: RateRecord | None = None
    now, written_at, lifetime = 1_000_000, 0, 0
    admitted: Counter[int] = Counter()  # commands by the interval in which receivers get them
    held: list[int] = []  # intervals of prefetched tokens
    unused: list[int] = []  # intervals of borrowed tokens of commands that were not delivered
    for what, number, more in steps:
        if what == "wait":
            now += number * limit.interval_ms // 4
        elif what == "skew":  # another worker, whose clock is behind
            before = record
            record = acquire(record, limit, now - number * 700, 0).record
            assert before is None or record.interval >= before.interval
        elif what == "return" and (held or unused):
            interval = held.pop() if held else unused.pop()
            record = give_back(record, limit, now, interval, 1) or record
        elif what == "crash":
            held.clear()
        elif what == "expire" and record is not None and now >= written_at + lifetime * 1000:
            record = None  # the engine has removed it
        else:
            got = acquire(record, limit, now, number, prefetch=more, worker="w", prefetch_workers=1)
            assert got.granted + len(got.borrowed) <= number and got.prefetched <= more
            record = got.record
            written_at, lifetime = now, ttl_seconds(record, limit)
            admitted[record.interval] += got.granted
            for at_ms in got.borrowed:
                assert now < at_ms <= end_ms(record) + limit.delay_intervals * limit.interval_ms
                if more == 5:
                    unused.append(at_ms // limit.interval_ms)
                else:
                    admitted[at_ms // limit.interval_ms] += 1
            held += [record.interval] * got.prefetched
            while held and more % 2:  # used in their interval
                interval = held.pop()
                if now < (interval + 1) * limit.interval_ms:
                    admitted[interval] += 1
        check(admitted, limit)


@settings(max_examples=300)
@given(
    st.sampled_from([1000, 60_000]),
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from([0, 0, 3, 12])), min_size=2, max_size=3),
    st.lists(
        st.tuples(
            st.sampled_from(["acquire", "acquire", "wait", "change", "return", "use", "crash"]),
            st.integers(0, 20),
            st.integers(0, 5),
        ),
        max_size=80,
    ),
)
def test_across_changes_a_run_of_intervals_admits_what_the_largest_limit_would(
    interval_ms: int, sizes: list[tuple[int, int]], steps: list[tuple[str, int, int]]
) -> None:
    """Requirements 95, 113: also with tokens that other workers took before the change."""
    limits = [Limit(most, interval_ms, burst) for most, burst in sizes]
    limit, record, now = limits[0], None, 1_000_000
    admitted: Counter[int] = Counter()
    held: list[int] = []
    most = {now // interval_ms: limit.max}  # the largest in effect, by interval
    burst_max = limit.burst
    for what, number, more in steps:
        if what == "wait":
            before, now = now // interval_ms, now + number * interval_ms // 4
            for interval in range(before, now // interval_ms + 1):
                most[interval] = max(most.get(interval, 0), limit.max)
        elif what == "change":
            limit = limits[number % len(limits)]
            most[now // interval_ms] = max(most[now // interval_ms], limit.max)
            burst_max = max(burst_max, limit.burst)
        elif what == "return" and held:
            record = give_back(record, limit, now, held.pop(), 1) or record
        elif what == "use":
            admitted.update(one for one in held if now < (one + 1) * interval_ms)
            held.clear()
        elif what == "crash":
            held.clear()
        elif what == "acquire":
            got = acquire(record, limit, now, number, prefetch=more, worker="w", prefetch_workers=1)
            record = got.record
            admitted[record.interval] += got.granted
            held += [record.interval] * got.prefetched
    for start in admitted:
        for end in range(start, max(admitted) + 1):
            total = sum(admitted[one] for one in range(start, end + 1))
            assert total <= (end - start + 1) * max(most[one] for one in range(start, end + 1)) + burst_max


def test_use_survives_changes_of_the_length_of_intervals() -> None:
    """What an interval has used counts while it lasts, whatever limits there are meanwhile."""
    long, short = Limit(8, 60_000), Limit(2, 1000)
    used = acquire(None, long, 0, 8).record
    assert acquire(used, short, 100, 1).granted == 0
    between = acquire(used, short, 200, 0).record
    assert acquire(between, long, 300, 8).granted == 0
    assert acquire(between, short, 1000, 8).granted == 2


@given(LIMITS, LIMITS, STEPS, STEPS)
def test_after_a_change_the_new_limit_holds(
    before: Limit, after: Limit, first: list[tuple[str, int, int]], then: list[tuple[str, int, int]]
) -> None:
    record: RateRecord | None = None
    now = 1_000_000
    for _, number, _more in first:
        record = acquire(record, before, now, number).record
        now += number * 97
    debt = record.debt if record is not None else 0
    admitted: Counter[int] = Counter()
    for what, number, _more in then:
        if what == "wait":
            now += number * after.interval_ms // 4
            continue
        got = acquire(record, after, now, number)
        assert record is None or got.record.interval * got.record.interval_ms + after.interval_ms > record.interval
        record = got.record
        admitted[record.interval] += got.granted
        for at_ms in got.borrowed:
            admitted[at_ms // after.interval_ms] += 1
        if not debt:
            check(admitted, after)


@given(LIMITS, st.lists(st.integers(0, 30), min_size=1, max_size=20))
def test_demand_above_the_limit_gets_exactly_the_limit(limit: Limit, extra: list[int]) -> None:
    """No interval admits less than `max` if that much is wanted."""
    limit = Limit(limit.max, limit.interval_ms, 0)
    record: RateRecord | None = None
    for number, more in enumerate(extra):
        got = acquire(record, limit, number * limit.interval_ms, limit.max + more)
        assert got.granted == limit.max
        record = got.record


def test_unused_tokens_are_carried_over_up_to_the_burst() -> None:
    limit = Limit(10, 1000, 15)
    record = acquire(None, limit, 0, 25).record  # a new record has a whole burst
    assert acquire(record, limit, 999, 1).granted == 0
    record = acquire(record, limit, 1000, 4).record
    assert allowed(current(record, limit, 2000), limit) == 16
    assert allowed(current(record, limit, 3000), limit) == 25
    assert acquire(record, limit, 9000, 100).granted == 25


def test_borrowed_tokens_are_delivered_when_they_are_repaid() -> None:
    limit = Limit(2, 1000, 0, 0, 2)
    got = acquire(None, limit, 500, 7)
    assert (got.granted, got.borrowed) == (2, (1000, 1000, 2000, 2000))
    assert available(current(got.record, limit, 1000), limit) == 0
    assert acquire(got.record, limit, 1100, 3).borrowed == (3000, 3000)
    assert acquire(got.record, limit, 3000, 3).granted == 2


def test_a_borrowed_token_returns_to_the_interval_that_repays_it() -> None:
    limit = Limit(2, 1000, 0, 0, 2)
    record = acquire(None, limit, 500, 5).record  # of which three are borrowed
    assert give_back(record, limit, 900, 1, 1) is None, "not before"
    returned = give_back(record, limit, 1100, 1, 1)
    assert returned is not None and available(returned, limit) == 1
    assert give_back(record, limit, 2100, 1, 1) is None, "not after"


def test_a_cooldown_refuses_after_the_limit_was_exhausted() -> None:
    limit = Limit(1, 1000, 0, 5000)
    first = acquire(None, limit, 0, 1)
    assert first.record.cooldown_until_ms == 0
    second = acquire(first.record, limit, 100, 1)
    assert (second.granted, second.record.cooldown_until_ms) == (0, 5100)
    assert acquire(second.record, limit, 5099, 1).granted == 0
    assert retry_at_ms(second.record, limit, 200) == 5100
    assert acquire(second.record, limit, 5100, 1).granted == 1


def test_a_few_workers_prefetch_in_a_second() -> None:
    """Requirements 109, 111"""
    limit, record = Limit(1000, 10_000), None
    taken = []
    for worker in "abcab":
        got = acquire(record, limit, 100, 0, prefetch=5, worker=worker, prefetch_workers=2)
        record = got.record
        taken.append(got.prefetched)
    assert taken == [5, 5, 0, 5, 5]
    later = acquire(record, limit, 1100, 0, prefetch=5, worker="c", prefetch_workers=2)
    assert later.prefetched == 5 and later.record.prefetchers == (("c", 1),)


def test_waiting_commands_precede_the_prefetch() -> None:
    got = acquire(None, Limit(5, 1000), 0, 4, prefetch=10, worker="a", prefetch_workers=5)
    assert (got.granted, got.prefetched) == (4, 1)


@pytest.mark.parametrize("interval", [1, 3])
def test_tokens_of_another_interval_cannot_be_returned(interval: int) -> None:
    limit = Limit(5, 1000)
    record = acquire(None, limit, 2000, 3).record
    assert give_back(record, limit, 2500, interval, 1) is None
    returned = give_back(record, limit, 2500, 2, 2)
    assert returned is not None and returned.used == 1
