import re
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.kernel import names
from postroad.kernel.errors import InvalidParameter

any_text = st.text(st.characters(codec=None), max_size=30)  # lone surrogates too
# Few letters and every mark, so that two drawn names are often nearly the same.
tricky_text = st.text(st.sampled_from("_duscx5f.:/-ab ä"), max_size=6)
texts = any_text | tricky_text
tenants = st.from_regex(names.TENANT, fullmatch=True) | st.text("ab-", min_size=1, max_size=4).filter(lambda text: text[0] != "-")
queues = st.from_regex(names.QUEUE, fullmatch=True) | st.text("ab_.:-ducx", min_size=1, max_size=6)


@given(texts)
def test_unescape_reverses_escape(text: str) -> None:
    assert names.unescape(names.escape(text)) == text


@given(st.lists(tricky_text, min_size=2, max_size=40, unique=True))
def test_different_names_have_different_tokens(different: list[str]) -> None:
    assert len({names.escape(text) for text in different}) == len(different)


@given(texts.filter(bool))
def test_a_token_has_no_special_characters_of_nats_or_file_systems(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]+", names.escape(text))


@given(texts)
def test_a_token_has_no_double_underscore(text: str) -> None:
    """The first `__` of a stream name ends the tenant id."""
    assert "__" not in names.escape(text)


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("orders", "orders"),
        ("a_b", "a_ub"),
        ("a.b", "a_db"),
        ("a:b", "a_cb"),
        ("a/b", "a_sb"),
        ("é", "_xc3_xa9"),
        ("a b", "a_x20b"),
    ],
)
def test_stored_names_have_not_changed(name: str, token: str) -> None:
    """Data on disk has these names: a change would lose it."""
    assert names.escape(name) == token


@given(st.lists(st.tuples(tenants, queues), min_size=2, max_size=30, unique=True))
def test_queues_have_distinct_streams_and_subjects(pairs: list[tuple[str, str]]) -> None:
    assert len({names.queue_stream(*pair) for pair in pairs}) == len(pairs)
    assert len({names.queue_subject(*pair) for pair in pairs}) == len(pairs)


@given(tenants, queues)
def test_the_subject_of_a_queue_has_three_tokens(tenant: str, queue: str) -> None:
    assert len(names.queue_subject(tenant, queue).split(".")) == 3
    assert re.fullmatch(r"[A-Za-z0-9_-]+", names.queue_stream(tenant, queue))


@given(tenants, queues)
def test_a_stream_name_is_unambiguous(tenant: str, queue: str) -> None:
    read_tenant, read_queue = names.queue_stream(tenant, queue).removeprefix("Q_").split("__", 1)
    assert (read_tenant, names.unescape(read_queue)) == (tenant, queue)


def test_the_longest_names_fit_into_a_stream_name() -> None:
    tenant = names.tenant_id("t" * 32)
    for mark in "_.:":
        queue = names.queue_name(mark * 80)
        assert len(names.queue_stream(tenant, queue)) <= 255


def test_names_that_differ_at_their_ends_are_distinct() -> None:
    near = [
        ("a", "b-c"),
        ("a-b", "c"),
        ("a", "b_c"),
        ("a", "_b"),
        ("a-", "b"),
        ("a", "-b"),
        ("a", "b__c"),
        ("a", "b.c"),
        ("a", "b"),
    ]
    for one, other in combinations(near, 2):
        assert names.queue_stream(*one) != names.queue_stream(*other)
        assert names.queue_subject(*one) != names.queue_subject(*other)


@pytest.mark.parametrize("text", ["a", "0", "acme", "acme-eu", "a" * 32, "jobs2", "x-admin"])
def test_valid_tenant_ids(text: str) -> None:
    assert names.tenant_id(text) == text


@pytest.mark.parametrize("text", ["", "-a", "A", "a_b", "a.b", "a b", "a" * 33, "ä", "a\n", "a/b", "*", ">"])
def test_invalid_tenant_ids(text: str) -> None:
    with pytest.raises(InvalidParameter):
        names.tenant_id(text)


@pytest.mark.parametrize("word", sorted(names.RESERVED))
def test_a_reserved_word_is_not_a_tenant_id(word: str) -> None:
    assert names.TENANT.fullmatch(word), "a reserved word that could not be a tenant's id anyway is a typo"
    with pytest.raises(InvalidParameter, match="word of the API"):
        names.tenant_id(word)


def test_the_words_of_announced_api_areas_are_reserved() -> None:
    assert {"topics", "buckets", "commands", "alerts", "ws", "session", "publish", "subscribe"} <= names.RESERVED


@pytest.mark.parametrize("text", ["a", "A.b:c_d-9", "." * 80, "-"])
def test_valid_queue_names(text: str) -> None:
    assert names.queue_name(text) == text


@pytest.mark.parametrize("text", ["", "a b", "a/b", "a*", ">", "é", "a" * 81, "a\n", "a\\b"])
def test_invalid_queue_names(text: str) -> None:
    with pytest.raises(InvalidParameter):
        names.queue_name(text)


