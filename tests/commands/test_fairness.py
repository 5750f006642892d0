"""Fairness as a model: no ban without dominance and competition, and every ban ends."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.api.command_limits import Fairness
from postroad.commands import fairness
from postroad.commands.fairness import FairnessCounters

RULES = st.builds(
    Fairness,
    dominant_share=st.sampled_from([0.5, 0.8, 0.95]),
    meaningful_share=st.sampled_from([0.0, 0.05, 0.1, 0.3]),
    competing_sources=st.integers(1, 4),
    dispatches_min=st.sampled_from([1, 10, 20]),
    window_seconds=st.sampled_from([1, 30]),
    ban_seconds=st.sampled_from([1, 30]),
    enabled=st.sampled_from([True, True, True, False]),
)
COMMANDS = st.lists(st.tuples(st.sampled_from("aaaaaaaabcde"), st.integers(0, 400)), max_size=150)


@given(RULES, COMMANDS)
def test_a_ban_has_a_dominant_sender_and_competitors_and_ends(rules: Fairness, commands: list[tuple[str, int]]) -> None:
    """Requirements 97, 98, 99, 117, 118"""
    counters, now, window = FairnessCounters(), 1_000_000, 0
    counts: Counter[str] = Counter()
    reported: set[str] = set()
    for source, pause in commands:
        now += pause
        if now // (rules.window_seconds * 1000) != window:
            counts, window, reported = Counter(), now // (rules.window_seconds * 1000), set()
        if counters.is_banned("r", source, now):
            continue
        counts[source] += 1
        ban = counters.count("r", source, rules, now, is_warm=True)
        total, own = counts.total(), counts[source]
        is_dominant = own / total > rules.dominant_share and own >= rules.dispatches_min
        others = len(counts) - 1
        competes = others > 0 and ((total - own) / total >= rules.meaningful_share or others >= rules.competing_sources)
        assert (ban is not None) == (rules.enabled and is_dominant and competes)
        if ban is not None:
            assert ban.is_first == (source not in reported)
            reported.add(source)
            assert counters.is_banned("r", source, now) and ban.until_ms == now + rules.ban_seconds * 1000
            assert not counters.is_banned("r", "z", now) and not counters.is_banned("other", source, now)
    assert not any(counters.is_banned("r", source, now + rules.ban_seconds * 1000) for source in "abcde")


def test_windows_begin_at_the_same_time_on_every_worker() -> None:
    """Else the bans of a window have several ids, or those of two windows the same one."""
    rules, hour = Fairness(window_seconds=3600, dispatches_min=1, dominant_share=0.5, competing_sources=1), 3_600_000
    counters = FairnessCounters()
    counters.count("r", "quiet", rules, hour // 2, is_warm=True)
    bans = [counters.count("r", "noisy", rules, at, is_warm=True) for at in (hour // 2 + 1, hour // 2 + 2, hour - 1)]
    assert [ban is not None and ban.is_first for ban in bans] == [False, True, False]
    counters.count("r", "quiet", rules, hour, is_warm=True)
    bans = [counters.count("r", "noisy", rules, hour + after, is_warm=True) for after in (1, 2)]
    assert [ban is not None and ban.is_first for ban in bans] == [False, True]


@given(st.integers(1, 500))
def test_a_sender_without_competitors_is_never_banned(count: int) -> None:
    """Requirements 118"""
    counters = FairnessCounters()
    assert not any(counters.count("r", "a", Fairness(), number, is_warm=True) for number in range(count))


def test_the_number_of_banned_senders_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bans that have ended make room first, then the oldest."""
    monkeypatch.setattr(fairness, "_SOURCES_MAX", 3)
    counters, rules = FairnessCounters(), Fairness(dominant_share=0.5, meaningful_share=0.0)

    def ban(route: str, now_ms: int) -> None:
        counters.count(route, "other", rules, now_ms, is_warm=True)
        assert any(counters.count(route, "a", rules, now_ms, is_warm=True) for _ in range(rules.dispatches_min))

    for number in range(5):
        ban(f"r{number}", number)
    assert len(counters._banned) == 3
    assert [counters.is_banned(f"r{number}", "a", 5) for number in range(5)] == [False, False, True, True, True]
    ban("last", 40_000)
    assert list(counters._banned) == [("last", "a")]


def test_dominance_counts_the_slow_path_too() -> None:
    """Requirements 124"""
    counters, rules = FairnessCounters(), Fairness()
    for number in range(90):
        counters.count("r", "a", rules, number, is_warm=False)
    for number in range(10):
        counters.count("r", "b", rules, number, is_warm=False)
    shares = counters.dominance("r", "a", rules, 100)
    assert shares is not None and (shares.source_share, shares.competing_share, shares.dispatch_volume) == (0.9, 0.1, 100)
    assert counters.dominance("r", "b", rules, 100) is None
    assert counters.dominance("r", "a", rules, 40_000) is None
