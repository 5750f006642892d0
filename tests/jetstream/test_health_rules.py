from hypothesis import given
from hypothesis import strategies as st

from postroad.jetstream.health_rules import ServerHealth, eligible_servers, next_server

# Suspicion and moves


def test_one_failed_probe_is_tolerated_and_two_in_a_row_make_a_server_suspect() -> None:
    once = ServerHealth().failed("no answer")
    twice = once.failed("no responders")
    assert (once.is_suspect, once.is_move_due(0)) == (False, False)
    assert (twice.is_suspect, twice.is_move_due(0), twice.cause) == (True, True, "no responders")


def test_a_process_that_has_moved_stays_suspect_until_a_probe_succeeds_and_moves_again_after_a_pause() -> None:
    moved = ServerHealth().failed("no answer").failed("no answer").moved(100.0, 0.5)
    assert moved.is_suspect
    assert not moved.is_move_due(102.9)
    assert moved.is_move_due(103.0)


def test_moves_that_do_not_help_become_rare() -> None:
    health, pauses = ServerHealth().failed("a").failed("a"), []
    for _ in range(8):
        health = health.moved(0.0, 0.5)
        pauses.append(health.may_move_at)
    assert pauses == sorted(pauses)
    assert pauses[-1] == 60.0


@given(st.floats(0, 1), st.floats(0, 1))
def test_chance_spreads_the_moves_of_several_processes(one: float, other: float) -> None:
    suspect = ServerHealth().failed("a").failed("a")
    first, second = suspect.moved(0.0, one).may_move_at, suspect.moved(0.0, other).may_move_at
    assert 2.25 <= first <= 3.75
    assert (first < second) == (one < other) or abs(one - other) < 1e-9


# Servers


def test_of_several_configured_servers_only_those_are_eligible() -> None:
    assert list(eligible_servers(["a:1", "b:1"], ["10.0.0.1:1"])) == ["a:1", "b:1"]


def test_a_single_configured_server_may_stand_for_a_cluster() -> None:
    assert list(eligible_servers(["cluster:1"], ["cluster:1", "10.0.0.1:1", "10.0.0.2:1"])) == [
        "cluster:1",
        "10.0.0.1:1",
        "10.0.0.2:1",
    ]


def test_the_preferred_server_comes_first() -> None:
    assert next_server(["a", "b", "c"], {"a": 1.0, "b": 2.0, "c": 3.0}, "c", 10.0) == ("c", 0.0)


def test_the_server_that_was_tried_longest_ago_is_next() -> None:
    assert next_server(["a", "b", "c"], {"a": 1.0, "b": 2.0}, None, 10.0) == ("c", 0.0)
    assert next_server(["a", "b", "c"], {"a": 3.0, "b": 2.0, "c": 4.0}, "gone", 10.0) == ("b", 0.0)


def test_the_only_server_is_tried_again_after_a_tenth_of_a_second() -> None:
    chosen, delay = next_server(["a"], {"a": 10.0}, None, 10.04)
    assert chosen == "a"
    assert abs(delay - 0.06) < 1e-9
