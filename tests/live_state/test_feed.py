"""Rows with the numbers of their changes."""

from collections.abc import Mapping

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from postroad.kernel.errors import EngineUnavailable
from postroad.live_state import feed as feed_module
from postroad.live_state.feed import Feed
from postroad.telemetry.live_sections import LiveSection, Rows


class Number(msgspec.Struct, frozen=True):
    value: int


class Numbers(LiveSection):
    name = "numbers"

    def __init__(self) -> None:
        self.now: dict[str, Number] | Exception = {}
        self.opened = 0

    async def open(self, tenant: str) -> None:
        self.opened += 1

    def close(self, tenant: str) -> None:
        self.opened -= 1

    async def rows(self, tenant: str, names: frozenset[str]) -> Rows:
        if isinstance(self.now, Exception):
            raise self.now
        return self.now


rounds = st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)), max_size=8)


@given(rounds, st.integers(0, 8))
def test_a_reader_that_applies_the_changes_has_the_rows(states: list[Mapping[str, int]], joined: int) -> None:
    feed, seen, since = Feed(Numbers(), "t"), dict[str, int](), -1
    for index, state in enumerate(states):
        feed.apply({key: Number(value) for key, value in state.items()})
        if index < joined:  # this reader comes later, and starts with all rows
            continue
        if since < 0:
            seen = {key: one.row.value for key, one in feed.rows.items() if isinstance(one.row, Number)}
        else:
            assert feed.is_complete(since)
            for key, change in feed.removed.items():
                if change > since:
                    seen.pop(key, None)
            seen |= {key: one.row.value for key, one in feed.rows.items() if one.change > since and isinstance(one.row, Number)}
        since = feed.change
        assert seen == state


def test_a_round_without_a_difference_is_no_change() -> None:
    feed = Feed(Numbers(), "t")
    feed.apply({"a": Number(1)})
    change = feed.change
    feed.apply({"a": Number(1)})
    assert feed.change == change


def test_a_reader_that_missed_forgotten_removals_is_told() -> None:
    feed = Feed(Numbers(), "t")
    feed.apply({str(number): Number(1) for number in range(feed_module._REMOVED_MAX + 2)})
    since = feed.change
    feed.apply({})
    assert not feed.is_complete(since) and feed.is_complete(feed.change)


async def test_rows_stay_while_they_cannot_be_read() -> None:
    section = Numbers()
    feed = Feed(section, "t")
    section.now = {"a": Number(1)}
    await feed.refresh(frozenset())
    section.now = EngineUnavailable("down")
    await feed.refresh(frozenset())
    assert feed.error == "engine-unavailable" and list(feed.rows) == ["a"]
    section.now = {"a": Number(1)}
    await feed.refresh(frozenset())
    opened = section.opened
    feed.close()
    assert (opened, section.opened) == (1, 0)
