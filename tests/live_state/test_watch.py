"""The `watch` parameter."""

import pytest

from postroad.kernel.errors import InvalidParameter
from postroad.live_state.watch import NAMES_MAX, Watch, parse_watch

KNOWN = ("queues", "tasks")


def test_sections_and_rows_are_parsed() -> None:
    assert parse_watch("queues", KNOWN) == (Watch("queues"),)
    assert parse_watch("tasks,queues:a;b", KNOWN) == (Watch("tasks"), Watch("queues", frozenset("ab"), has_others=False))
    assert parse_watch("queues:*;a", KNOWN) == (Watch("queues", frozenset("a")),)
    assert parse_watch("queues:", KNOWN) == (Watch("queues", frozenset(), has_others=False),)


def test_a_watch_includes_its_names_or_all() -> None:
    assert Watch("queues").includes("x")
    assert not Watch("queues", frozenset("a"), has_others=False).includes("x")
    assert Watch("queues", frozenset("a"), has_others=False).includes("a")


@pytest.mark.parametrize(
    "text", ["", "nonsense", "queues,queues", "queues,", "queues:" + ";".join(map(str, range(NAMES_MAX + 1)))]
)
def test_others_are_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        parse_watch(text, KNOWN)
