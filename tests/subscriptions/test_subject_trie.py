"""The trie of patterns, compared with the matching of one pattern."""

from hypothesis import given
from hypothesis import strategies as st

from postroad.kernel.matching import pattern_matches
from postroad.subscriptions.subject_trie import SubjectTrie

TOKENS = st.sampled_from(["a", "b", "c"])
SUBJECTS = st.lists(TOKENS, min_size=1, max_size=4).map(".".join)
PATTERNS = st.tuples(st.lists(st.one_of(TOKENS, st.just("*")), max_size=4), st.booleans()).map(
    lambda drawn: ".".join([*drawn[0], ">"] if drawn[1] or not drawn[0] else drawn[0])
)


@given(st.dictionaries(st.text("xyz", min_size=1), st.lists(PATTERNS, max_size=4)), SUBJECTS)
def test_a_subject_matches_the_subscriptions_with_a_matching_pattern(patterns: dict[str, list[str]], subject: str) -> None:
    trie = SubjectTrie()
    for name, wanted in patterns.items():
        trie.add_all(wanted, name)
    expected = {name for name, wanted in patterns.items() if any(pattern_matches(one, subject) for one in wanted)}
    assert trie.match(subject) == expected


@given(st.lists(st.tuples(PATTERNS, st.sampled_from("xyz"))), st.lists(st.tuples(PATTERNS, st.sampled_from("xyz"))))
def test_removed_patterns_leave_nothing_behind(kept: list[tuple[str, str]], removed: list[tuple[str, str]]) -> None:
    trie = SubjectTrie()
    for pattern, name in (*kept, *removed):
        trie.add(pattern, name)
    for pattern, name in (*removed, *kept):
        trie.remove(pattern, name)
    assert trie.is_empty


def test_a_removed_pattern_matches_no_longer_and_others_do() -> None:
    trie = SubjectTrie()
    trie.add_all(["orders.*", "orders.>"], "one")
    trie.add("orders.*", "two")
    trie.remove_all(["orders.*", "unknown.pattern"], "one")
    assert trie.match("orders.created") == {"one", "two"}
    trie.remove("orders.>", "one")
    assert trie.match("orders.created") == {"two"}
    assert trie.match("orders.created.eu") == set()
