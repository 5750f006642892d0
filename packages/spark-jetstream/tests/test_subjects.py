"""Subjects, filters and headers: validation, matching and overlap."""

import pytest

from spark_jetstream.errors import InvalidRow
from spark_jetstream.subjects import check_header, check_subject, is_filter, matches, overlap


@pytest.mark.parametrize("subject", ["a", "a.b.c", "$KV.bucket.key", "grüße.welt", "a-b_c"])
def test_a_valid_subject_is_returned_unchanged(subject: str) -> None:
    assert check_subject(subject) == subject


@pytest.mark.parametrize(
    "subject",
    [None, "", ".", "a.", ".a", "a..b", "a b", "a\tb", "a\r\nPUB x 0", "a.*", "a.>", "a\x00", "a\n",
     "$JS.API.STREAM.DELETE.S", "$SYS.x", "_INBOX.x"],
)  # fmt: skip
def test_an_invalid_or_reserved_subject_is_rejected(subject: str | None) -> None:
    with pytest.raises(InvalidRow):
        check_subject(subject)


@pytest.mark.parametrize(
    ("name", "value"),
    [("", "x"), ("a b", "x"), ("a:b", "x"), ("a\r\nb", "x"), ("ä", "x"), ("a", "x\r\nb: c"), ("a", "x\n"), ("a", "\x00")],
)
def test_a_header_that_would_end_its_line_is_rejected(name: str, value: str) -> None:
    with pytest.raises(InvalidRow):
        check_header(name, value)


def test_a_header_value_may_contain_any_text_without_line_breaks() -> None:
    check_header("X-Trace", "a: b, c; ünïcode")


@pytest.mark.parametrize(
    ("subject_filter", "subject", "expected"),
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
def test_a_filter_matches_as_on_the_server(subject_filter: str, subject: str, expected: bool) -> None:
    assert matches(subject_filter, subject) is expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [("a", "b", False), ("a.*", "a.b", True), ("a.>", "a.b.c", True), ("a.b", "a.b.c", False),
     (">", "x", True), ("*.b", "a.*", True)],
)  # fmt: skip
def test_filters_that_match_a_common_subject_overlap(one: str, other: str, expected: bool) -> None:
    assert overlap(one, other) is expected
    assert overlap(other, one) is expected


def test_a_wildcard_is_a_token_of_its_own() -> None:
    assert is_filter("a.*.b.>")
    assert not any(is_filter(text) for text in ("a*", "a.>.b", "", "a..b", "a b"))
