"""Rules of subscriptions: configuration, links and acknowledged offsets."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.stream_subscriptions.subscription_samples import at, record

from postroad.api.stream_subscriptions import OffsetRefused
from postroad.kernel.errors import InvalidParameter
from postroad.kernel.matching import path_glob_matches
from postroad.stream_subscriptions import rules
from postroad.stream_subscriptions.records import Kind, Link
from postroad.stream_subscriptions.rules import BEFORE_FIRST, ZERO, config_of


def config(**changes: Any) -> rules.Config:
    given: dict[str, Any] = {
        "kind": "webhook",
        "pattern": "events/*",
        "streams": (),
        "webhook_url": "https://example.com/hook",
        "wake_stream": None,
        "lease_ttl_ms": 30_000,
        "description": None,
    }
    return config_of(**{**given, **changes})


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("events/*", "events/a", True),
        ("events/*", "events", False),
        ("events/*", "events/a/b", False),
        ("events/**", "events", True),
        ("events/**", "events/a/b/c", True),
        ("**", "anything/at/all", True),
        ("*", "one", True),
        ("*", "one/two", False),
        ("**/log", "log", True),
        ("**/log", "a/b/log", True),
        ("**/log", "a/b/logs", False),
        ("a/**/z", "a/z", True),
        ("a/**/z", "a/b/c/z", True),
        ("a/**/b/**/z", "a/b/b/z", True),
        ("a/*/z", "a/b/z", True),
        ("events/a", "events/a", True),
        ("events/a", "events/b", False),
        ("a/**/*", "a", False),
        ("a/**/*", "a/b", True),
    ],
)
def test_a_pattern_matches_by_segments(pattern: str, path: str, is_match: bool) -> None:
    assert path_glob_matches(pattern, path) is is_match


def _slow_match(pattern: list[str], path: list[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return any(_slow_match(pattern[1:], path[skipped:]) for skipped in range(len(path) + 1))
    return bool(path) and pattern[0] in ("*", path[0]) and _slow_match(pattern[1:], path[1:])


@given(
    st.lists(st.sampled_from(["*", "**", "a", "b"]), min_size=1, max_size=6),
    st.lists(st.sampled_from("ab"), min_size=1, max_size=6),
)
def test_pattern_matching_equals_a_naive_matcher(pattern: list[str], path: list[str]) -> None:
    assert path_glob_matches("/".join(pattern), "/".join(path)) is _slow_match(pattern, path)


def test_a_pathological_pattern_is_matched_quickly() -> None:
    assert not path_glob_matches("/".join(["**", "a"] * 60), "/".join(["a"] * 59 + ["b"]))


def test_equal_configurations_have_the_same_hash() -> None:
    one = config(streams=["b", "/a/", "a"], pattern="/events/*/")
    assert one.streams == ("a", "b")
    assert one.pattern == "events/*"
    assert one.hash == config(streams=["a", "b"]).hash


@pytest.mark.parametrize(
    "changes",
    [
        {"pattern": "events/**"},
        {"streams": ["a"]},
        {"webhook_url": "https://example.com/other"},
        {"lease_ttl_ms": 30_001},
        {"description": "x"},
        {"kind": "pull-wake", "wake_stream": "w"},
    ],
)
def test_different_configurations_have_different_hashes(changes: dict[str, Any]) -> None:
    assert config(**changes).hash != config().hash


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "email"},
        {"pattern": None},
        {"pattern": ""},
        {"lease_ttl_ms": 999},
        {"lease_ttl_ms": 600_001},
        {"webhook_url": None},
        {"kind": "pull-wake"},
        {"kind": "pull-wake", "wake_stream": "w", "streams": ["w"]},
        {"pattern": "a*"},
        {"pattern": "a//b"},
        {"pattern": "x/" * 200 + "x"},
        {"streams": [""]},
        {"streams": ["__ds/x"]},
        {"streams": ["a/../b"]},
        {"streams": ["x" * 300]},
        {"streams": [f"s{n}" for n in range(rules.LINKS_MAX + 1)]},
        {"description": "x" * 1001},
    ],
)
def test_an_invalid_configuration_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter):
        config(**changes)


def test_properties_of_the_other_kind_are_left_out() -> None:
    pull = config(kind="pull-wake", wake_stream="/wake/pool/")
    assert (pull.kind, pull.webhook_url, pull.wake_stream) == (Kind.PULL_WAKE, None, "wake/pool")


@pytest.mark.parametrize("text", ["", "a/b", "a b", "x" * 129, "ä"])
def test_an_invalid_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        rules.subscription_id(text)


# Links


def test_a_matching_stream_is_linked_and_keeps_its_offset() -> None:
    once = rules.link_matching(record(), {"events/a": BEFORE_FIRST})
    assert once.links == {"events/a": Link(BEFORE_FIRST, False, True)}
    assert rules.link_matching(once, {"events/a": at(5)}) == once


def test_a_stream_can_be_named_and_match() -> None:
    both = rules.link_named(rules.link_matching(record(), {"events/a": at(1)}), {"events/a": at(9), "x": ZERO})
    assert both.links == {"events/a": Link(at(1), True, True), "x": Link(ZERO, True, False)}
    assert [both.links[path].kind for path in both.links] == ["explicit", "explicit"]
    less = rules.unlink_named(rules.unlink_named(both, "events/a"), "x")
    assert less.links == {"events/a": Link(at(1), False, True)}
    assert rules.unlink_named(less, "events/a") == less
    assert rules.unlink_named(less, "unknown") == less


def test_a_subscription_is_full_at_its_limit() -> None:
    full = rules.link_named(record(), {f"s{n}": ZERO for n in range(rules.LINKS_MAX)})
    with pytest.raises(InvalidParameter):
        rules.link_named(full, {"one-more": ZERO})
    fuller = rules.link_matching(full, {"events/x": ZERO})
    assert fuller.is_full
    assert fuller.links == full.links


def test_a_deleted_stream_is_unlinked_unless_it_was_named() -> None:
    some = rules.link_named(rules.link_matching(record(), {"events/a": at(1)}), {"b": at(1)})
    assert rules.unlink_deleted(some, ["events/a", "b"]).links == {"b": Link(at(1), True, False)}


def test_a_pattern_does_not_match_the_wake_stream() -> None:
    pull = record(kind=Kind.PULL_WAKE, pattern="**", wake_stream="wake/pool")
    assert rules.matches_pattern(pull, "events/a")
    assert not rules.matches_pattern(pull, "wake/pool")
    with pytest.raises(InvalidParameter):
        rules.link_named(pull, {"wake/pool": ZERO})


# Pending data


def test_data_after_the_acknowledged_offset_is_pending() -> None:
    assert rules.is_pending(Link(at(3)), at(4))
    assert not rules.is_pending(Link(at(4)), at(4))
    assert rules.is_pending(Link(BEFORE_FIRST), at(1))
    assert not rules.is_pending(Link(BEFORE_FIRST), ZERO), "an empty stream has no data"


def test_acks_are_applied_together_or_not_at_all() -> None:
    some = record(links={"a": Link(at(1)), "b": Link(BEFORE_FIRST)})
    tails = {"a": at(5), "b": at(2)}
    moved = rules.acknowledge(some, [("a", at(5)), ("b", at(1))], tails)
    assert [link.acked for link in moved.links.values()] == [at(5), at(1)]
    for bad in [("a", at(0)), ("a", at(6)), ("a", "-1"), ("a", "now"), ("a", ""), ("c", at(1)), ("", at(1))]:
        with pytest.raises(OffsetRefused):
            rules.acknowledge(some, [("b", at(1)), bad], tails)


def test_sent_offsets_are_acknowledged_and_none_decreases() -> None:
    some = record(links={"a": Link(at(1)), "b": Link(at(7)), "c": Link(at(1))})
    after = rules.acknowledge_sent(some, {"a": at(4), "b": at(4)})
    assert [link.acked for link in after.links.values()] == [at(4), at(7), at(1)]
