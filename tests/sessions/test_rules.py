"""Rules of fan-outs, compared with naive models."""

import base64
import re
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.kernel.errors import InvalidParameter
from postroad.sessions.records import (
    ChangeKind,
    FanoutState,
    SessionRecord,
    Subscriber,
    SubscriberChange,
    decode_change,
    decode_state,
    encode,
)
from postroad.sessions.rules import (
    Copy,
    FanoutLimits,
    FanoutMode,
    SourceMessage,
    SubscriberList,
    empty_envelope,
    envelope,
    is_eligible,
    is_pattern,
    mode_for,
    next_batch,
    pattern_matches,
    session_id,
    source_id,
)
from postroad.sessions.settings import SessionsSettings

TEXT, JSON = "text/plain", "application/json"


def subscriber(session: str, joined_at: int = 0, media: str = TEXT, *, envelope: bool = False) -> Subscriber:
    return Subscriber(session, joined_at, media, envelope)


def limits(*, has_queue: bool = True) -> FanoutLimits:
    """The limits of the default settings."""
    chosen = SessionsSettings()
    assert (chosen.fanout_queue_threshold, chosen.fanout_inline_max) == (200, 1000)
    return FanoutLimits(chosen.fanout_queue_threshold, chosen.fanout_inline_max, has_queue)


# Batches

_MEMBERS = st.lists(
    st.builds(
        Subscriber,
        st.text("abc", min_size=1, max_size=2),
        st.integers(0, 20),
        st.sampled_from([TEXT, JSON]),
        envelope=st.booleans(),
    ),
    unique_by=lambda one: one.session,
    max_size=8,
)
_MESSAGES = st.lists(st.builds(SourceMessage, st.integers(1, 40), st.binary(max_size=4)), unique_by=lambda one: one.sequence)
_LIMITS = st.integers(1, 7)
_BYTES = st.integers(0, 12)


def in_order(messages: list[SourceMessage]) -> list[SourceMessage]:
    return sorted(messages, key=lambda message: message.sequence)


def expected_copies(messages: list[SourceMessage], members: list[Subscriber]) -> list[Copy]:
    by_id = sorted(members, key=lambda one: one.session)
    return [Copy(one, message) for message in messages for one in by_id if is_eligible(one, message.sequence, TEXT)]


@given(_MESSAGES, _MEMBERS, _LIMITS, _BYTES)
def test_batches_copy_each_message_once_and_in_order(
    unordered: list[SourceMessage], members: list[Subscriber], limit: int, bytes_max: int
) -> None:
    messages, subscribers, state = in_order(unordered), SubscriberList([members]), FanoutState()
    made: list[Copy] = []
    last = messages[-1].sequence if messages else 0
    while state.done < last:
        step = next_batch(state, messages, subscribers, TEXT, limit, bytes_max)
        assert len(step.copies) <= limit
        assert len(step.copies) <= 1 or sum(len(write.message.payload) for write in step.copies) <= bytes_max
        assert step.copies or step.state.done == last, "only the last batch may be empty"
        assert step.state != state, "each batch makes progress"
        made += step.copies
        state = step.state
    assert made == expected_copies(messages, members)
    assert state == FanoutState(done=last)


@given(_MESSAGES, _MEMBERS, _MEMBERS, _LIMITS, st.integers(0, 10))
def test_changes_of_subscribers_between_batches_do_not_affect_others(
    unordered: list[SourceMessage], members: list[Subscriber], newcomers: list[Subscriber], limit: int, steps: int
) -> None:
    """Some subscribers leave after a few batches, others join, without the earlier messages."""
    messages, state = in_order(unordered), FanoutState()
    last = messages[-1].sequence if messages else 0
    stay = members[::2]
    come = [subscriber(f"n{one.session}", 100) for one in newcomers]
    subscribers = SubscriberList([members])
    made: list[Copy] = []
    number = 0
    while state.done < last:
        if number == steps:
            subscribers = SubscriberList([stay, come])
        step = next_batch(state, messages, subscribers, TEXT, limit)
        assert step.state != state, "each batch makes progress"
        made += step.copies
        state = step.state
        number += 1
    for one in stay:
        assert [write for write in made if write.subscriber == one] == expected_copies(messages, [one])
    for one in members:
        got = [write for write in made if write.subscriber == one]
        assert got == expected_copies(messages, [one])[: len(got)], "a subscriber that left has the first messages"
    assert not [write for write in made if write.subscriber in come]


@given(_MESSAGES, _MEMBERS, _LIMITS)
def test_a_stored_state_continues_with_the_same_copies(
    unordered: list[SourceMessage], members: list[Subscriber], limit: int
) -> None:
    """The batches after a stored state are those that would have followed."""
    messages, subscribers = in_order(unordered), SubscriberList([members])
    first = next_batch(FanoutState(), messages, subscribers, TEXT, limit)
    stored = decode_state(encode(first.state))
    left = [message for message in messages if message.sequence > stored.done]
    rest = next_batch(stored, left, subscribers, TEXT, 10_000)
    assert [*first.copies, *rest.copies] == expected_copies(messages, members)


