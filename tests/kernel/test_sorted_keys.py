"""An ordered set of keys, compared with a plain set that is sorted for each question."""

import random
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from postroad.kernel import sorted_keys
from postroad.kernel.sorted_keys import SortedKeys

texts = st.text("ab.-z", max_size=4)
keys = st.text("ab.-z", min_size=1, max_size=4)


def _assert_same(found: SortedKeys, expected: set[str], prefix: str, after: str) -> None:
    assert len(found) == len(expected)
    assert list(found.under()) == sorted(expected)
    assert list(found.under(prefix)) == sorted(key for key in expected if key.startswith(prefix))
    assert list(found.under(prefix, after)) == sorted(key for key in expected if key.startswith(prefix) and key > after)
    assert found.count_under(prefix) == sum(key.startswith(prefix) for key in expected)


@given(st.lists(st.tuples(st.booleans(), keys), max_size=80), texts, texts)
def test_it_answers_like_a_set_that_is_sorted(changes: list[tuple[bool, str]], prefix: str, after: str) -> None:
    found, expected = SortedKeys(), set[str]()
    with mock.patch.object(sorted_keys, "_BLOCK_MAX", 4):
        for is_added, key in changes:
            (found.add if is_added else found.discard)(key)
            (expected.add if is_added else expected.discard)(key)
            _assert_same(found, expected, prefix, after)


def test_many_keys_in_blocks_of_the_real_size() -> None:
    drawn = random.Random(3)
    found, expected = SortedKeys(), set[str]()
    for _ in range(20_000):
        key = f"t{drawn.randrange(50)}.{drawn.randrange(1000)}"
        found.add(key)
        expected.add(key)
    for key in drawn.sample(sorted(expected), 5_000):
        found.discard(key)
        expected.discard(key)
    for prefix in ("", "t", "t7.", "t49.99", "x"):
        _assert_same(found, expected, prefix, "t30.5")


def test_keys_may_change_while_they_are_listed() -> None:
    found = SortedKeys()
    for number in range(5_000):
        found.add(f"k{number:04}")
    listed = []
    for key in found.under("k"):
        listed.append(key)
        found.discard(key)
    assert listed == [f"k{number:04}" for number in range(5_000)] and len(found) == 0
