"""Output for a terminal, for a pipe, and with --wide."""

import pytest

from postroad.cli import output
from postroad.cli.rendering import usage_bar

HEAD = ("id", "created", "note")
ROW = ["0123456789abcdef", "2026-11-17T09:12:31Z", "a note that is longer than the terminal is wide, by a few words"]
WHOLE = f"id                created               note\n{'  '.join(ROW)}\n"


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_terminal_width", lambda: 40)


def show(things: object, *, wide: bool = False, keep_values: bool = False) -> None:
    output.show(things, False, HEAD, lambda row: row, wide=wide, keep_values=keep_values)


@pytest.mark.usefixtures("narrow")
def test_a_list_fits_the_terminal_and_says_what_is_hidden(capsys: pytest.CaptureFixture[str]) -> None:
    show([ROW])
    shown = capsys.readouterr()
    assert shown.out == "id                created\n0123456789abcdef  2026-11-17 09:12\n"
    assert shown.err == "hidden columns: note; --wide or --json shows everything\n"


@pytest.mark.usefixtures("narrow")
def test_a_table_that_fits_needs_no_hint(capsys: pytest.CaptureFixture[str]) -> None:
    show([["1", "now", "short"]])
    assert capsys.readouterr() == ("id  created  note\n1   now      short\n", "")


@pytest.mark.usefixtures("narrow")
def test_wide_shows_everything(capsys: pytest.CaptureFixture[str]) -> None:
    show([ROW], wide=True)
    assert capsys.readouterr() == (WHOLE, "")


def test_a_pipe_gets_everything(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    show([ROW])
    assert capsys.readouterr() == (WHOLE, "")


@pytest.mark.usefixtures("narrow")
def test_one_thing_that_is_too_wide_is_shown_as_details(capsys: pytest.CaptureFixture[str]) -> None:
    show(tuple(ROW))
    shown = capsys.readouterr()
    assert shown.err == ""
    assert shown.out.splitlines() == [
        "id       0123456789abcdef",
        "created  2026-11-17T09:12:31Z",
        "note     a note that is longer than the",
        "         terminal is wide, by a few",
        "         words",
    ]


@pytest.mark.usefixtures("narrow")
def test_a_list_whose_values_are_needed_whole_is_shown_as_details(capsys: pytest.CaptureFixture[str]) -> None:
    show([["1", "now", "r" * 60], ["2", "now", "s" * 60]], keep_values=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "id       1" and lines.count("") == 1
    assert [line.split()[-1] for line in lines if line[-1:] in ("r", "s")] == ["r" * 60, "s" * 60]


def test_the_width_is_that_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "123")
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert output._terminal_width() is None
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert output._terminal_width() == 123


@pytest.mark.parametrize(
    ("used", "allowed", "expected"),
    [
        (50, 100, "[#####-----] 50 of 100 (50%)"),
        (0, 0, "[----------] 0 of 0 (0%)"),
        (30, 20, "[##########] 30 of 20 (150%)"),  # tokens that a lower limit finds used
    ],
)
def test_the_use_of_a_limit_is_a_bar(used: int, allowed: int, expected: str) -> None:
    assert usage_bar(used, allowed, 10) == expected
