import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroad.kernel import matching
from postroad.kernel.errors import InvalidParameter

words = st.text("ab", min_size=1, max_size=2) | st.sampled_from(["$", "a+b", "[a]", "(a)", "é", "a-b", "^", "|", "\\d"])
subjects = st.lists(words, min_size=1, max_size=5).map(".".join)
wanted = st.builds(
    lambda head, tail: ".".join([*head, *tail]),
    st.lists(words | st.just("*"), min_size=1, max_size=4),
    st.sampled_from([[], [">"]]),
) | st.just(">")


def _matches_word_by_word(pattern: list[str], subject: list[str]) -> bool:
    if not pattern or not subject:
        return not pattern and not subject
    if pattern[0] == ">":
        return True
    return pattern[0] in ("*", subject[0]) and _matches_word_by_word(pattern[1:], subject[1:])


@given(wanted, subjects)
@example("a.>", "a")
@example("a.>", "a.b")
@example("*", "a.b")
@example("a.*.b", "a.b")
def test_a_pattern_matches_like_a_comparison_by_token(pattern: str, subject: str) -> None:
    assert matching.pattern_matches(pattern, subject) == _matches_word_by_word(pattern.split("."), subject.split("."))


@given(subjects)
def test_a_subject_is_a_pattern_that_matches_itself_only(subject: str) -> None:
    assert matching.pattern(matching.subject(subject)) == subject
    assert matching.pattern_matches(subject, subject)
    assert not matching.pattern_matches(subject, subject + ".a")
    assert not matching.pattern_matches(subject, "b" + subject)


@given(wanted)
def test_a_valid_pattern_is_accepted(pattern: str) -> None:
    assert matching.pattern(pattern) == pattern


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a.",
        ".a",
        "a..b",
        "a b",
        "a\tb",
        "a\n",
        "a.*",
        "*",
        ">",
        "a.>",
        "a*",
        "a>b",
        "\x00",
        "a\x7f",
        "\u00a0",
        "a" * 257,
    ],
)
def test_an_invalid_subject_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        matching.subject(text)


@pytest.mark.parametrize(
    "text", ["", ".", "a.", ".a", "a..b", "a b", "a\n", ">.a", "a.>.b", "a>", "a*", "**", "*a", ">>", ".>", "*..>", "a" * 257]
)
def test_an_invalid_pattern_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        matching.pattern(text)


def test_the_longest_subject_is_accepted() -> None:
    assert matching.subject("a" * 256) == "a" * 256
