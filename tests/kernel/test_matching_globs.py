import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroad.kernel.identity import Caller, resource_restrictions
from postroad.kernel.matching import glob_matches

characters = st.sampled_from(["a", "b", ".", "-", "é", "[", "?", "\\", "^", "$", "\n"])
names = st.text(characters, max_size=8)
globs = st.text(characters | st.just("*"), max_size=8)


def _matches_as_a_regex(wanted: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, wanted.split("*"))), name, re.DOTALL) is not None


@given(globs, names)
@example("a*a", "a")
@example("a*b*", "ab")
@example("*ab*b", "ab")
@example("**", "")
@example("", "")
def test_a_glob_matches_like_the_equivalent_regex(wanted: str, name: str) -> None:
    assert glob_matches(wanted, name) == _matches_as_a_regex(wanted, name)


@given(st.lists(names, min_size=2, max_size=5), st.lists(names, min_size=4, max_size=4))
def test_a_glob_matches_any_text_in_place_of_stars(parts: list[str], fillings: list[str]) -> None:
    name = "".join(part + filling for part, filling in zip(parts, [*fillings[: len(parts) - 1], ""], strict=True))
    assert glob_matches("*".join(parts), name)


@given(names)
def test_a_glob_without_a_star_matches_its_own_name_only(name: str) -> None:
    assert glob_matches(name, name)
    assert not glob_matches(name, name + "a") and not glob_matches(name, "b" + name)


@given(names)
def test_a_star_matches_everything(name: str) -> None:
    assert glob_matches("*", name) and glob_matches("**", name)


@pytest.mark.parametrize(
    ("wanted", "name", "expected"),
    [
        ("orders.*", "orders.eu", True),
        ("orders.*", "orders.eu.west", True),
        ("orders.*", "orders", False),
        ("orders.*", "reorders.eu", False),
        ("orders.*", "Orders.eu", False),
        ("*.eu", "orders.eu", True),
        ("*.eu", "orders.eu2", False),
        ("orders?", "orders1", False),
        ("orders[1]", "orders1", False),
    ],
)
def test_examples_of_globs(wanted: str, name: str, expected: bool) -> None:
    assert glob_matches(wanted, name) is expected


def test_matching_time_is_bounded() -> None:
    """A backtracking regex would take exponential time, and the test would time out."""
    assert not glob_matches("*a" * 60 + "*b", "a" * 80)
    assert not glob_matches("*a" * 10_000, "a" * 9_999)


# What callers make of them


def test_an_unrestricted_caller_may_use_everything() -> None:
    assert Caller("t", "k", frozenset()).may_use("queue", "x")
    assert resource_restrictions(queue=("*",), topic=("a", "*")) is None


def test_a_restricted_caller_may_use_names_that_match_one_of_its_globs() -> None:
    caller = Caller("t", "k", frozenset(), allowed=resource_restrictions(queue=("a.*", "b"), topic=("*",), stream=()))
    assert [caller.may_use("queue", name) for name in ("a.1", "b", "c", "")] == [True, True, False, False]
    assert caller.may_use("topic", "anything") and not caller.may_use("stream", "anything")


def test_a_caller_for_one_stream_may_use_that_stream_only() -> None:
    caller = Caller("t", "k", frozenset(), only_stream="s*")
    assert caller.may_use("stream", "s*")
    assert not caller.may_use("stream", "s1") and not caller.may_use("queue", "s*")