# Durable streams

stream_words = st.text("ab_.:~@+=-dsxu0", min_size=1, max_size=4)
stream_ids = (st.from_regex(names.STREAM, fullmatch=True) | st.lists(stream_words, min_size=1, max_size=3).map("/".join)).filter(
    lambda text: len(text) <= names.STREAM_CHARS_MAX
)


@pytest.mark.parametrize(
    "text", ["a", "a/b/c", "A.b:c_d-9", "~a@b+c=d", "...", "a/...", "a/__ds", "__dsx", "-", "a" * 256, "__d/s"]
)
def test_valid_stream_ids(text: str) -> None:
    assert names.stream_id(text) == text


@pytest.mark.parametrize(
    "text",
    ["", "/", "/a", "a/", "a//b", "a b", "a*", ">", "é", "a\n", "a\\b", "a%2fb", "a?b", "a#b", "a" * 257, "a/\x00"],
)
def test_invalid_stream_ids(text: str) -> None:
    with pytest.raises(InvalidParameter):
        names.stream_id(text)


@pytest.mark.parametrize("text", ["__ds", "__ds/subscriptions/a", ".", "..", "a/./b", "a/../b", "../a", "a/.."])
def test_stream_ids_with_a_special_meaning_are_refused(text: str) -> None:
    with pytest.raises(InvalidParameter, match="this stream id is not allowed"):
        names.stream_id(text)


@given(texts)
def test_stream_ids_match_the_documented_pattern(text: str) -> None:
    try:
        assert names.stream_id(text) == text
    except InvalidParameter:
        return
    assert re.fullmatch(f"^{names.STREAM.pattern}$", text) and "" not in text.split("/")


@given(st.lists(st.tuples(tenants, stream_ids), min_size=2, max_size=30, unique=True))
def test_streams_have_distinct_subjects(pairs: list[tuple[str, str]]) -> None:
    assert len({names.stream_subject(*pair) for pair in pairs}) == len(pairs)


@given(tenants, stream_ids)
def test_the_subject_of_a_stream_has_three_tokens_and_is_unambiguous(tenant: str, stream: str) -> None:
    """Followers of all streams of a tenant parse the ids from subjects, which have no wildcard."""
    kind, read_tenant, token = names.stream_subject(tenant, stream).split(".")
    assert (kind, read_tenant, names.unescape(token)) == ("s", tenant, stream)
    assert re.fullmatch(r"[A-Za-z0-9_-]+", token)


@given(tenants, stream_ids, queues)
def test_subjects_of_streams_and_queues_are_distinct(tenant: str, stream: str, queue: str) -> None:
    taken = {names.queue_subject(tenant, queue), names.dead_subject(tenant, queue)}
    assert names.stream_subject(tenant, stream) not in taken
    assert names.streams_store(tenant) not in {names.queue_stream(tenant, queue), names.dead_stream(tenant)}


@given(st.lists(tenants, min_size=2, max_size=30, unique=True))
def test_tenants_have_distinct_stream_stores(different: list[str]) -> None:
    assert len({names.streams_store(tenant) for tenant in different}) == len(different)


def test_similar_stream_ids_have_distinct_subjects() -> None:
    near = [("a", "b/c"), ("a", "b_sc"), ("a", "b.c"), ("a", "b_c"), ("a", "b-c"), ("a-b", "c"), ("a", "b:c"), ("a", "b~c")]
    near += [("a", "b_x7ec"), ("a", "B/c"), ("a", "b/c/d"), ("a", "b/c_d"), ("a", "b"), ("ab", "c"), ("a", "bc")]
    assert len({names.stream_subject(*one) for one in near}) == len(near)


def test_stored_stream_names_have_not_changed() -> None:
    """Data on disk has these names: a change would lose it."""
    assert names.stream_subject("acme", "a/b.c~d") == "s.acme.a_sb_dc_x7ed"
    assert names.streams_store("acme") == "S_acme"


def test_the_longest_stream_id_fits_into_a_subject() -> None:
    longest = names.stream_id("~" * names.STREAM_CHARS_MAX)
    assert len(names.stream_subject("t" * 32, longest)) < 2048, "the engine takes lines of 4 KiB"


def test_the_stream_of_a_long_topic_name_has_a_hash() -> None:
    longest = ["x" * 256, "x" * 255 + "y", "_" * 256, "a.b" * 85, "-" * 256]
    streams = {names.topic_stream("t" * 32, one) for one in longest}
    assert len(streams) == len(longest) and all(len(one) <= 240 for one in streams)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", one) and one.count("__") == 1 for one in streams)
    assert names.topic_stream("t", "a" * 200) == f"T_t__{'a' * 200}"  # shorter names have their whole token
    hashed = names.short_token("x" * 201)
    with pytest.raises(ValueError, match="not an escaped name"):
        names.unescape(hashed)