def batch_of(
    members: list[Subscriber], messages: Sequence[int], limit: int, state: FanoutState | None = None
) -> tuple[list[str], FanoutState]:
    step = next_batch(
        state or FanoutState(), [SourceMessage(one, b"") for one in messages], SubscriberList([members]), TEXT, limit
    )
    return [f"{write.subscriber.session}{write.message.sequence}" for write in step.copies], step.state


def test_the_state_after_a_batch() -> None:
    three = [subscriber("a"), subscriber("b"), subscriber("c")]
    assert batch_of(three, [5, 7], 2) == (["a5", "b5"], FanoutState(at=5, upto="b"))
    assert batch_of(three, [5, 7], 2, FanoutState(at=5, upto="b")) == (["c5", "a7"], FanoutState(done=5, at=7, upto="a"))
    assert batch_of(three, [5, 7], 3) == (["a5", "b5", "c5"], FanoutState(done=5, at=7, upto=""))
    assert batch_of(three, [5, 7], 6) == (["a5", "b5", "c5", "a7", "b7", "c7"], FanoutState(done=7))
    assert batch_of(three, [7], 6, FanoutState(done=3, at=5, upto="b")) == (["a7", "b7", "c7"], FanoutState(done=7)), (
        "message 5 was purged"
    )
    assert batch_of([], [5, 7], 6) == ([], FanoutState(done=7)), "nothing is outstanding without subscribers"


def test_a_subscriber_gets_messages_after_its_join() -> None:
    assert not is_eligible(subscriber("a", 5), 4, TEXT)
    assert not is_eligible(subscriber("a", 5), 5, TEXT)
    assert is_eligible(subscriber("a", 5), 6, TEXT)


def test_a_subscriber_gets_messages_of_its_type_or_in_an_envelope() -> None:
    message = SourceMessage(1, b"")
    assert not is_eligible(subscriber("a", media=JSON), message.sequence, TEXT)
    assert is_eligible(subscriber("a", media=JSON), message.sequence, JSON)
    assert is_eligible(subscriber("a", media=JSON, envelope=True), message.sequence, TEXT)


# Subscriber lists


def test_subscribers_are_in_the_order_of_their_ids() -> None:
    subscribers = SubscriberList([[subscriber("b", 2), subscriber("a", 3)], [subscriber("C", 1)]])
    assert [one.session for one in subscribers.after("")] == ["C", "a", "b"]
    assert (len(subscribers), subscribers.first_joined()) == (3, 1)


def test_a_session_counts_once_from_its_first_join() -> None:
    early, late = subscriber("a", 3, JSON, envelope=True), subscriber("a", 8)
    assert SubscriberList([[late], [early]]).after("") == [early]
    assert SubscriberList([[early], [late]]).after("") == [early]


@pytest.mark.parametrize(("after", "left"), [("", "abd"), ("a", "bd"), ("b", "d"), ("c", "d"), ("d", ""), ("z", "")])
def test_subscribers_after_an_id_that_may_have_left(after: str, left: str) -> None:
    subscribers = SubscriberList([[subscriber("a"), subscriber("b"), subscriber("d")]])
    assert "".join(one.session for one in subscribers.after(after)) == left


def test_an_empty_list_has_no_subscribers() -> None:
    assert (len(SubscriberList([])), SubscriberList([[]]).first_joined(), list(SubscriberList([]).after("x"))) == (0, 0, [])


def test_eligible_subscribers_joined_before_the_message() -> None:
    subscribers = SubscriberList([[subscriber("a", 3), subscriber("b", 5), subscriber("c", 7)]])
    assert [subscribers.count_eligible(sequence, TEXT) for sequence in (3, 4, 5, 6, 8)] == [0, 1, 1, 2, 3]
    assert subscribers.count_eligible(8, JSON) == 0


# Modes


@pytest.mark.parametrize("count", [0, 1, 200])
@pytest.mark.parametrize("has_queue", [True, False])
def test_a_fanout_up_to_the_threshold_is_inline(count: int, has_queue: bool) -> None:
    assert mode_for(count, limits(has_queue=has_queue)) is FanoutMode.INLINE


@pytest.mark.parametrize("count", [201, 1000, 1001, 100_000])
def test_a_fanout_above_the_threshold_is_queued(count: int) -> None:
    assert mode_for(count, limits()) is FanoutMode.QUEUED


@pytest.mark.parametrize(("count", "mode"), [(201, "inline"), (1000, "inline"), (1001, "skipped"), (9999, "skipped")])
def test_without_a_queue_a_fanout_above_the_maximum_is_skipped(count: int, mode: str) -> None:
    assert mode_for(count, limits(has_queue=False)) == mode


