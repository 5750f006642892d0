"""Rules of fair queues."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.queues.fairness import (
    QUIET_MAX,
    QUIET_MIN,
    READY_MAX,
    READY_MIN,
    READY_SHARED,
    GroupLoad,
    MovedMessages,
    MoveRecord,
    ReadyTarget,
    Turns,
    decode_moved,
    encode_moved,
    exceeds_equal_share,
    exceeds_share,
)


def test_a_group_exceeds_its_share_above_thirty_messages_and_a_tenth_of_the_queue() -> None:
    assert not exceeds_share(QUIET_MAX, QUIET_MAX)
    assert exceeds_share(QUIET_MAX + 1, QUIET_MAX + 1)
    assert not exceeds_share(100, 1000)
    assert exceeds_share(101, 1000)


def test_many_groups_share_what_is_leased_and_next() -> None:
    assert not exceeds_equal_share(QUIET_MIN, 0, 1000), "never deferred"
    assert exceeds_equal_share(QUIET_MIN + 1, 0, 1000)
    assert exceeds_equal_share(READY_SHARED // 4 + 1, 0, 4) and not exceeds_equal_share(READY_SHARED // 4, 0, 4)
    assert not exceeds_equal_share(50, 1000, 20), "consumers have as many of each"


@pytest.mark.parametrize("groups", [3, 20, 100])
def test_groups_that_publish_at_once_leave_few_messages_in_front(groups: int) -> None:
    load, stored = GroupLoad(), 0
    for number in range(50 * groups):
        group = str(number % groups)
        if not exceeds_equal_share(load.count(group) + 1, 0, load.crowded):
            load.add(group)
            stored += 1
    assert stored <= max(READY_SHARED, QUIET_MIN * groups) + 2 * groups


def load_of(*sequences: int, group: str = "a") -> GroupLoad:
    load = GroupLoad()
    for sequence in sequences:
        load.add(group)
        load.stored(group, sequence)
    return load


def test_messages_count_until_they_are_settled() -> None:
    load = load_of(1, 2, 3)
    load.refresh({"normal": 2}, lambda sequence: sequence == 2, 0)
    assert load.count("a") == 2, "1 is settled, 2 is leased, 3 is ready"
    load.refresh({"normal": 3}, lambda _: False, 0)
    assert load.count("a") == 0


def test_a_lease_that_becomes_known_later_counts_again() -> None:
    load = load_of(1)
    load.refresh({"normal": 1}, lambda _: False, 0)
    assert load.count("a") == 0
    load.refresh({"normal": 1}, lambda _: True, 500)
    assert load.count("a") == 1
    load.refresh({"normal": 1}, lambda _: False, 1500)
    load.refresh({"normal": 1}, lambda _: True, 1600)
    assert load.count("a") == 0, "after a second it is forgotten"


def test_each_priority_has_a_position_of_its_own() -> None:
    load = load_of(5)
    load.add("a")
    load.stored("a", 4, "high")
    load.refresh({"normal": 0, "high": 4}, lambda _: False, 0)
    assert load.count("a") == 1


def test_delayed_messages_count_until_they_are_due() -> None:
    load = GroupLoad()
    load.add("a")
    load.delayed("a", 10_000)
    load.refresh({"normal": 99}, lambda _: False, 9_000)
    assert (load.count("a"), load.due) == (1, 0)
    load.refresh({"normal": 99}, lambda _: False, 11_000)
    assert (load.count("a"), load.due) == (0, 0)


def test_messages_for_later_do_not_crowd_the_present_ones() -> None:
    load = GroupLoad()
    for number in range(QUIET_MIN + 2):
        load.add("a")
        load.delayed("a", 10_000 + number)
    assert (load.count("a"), load.due_of("a"), load.crowded) == (QUIET_MIN + 2, 0, 0)
    for sequence in range(1, QUIET_MIN + 2):
        load.add("a")
        load.stored("a", sequence)
    assert (load.due_of("a"), load.crowded) == (QUIET_MIN + 1, 1)
    load.refresh({"normal": 99}, lambda _: False, 99_000)
    assert (load.count("a"), load.due_of("a"), load.due, load.crowded) == (0, 0, 0, 0)


def test_the_number_of_remembered_messages_is_limited() -> None:
    load = load_of(*range(1, 10_000))
    assert load.count("a") == 4096
    for sequence in range(10_000, 15_000):
        load.add("b")
        load.stored("b", sequence)
    assert load.count("a") == 0
    load.refresh({"normal": 20_000}, lambda _: True, 0)
    assert load.count("b") <= 4096


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(0, 4)), max_size=60))
def test_counts_are_those_of_a_naive_model(messages: list[tuple[str, int, int]]) -> None:
    """Each message is delivered at some step, with all before it, and settled as many steps later."""
    load, delivered_at, earliest = GroupLoad(), [], 0
    for sequence, (group, step, _) in enumerate(messages, 1):
        load.add(group)
        load.stored(group, sequence)
        earliest = max(earliest, step)
        delivered_at.append(earliest)
    for step in range(10):
        delivered = sum(1 for one in delivered_at if one <= step)
        held = {n for n in range(1, delivered + 1) if step < delivered_at[n - 1] + messages[n - 1][2]}
        load.refresh({"normal": delivered}, held.__contains__, step)
        naive = Counter(group for n, (group, _, _) in enumerate(messages, 1) if n > delivered or n in held)
        assert {group: load.count(group) for group in "abc"} == {group: naive[group] for group in "abc"}
        assert load.crowded == sum(1 for count in naive.values() if count > QUIET_MIN)
        assert load.due == naive.total()


def test_the_target_follows_the_rate_of_consumers() -> None:
    target, taken, now = ReadyTarget(), 0, 0.0
    ready = 0
    for _ in range(200):
        ready += target.budget(ready, taken, now)
        now += 0.015
        step = min(ready, 24)  # 1,600 a second
        ready, taken = ready - step, taken + step
    assert 80 <= ready + target.budget(ready, taken, now) <= 160, "about 75 ms of it"


def test_consumers_that_find_nothing_get_more() -> None:
    target, taken, now, ready = ReadyTarget(), 0, 0.0, 0
    moved = []
    for _ in range(12):
        budget = target.budget(ready, taken, now)
        moved.append(budget)
        taken, now = taken + budget, now + 0.015
    assert moved[0] == READY_MIN
    assert moved[-1] > 10 * moved[0]
    assert max(moved) <= READY_MAX


def test_without_consumers_little_is_moved() -> None:
    target = ReadyTarget()
    assert target.budget(0, 5, 0.0) == READY_MIN
    assert target.budget(READY_MIN, 5, 1.0) == 0


def test_quiet_groups_that_keep_consumers_busy_leave_a_tenth_to_others() -> None:
    target = ReadyTarget()
    target.budget(5000, 0, 0.0)
    assert target.budget(5000, 100, 0.1) == 10


@given(st.integers(1, 12), st.lists(st.integers(0, 40), min_size=1, max_size=40))
def test_turns_are_equal(groups: int, budgets: list[int]) -> None:
    turns, given_to = Turns(), Counter[str]()
    turns.add(str(one) for one in range(groups))
    for budget in budgets:
        chosen = turns.next(budget)
        assert sum(chosen.values()) == budget
        given_to.update(chosen)
    counts = [given_to[str(one)] for one in range(groups)]
    assert max(counts) - min(counts) <= 1


def test_a_group_is_added_once_and_removed() -> None:
    turns = Turns()
    turns.add(["a", "b", "a"])
    turns.remove("a")
    turns.remove("a")
    assert list(turns) == ["b"]
    assert turns.next(5) == {"b": 5}


sequences = st.lists(st.integers(1, 1000), min_size=1, max_size=5).map(sorted)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.dictionaries(st.sampled_from("ab"), sequences), st.sets(st.sampled_from("ab"))), max_size=5))
def test_the_record_has_what_was_moved_and_is_not_removed(steps: list[tuple[dict[str, list[int]], set[str]]]) -> None:
    record, moved = MoveRecord(), dict[str, list[int]]()
    for moves, removed in steps:
        record = decode_moved(encode_moved(record.with_moved(moves, removed)))
        moved = {token: some for token, some in moved.items() if token not in removed}
        for token, some in moves.items():
            moved[token] = [*moved.get(token, []), *some]
        assert record.moved == {token: MovedMessages(some[-1], len(some)) for token, some in moved.items()}
    for token in "ab":
        last = moved[token][-1] if token in moved else 0
        assert record.is_moved(token, last) == bool(last)
        assert not record.is_moved(token, last + 1)
