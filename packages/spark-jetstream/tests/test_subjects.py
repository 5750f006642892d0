"""Subjects and headers: nothing of a row gets into the protocol."""

import pytest

from spark_jetstream.errors import InvalidRow
from spark_jetstream.subjects import check_header, check_subject, is_pattern, matches, overlap


@pytest.mark.parametrize("subject", ["a", "a.b.c", "$KV.bucket.key", "grüße.welt", "a-b_c"])
def test_a_subject_is_published_to_as_it_is(subject: str) -> None:
    assert check_subject(subject) == subject


@pytest.mark.parametrize(
    "subject",
    [None, "", ".", "a.", ".a", "a..b", "a b", "a\tb", "a\r\nPUB x 0", "a.*", "a.>", "a\x00", "a\n",
     "$JS.API.STREAM.DELETE.S", "$SYS.x", "_INBOX.x"],
)  # fmt: skip
def test_what_is_no_subject_is_refused(subject: str | None) -> None:
    with pytest.raises(InvalidRow):
        check_subject(subject)


@pytest.mark.parametrize(
    ("name", "value"),
    [("", "x"), ("a b", "x"), ("a:b", "x"), ("a\r\nb", "x"), ("ä", "x"), ("a", "x\r\nb: c"), ("a", "x\n"), ("a", "\x00")],
)
def test_a_header_that_would_break_out_is_refused(name: str, value: str) -> None:
    with pytest.raises(InvalidRow):
        check_header(name, value)


def test_a_header_may_say_anything_on_its_line() -> None:
    check_header("X-Trace", "a: b, c; ünïcode")


@pytest.mark.parametrize(
    ("pattern", "subject", "does"),
    [
        ("a.b", "a.b", True),
        ("a.b", "a.c", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("a.*", "a.b.c", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        (">", "a", True),
        ("*.b", "a.b", True),
    ],
)
def test_a_subject_fits_a_filter_as_the_server_says(pattern: str, subject: str, does: bool) -> None:
    assert matches(pattern, subject) is does


@pytest.mark.parametrize(
    ("one", "other", "do"),
    [("a", "b", False), ("a.*", "a.b", True), ("a.>", "a.b.c", True), ("a.b", "a.b.c", False),
     (">", "x", True), ("*.b", "a.*", True)],
)  # fmt: skip
def test_filters_that_share_a_subject_overlap(one: str, other: str, do: bool) -> None:
    assert overlap(one, other) is do
    assert overlap(other, one) is do


def test_wildcards_stand_alone() -> None:
    assert is_pattern("a.*.b.>")
    assert not any(is_pattern(text) for text in ("a*", "a.>.b", "", "a..b", "a b"))