def test_modes_have_documented_names() -> None:
    assert [mode.value for mode in FanoutMode] == ["inline", "queued", "circuit-open", "skipped"]


# Names


@pytest.mark.parametrize("text", ["a", "user-alice", "0190a5a1-7c3e-7000-8000-000000000000", "a.b:c_d-e", "x" * 128])
def test_a_valid_session_id_is_accepted(text: str) -> None:
    assert session_id(text) == text


@pytest.mark.parametrize("text", ["", "x" * 129, "a/b", "a b", "a*", "a\n", "\u00e9", ">", "a%2Fb"])
def test_an_invalid_session_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        session_id(text)


@pytest.mark.parametrize("text", ["chat", "chat:*", "*", "a/*/c", "a*b*c", "x" * 256])
def test_a_stream_or_a_pattern_can_be_subscribed_to(text: str) -> None:
    assert source_id(text) == text
    assert is_pattern(text) == ("*" in text)


@pytest.mark.parametrize("text", ["", "*" * 9, "x" * 256 + "*", "a b*", "a//b", "a*\n", ">*", "/a"])
def test_an_invalid_stream_or_pattern_is_refused(text: str) -> None:
    with pytest.raises(InvalidParameter):
        source_id(text)


@pytest.mark.parametrize("text", ["session:42", "session:*"])
def test_streams_of_sessions_cannot_be_subscribed_to(text: str) -> None:
    with pytest.raises(InvalidParameter):
        source_id(text)


@pytest.mark.parametrize(
    ("pattern", "stream", "fits"),
    [
        ("chat:*", "chat:1", True),
        ("chat:*", "chat:", True),
        ("chat:*", "chat", False),
        ("chat:*", "xchat:1", False),
        ("chat:*", "chat:1/2", False),
        ("*", "a/b", False),
        ("*/b", "a/b", True),
        ("a/*/c", "a/b/c", True),
        ("a/*/c", "a/b/b/c", False),
        ("a*b*c", "abbc", True),
        ("a*b*c", "acb", False),
        ("a.c*", "abc", False),
        ("*", "session:1", False),
        ("s*", "session:1", False),
        ("*", "sessions", True),
    ],
)
def test_a_star_matches_within_one_segment_and_no_session_streams(pattern: str, stream: str, fits: bool) -> None:
    assert pattern_matches(pattern, stream) is fits


@given(st.text("ab/*.", min_size=1, max_size=8), st.text("ab/.", min_size=1, max_size=8))
def test_patterns_match_like_a_regular_expression(pattern: str, stream: str) -> None:
    expression = "[^/]*".join(re.escape(part) for part in pattern.split("*"))
    assert pattern_matches(pattern, stream) is (re.fullmatch(expression, stream) is not None)


def test_a_pathological_pattern_is_matched_quickly() -> None:
    """Subscribers choose the patterns, and every publish matches them. With backtracking, the test would time out."""
    assert not pattern_matches("*a*a*a*a*a*a*a*b", "a" * 255)


# Envelopes


def test_json_in_an_envelope_stays_json() -> None:
    made = envelope("chat:1", "0_5", b'{"a":1},2', JSON)
    assert msgspec.json.decode(made) == {"stream": "chat:1", "offset": "0_5", "messages": [{"a": 1}, 2]}


def test_text_in_an_envelope_is_a_string() -> None:
    made = envelope("chat", "0_5", 'say "\u00e9"\n'.encode() + b"\xff", TEXT)
    assert msgspec.json.decode(made) == {"stream": "chat", "offset": "0_5", "text": 'say "\u00e9"\n\ufffd'}


@given(st.binary())
def test_bytes_in_an_envelope_are_base64(payload: bytes) -> None:
    made = msgspec.json.decode(envelope("chat", "0_5", payload, "application/octet-stream"))
    assert (base64.b64decode(made.pop("base64")), made) == (payload, {"stream": "chat", "offset": "0_5"})


def test_an_empty_envelope_names_the_source() -> None:
    assert msgspec.json.decode(empty_envelope("chat", "0_5")) == {"stream": "chat", "offset": "0_5", "isOmitted": True}


# Stored formats


def test_records_have_a_version_and_ignore_unknown_fields() -> None:
    change = SubscriberChange(kind=ChangeKind.JOIN, joined=(subscriber("a", 5, envelope=True),))
    assert decode_change(encode(change)) == change
    assert decode_change(b'{"v":2,"op":"-","sessions":["a"],"new":1}') == SubscriberChange(
        v=2, kind=ChangeKind.LEAVE, left=("a",)
    )
    assert decode_state(b"{}") == FanoutState()
    record = SessionRecord(id="a", content_type=TEXT, created_at_ms=1, expires_at_ms=2, subscriptions={})
    assert msgspec.json.decode(encode(record))["v"] == 1
