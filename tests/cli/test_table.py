"""Tables and details as lines that fit a terminal."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from postroad.cli.table import Column, Table, details, fit, make_table, printable

TIME, SHORT_TIME = "2026-11-17T09:12:31.123Z", "2026-11-17 09:12"
ID = "01980e6c-5f0e-7c3a-9d5e-0123456789ab"

cell = st.one_of(
    st.text(max_size=60),
    st.just(ID),
    st.just(TIME),
    st.integers().map(str),
    st.lists(st.text("abcdefgh日本", min_size=1, max_size=12), max_size=12).map(" ".join),
)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    count = draw(st.integers(1, 8))
    head = [Column(draw(st.text("abc de", max_size=20)), draw(st.integers(0, 2))) for _ in range(count)]
    return make_table(head, draw(st.lists(st.lists(cell, min_size=count, max_size=count), max_size=6)))


def titles(table: Table) -> list[str]:
    return [column.title for column in table.columns]


def with_numbers(table: Table) -> Table:
    """The table with the index of each column as its title."""
    return replace(table, columns=tuple(replace(one, title=str(index)) for index, one in enumerate(table.columns)))


def shown_columns(numbered: Table, width: int) -> list[int]:
    return [int(title) for title in titles(fit(numbered, width))]


def shown_cells(table: Table, width: int) -> Iterator[tuple[str, str]]:
    """Each cell that is shown: before and after the fitting."""
    numbered = with_numbers(table)
    kept = shown_columns(numbered, width)
    for row, cells in zip(table.rows, fit(numbered, width).rows, strict=True):
        yield from zip((row[index] for index in kept), cells, strict=True)


@given(tables(), st.integers(1, 200))
def test_every_line_is_at_most_as_wide_as_the_terminal(table: Table, width: int) -> None:
    assert all(cell_len(line) <= width for line in fit(table, width).lines())


@given(tables(), st.integers(1, 200))
def test_every_row_is_one_line(table: Table, width: int) -> None:
    lines = fit(table, width).lines()
    assert len(lines) == 1 + len(table.rows)
    assert all(line.isprintable() for line in lines)


@given(tables(), st.integers(1, 200))
def test_columns_keep_their_order_and_the_first_is_never_dropped(table: Table, width: int) -> None:
    kept = shown_columns(numbered := with_numbers(table), width)
    assert kept == sorted(kept)
    assert kept[0] == 0
    assert sorted([*kept, *map(int, fit(numbered, width).hidden)]) == [*range(len(table.columns))]


@given(tables(), st.integers(1, 200))
def test_a_cell_is_whole_or_ends_with_an_ellipsis(table: Table, width: int) -> None:
    for whole, shown in shown_cells(table, width):
        assert shown == whole or shown.endswith("…") or (whole, shown) == (TIME, SHORT_TIME)


@given(tables(), st.integers(36, 200))
def test_ids_and_times_are_never_truncated(table: Table, width: int) -> None:
    for whole, shown in shown_cells(table, width):
        if whole in (ID, TIME):
            assert shown in (whole, SHORT_TIME)


@given(tables())
def test_a_table_that_fits_is_unchanged(table: Table) -> None:
    width = max(map(cell_len, table.lines()), default=0)
    assert fit(table, max(width, sum(table.widths()) + 2 * len(table.columns))) is table


# The steps, in their order


def fitted(width: int, head: list[str | Column], *rows: list[Any]) -> list[str]:
    return fit(make_table(head, rows), width).lines()


def test_times_are_shortened_first() -> None:
    assert fitted(40, ["id", "created", "note"], [1, TIME, "a note of some words"]) == [
        "id  created           note",
        f"1   {SHORT_TIME}  a note of some wo…",
    ]
    assert fitted(30, ["id", "created"], [1, TIME]) == ["id  created", f"1   {TIME}"]


def test_text_is_truncated_where_that_suffices() -> None:
    assert fitted(28, ["id", "error", "state"], ["7", "connection to mail.example timed out", "failed"]) == [
        "id  error             state",
        "7   connection to m…  failed",
    ]


def test_the_widest_text_is_truncated_first() -> None:
    rows = ["a text of forty characters, and then more", "a text of 24 characters."]
    assert fitted(50, ["long", "short"], rows) == [
        "long                      short",
        "a text of forty charact…  a text of 24 characters.",
    ]


def test_the_rightmost_column_is_dropped_first() -> None:
    table = fit(make_table(["id", "state", "created"], [[ID, "ready", "x" * 20]]), 50)
    assert (titles(table), table.hidden) == (["id", "state"], ("created",))


def test_a_column_of_a_higher_priority_is_dropped_later() -> None:
    head: list[str | Column] = ["id", "ready", "leased", Column("state", priority=1)]
    table = fit(make_table(head, [[ID, 1, 2, "paused"]]), 52)
    assert (titles(table), table.hidden) == (["id", "ready", "state"], ("leased",))


def test_the_first_column_is_truncated_when_it_alone_is_too_wide() -> None:
    table = fit(make_table(["id", "state"], [[ID, "ready"]]), 10)
    assert table.lines() == ["id", f"{ID[:9]}…"]
    assert table.is_truncated


def test_a_wide_character_takes_two_columns() -> None:
    assert fitted(10, ["name"], ["日本語日本語"]) == ["name", "日本語日 …"]


@pytest.mark.parametrize(
    ("text", "shown"), [("a\nb", "a\\nb"), ("\x1b[31mred", "\\x1b[31mred"), ("\u202e", "\\u202e"), ("ä", "ä")]
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert make_table(["a"], [[text]]).rows == ((shown,),)


# Details


def test_details_are_wrapped_between_words() -> None:
    pairs = [("id", ID), ("scopes", "publish consume read write")]
    assert details(pairs, None) == [f"id      {ID}", "scopes  publish consume read write"]
    assert details(pairs, 30) == [f"id      {ID}", "scopes  publish consume read", "        write"]


@given(
    st.lists(st.tuples(st.text("abc", min_size=1, max_size=9), st.text("abcdef -", max_size=80)), max_size=4), st.integers(1, 60)
)
def test_details_keep_every_word(pairs: list[tuple[str, str]], width: int) -> None:
    lines = details(pairs, width)
    assert " ".join(lines).split() == " ".join(f"{name} {value}" for name, value in pairs).split()
    assert all(len(line) <= max(width, 31) or len(line.split()) <= 2 for line in lines)
