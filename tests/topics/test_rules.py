"""Rules of topics: subjects, patterns, bodies, headers, idempotency."""

import base64
import re

import msgspec
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from msgspec import UNSET

from postroad.api.topics import PATTERN, SUBJECT, NewTopicMessage
from postroad.kernel.errors import InvalidParameter
from postroad.kernel.matching import pattern_matches
from postroad.kernel.media_types import is_json
from postroad.topics import rules
from postroad.topics.rules import (
    IdempotencyMark,
    MessageBody,
    body_hash,
    check_pattern,
    check_subject,
    common_pattern,
    count_terms,
    hops_of,
    intersection,
    message_body,
    message_id,
    parse_mark,
)

tokens = st.sampled_from(["a", "b", "c"])
subjects = st.lists(tokens, min_size=1, max_size=4).map(".".join)
patterns = st.builds(
    lambda start, end: ".".join([*start, *end]) or "*",
    st.lists(st.one_of(tokens, st.just("*")), max_size=4),
    st.sampled_from([[], [">"]]),
)


def accepts(check: object, text: str) -> bool:
    try:
        check(text)  # type: ignore[operator]
    except InvalidParameter:
        return False
    return True


# Subjects and patterns


@given(st.text(max_size=30) | st.lists(st.text("ab*>.$ é\t", max_size=4), max_size=20).map(".".join))
def test_the_published_expression_describes_the_subjects_that_are_accepted(text: str) -> None:
    assume(not any("\ud800" <= char <= "\udfff" for char in text))
    assert accepts(check_subject, text) == bool(re.fullmatch(SUBJECT.strip("^$"), text))


@given(st.text(max_size=30) | st.lists(st.text("ab*>.$ é\t", max_size=3), max_size=20).map(".".join) | patterns)
def test_the_published_expression_describes_the_patterns_that_are_accepted(text: str) -> None:
    assume(not any("\ud800" <= char <= "\udfff" for char in text))
    assert accepts(check_pattern, text) == bool(re.fullmatch(PATTERN.strip("^$"), text))


@given(subjects)
def test_a_subject_is_a_pattern_of_itself(subject: str) -> None:
    assert check_pattern(check_subject(subject)) == subject and pattern_matches(subject, subject)


@given(st.lists(patterns, max_size=4), subjects)
def test_the_common_pattern_matches_whatever_one_of_them_matches(several: list[str], subject: str) -> None:
    common = common_pattern(several)
    assert check_pattern(common) == common
    if any(pattern_matches(one, subject) for one in several):
        assert pattern_matches(common, subject)


@given(patterns)
def test_the_common_pattern_of_one_is_that_one(pattern: str) -> None:
    assert common_pattern([pattern]) == common_pattern([pattern, pattern]) == pattern


@given(patterns, patterns, subjects)
def test_the_intersection_matches_what_both_match(one: str, other: str, subject: str) -> None:
    common = intersection(one, other)
    is_common = common is not None and pattern_matches(common, subject)
    assert is_common == (pattern_matches(one, subject) and pattern_matches(other, subject))


@given(st.lists(patterns, max_size=5), st.lists(subjects, max_size=30))
@example(["a.*", "*.b", "a.>"], ["a.b", "a.c", "c.b", "a.b", "a.b.c"])
@example(["a.*", "*.b"], ["a.b", "a.c", "c.b", "a.b"])
def test_the_terms_of_a_count_add_up_to_the_subjects_that_match(several: list[str], stored: list[str]) -> None:
    counted = sum(factor * sum(pattern_matches(term, one) for one in stored) for term, factor in count_terms(several))
    assert counted == sum(any(pattern_matches(one, subject) for one in several or [">"]) for subject in stored)


def test_a_covered_pattern_needs_no_term() -> None:
    assert count_terms(["a.b", "a.>", "a.*", "a.>"]) == [("a.>", 1)]
    assert count_terms([]) == [(">", 1)]


# Bodies


@given(st.binary(max_size=50))
def test_bytes_are_decoded_from_base64(data: bytes) -> None:
    new = NewTopicMessage(subject="a", body_b64=base64.b64encode(data).decode())
    assert message_body(new, 1000) == MessageBody(data, "application/octet-stream")


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/json", True),
        ("Application/JSON; charset=utf-8", True),
        ("application/cloudevents+json", True),
        ("text/json-seq", False),
        ("application/jsonx", False),
        ("", False),
    ],
)
def test_json_types(content_type: str, expected: bool) -> None:
    assert is_json(content_type) is expected


# Idempotency


def with_payload(text: bytes, **more: object) -> str:
    new = msgspec.structs.replace(NewTopicMessage(subject="a", payload=msgspec.Raw(text)), **more)
    return body_hash(new, message_body(new, 1000))


def test_the_hash_ignores_the_form_of_json_and_nothing_else() -> None:
    assert with_payload(b'{"a":1,"b":[2]}') == with_payload(b'{ "b": [ 2 ], "a": 1 }')
    different = {
        with_payload(b"1"),
        with_payload(b"2"),
        with_payload(b'"1"'),
        with_payload(b"1", subject="b"),
        with_payload(b"1", headers={"a": "b"}),
        with_payload(b"1", content_type="a/b+json"),
        with_payload(b"1", payload=UNSET, body_b64="MQ==", content_type="application/json"),
    }
    assert len(different) == 7


def test_ids_are_separate_for_each_key() -> None:
    assert message_id("a", "b") == message_id("a", "b")
    assert len({message_id("a", "b"), message_id("a", "c"), message_id("b", "b"), message_id("ab", "")}) == 4


@given(st.integers(0, 10**14), st.text("0123456789abcdef", min_size=40, max_size=40))
def test_a_mark_is_read_as_it_was_written(at_ms: int, hashed: str) -> None:
    mark = IdempotencyMark(at_ms, hashed)
    assert parse_mark({rules.IDEMPOTENCY: str(mark)}) == mark


@given(st.text())
def test_a_foreign_header_is_no_error(text: str) -> None:
    parse_mark({rules.IDEMPOTENCY: text})
    assert hops_of({rules.HOPS: text}) >= 0
    assert parse_mark({}) is None
