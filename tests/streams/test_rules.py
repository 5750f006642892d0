"""Is each rule of the protocol right? Pure: no engine, no clock, no sleep."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, combinations
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.api.streams import (
    ContentTypeMismatch,
    ProducerFenced,
    ProducerGap,
    SequenceConflict,
    StreamClosed,
    StreamGone,
    StreamNotFound,
)
from postroad.kernel.errors import InvalidParameter, MalformedJson, PostroadError
from postroad.streams import rules
from postroad.streams.offsets import offset_text
from postroad.streams.records import ClosedBy, Producer, State, StreamRecord, resolve
from postroad.streams.rules import (
    SAFE_INTEGER,
    AppendOutcome,
    AppendRequest,
    ProducerClaim,
    StreamChange,
    StreamSnapshot,
    check_seq,
    decide,
    existing_record,
    is_expired,
    parse_producer,
    with_change,
)
from tests.streams.naive import Naive

NOON = 1_800_000_000_000
TEXT = "text/plain"


def stream(**changes: Any) -> StreamRecord:
    return StreamRecord(**{"id": "s", "content_type": TEXT, "created_at_ms": NOON, "incarnation": 3, **changes})


def known(record: StreamRecord | None = None, **more: Any) -> StreamSnapshot:
    return StreamSnapshot(
        record or stream(), **{"record_at": 3, "last": 9, "tail": 9, "used_at_ms": NOON, "producers": {}, **more}
    )


def request(data: bytes | None = b"x", **more: Any) -> AppendRequest:
    return AppendRequest(data, **{"content_type": TEXT if data is not None else None, **more})


def claim(epoch: int, sequence: int, producer: str = "p") -> ProducerClaim:
    return ProducerClaim(producer, epoch, sequence)


# Producers

NEW = "new"


class Refusal(NamedTuple):
    of: type[PostroadError]
    headers: dict[str, str]


@pytest.mark.parametrize(
    ("before", "sent", "expected"),
    [
        (None, (0, 0), NEW),
        (None, (7, 0), NEW),
        (None, (0, 1), Refusal(ProducerGap, {"Producer-Expected-Seq": "0", "Producer-Received-Seq": "1"})),
        (None, (4, 9), Refusal(ProducerGap, {"Producer-Expected-Seq": "0", "Producer-Received-Seq": "9"})),
        ((2, 5), (1, 6), Refusal(ProducerFenced, {"Producer-Epoch": "2"})),
        ((2, 5), (1, 0), Refusal(ProducerFenced, {"Producer-Epoch": "2"})),
        ((2, 5), (0, 5), Refusal(ProducerFenced, {"Producer-Epoch": "2"})),
        ((2, 5), (3, 1), Refusal(InvalidParameter, {})),
        ((2, 5), (3, 6), Refusal(InvalidParameter, {})),
        ((2, 5), (3, 0), NEW),
        ((2, 5), (SAFE_INTEGER, 0), NEW),
        ((2, 5), (2, 0), (2, 5)),
        ((2, 5), (2, 4), (2, 5)),
        ((2, 5), (2, 5), (2, 5)),
        ((2, 5), (2, 6), NEW),
        ((2, 5), (2, 7), Refusal(ProducerGap, {"Producer-Expected-Seq": "6", "Producer-Received-Seq": "7"})),
    ],
)
def test_the_producer_table(before: tuple[int, int] | None, sent: tuple[int, int], expected: object) -> None:
    """Row by row as the protocol has it. A duplicate is answered with the highest that was accepted, not with what was sent."""
    producers = {} if before is None else {"p": Producer(*before)}
    told = known(producers={**producers, "q": Producer(9, 9)}, last_seq="m")
    sent_wish = request(claim=claim(*sent))
    if isinstance(expected, Refusal):
        with pytest.raises(expected.of) as refusal:
            decide(told, sent_wish, NOON)
        assert dict(refusal.value.headers) == expected.headers
    elif expected == NEW:
        decided = decide(told, sent_wish, NOON)
        assert isinstance(decided, StreamChange)
        assert decided.producers == {"p": Producer(*sent)}, "and nothing of the others"
    else:
        assert isinstance(expected, tuple)
        assert decide(told, sent_wish, NOON) == AppendOutcome(9, False, is_duplicate=True, claim=claim(*expected))


def test_a_stream_has_room_for_so_many_producers_and_those_it_has_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "PRODUCERS_MAX", 2)
    full = known(producers={"p": Producer(0, 0), "q": Producer(0, 0)})
    with pytest.raises(InvalidParameter, match="at most 2 producers"):
        decide(full, request(claim=claim(0, 0, "r")), NOON)
    assert isinstance(decide(full, request(claim=claim(0, 1)), NOON), StreamChange)
    assert isinstance(decide(full, request(claim=claim(1, 0)), NOON), StreamChange)


@pytest.mark.parametrize(
    ("given_headers", "expected"),
    [
        ((None, None, None), None),
        (("p", "0", "0"), claim(0, 0)),
        (("p", "007", "0"), claim(7, 0)),
        (("ü" * 256, "0", str(SAFE_INTEGER)), claim(0, SAFE_INTEGER, "ü" * 256)),
        *[((*some,), InvalidParameter) for some in [("p", None, None), (None, "0", None), (None, None, "0")]],
        *[((*some,), InvalidParameter) for some in [("p", "0", None), ("p", None, "0"), (None, "0", "0")]],
        (("", "0", "0"), InvalidParameter),
        (("p" * 257, "0", "0"), InvalidParameter),
        *[
            ((("p", text, "0") if is_epoch else ("p", "0", text)), InvalidParameter)
            for text in ("", "1abc", "1e3", "-1", "+1", "1.5", " 1", "1 ", "1\n", "٣", "²", str(SAFE_INTEGER + 1), "0" * 17)
            for is_epoch in (True, False)
        ],
    ],
)
def test_producer_headers_come_together_and_are_whole_numbers(
    given_headers: tuple[str | None, str | None, str | None], expected: object
) -> None:
    if expected is InvalidParameter:
        with pytest.raises(InvalidParameter):
            parse_producer(*given_headers)
    else:
        assert parse_producer(*given_headers) == expected


# Closed streams


@pytest.mark.parametrize(
    ("closed_by", "tried", "is_done_before"),
    [
        (None, request(None, closes=True), True),
        (("p", 0, 4), request(None, closes=True), True),
        (None, request(), False),
        (None, request(closes=True), False),
        (None, request(content_type="image/png"), False),
        (None, request(seq="a"), False),
        (None, request(None, closes=True, claim=claim(0, 4)), False),
        (("p", 0, 4), request(closes=True, claim=claim(0, 4)), True),
        (("p", 0, 4), request(b"another body", claim=claim(0, 4)), True),
        (("p", 0, 4), request(None, closes=True, claim=claim(0, 4)), True),
        (("p", 0, 4), request(claim=claim(0, 3)), False),
        (("p", 0, 4), request(claim=claim(0, 5)), False),
        (("p", 0, 4), request(claim=claim(1, 0)), False),
        (("p", 0, 4), request(claim=claim(0, 4, "q")), False),
    ],
)
def test_a_closed_stream_takes_nothing_but_what_closed_it(
    closed_by: tuple[str, int, int] | None, tried: AppendRequest, is_done_before: bool
) -> None:
    closed = stream(is_closed=True, closed_by=None if closed_by is None else ClosedBy(*closed_by))
    told = known(closed, producers={"p": Producer(0, 4)}, last_seq="z")
    if is_done_before:
        assert decide(told, tried, NOON) == AppendOutcome(9, is_closed=True, is_duplicate=True, claim=tried.claim)
    else:
        with pytest.raises(StreamClosed) as refusal:
            decide(told, tried, NOON)
        assert list(refusal.value.headers) == [("Stream-Closed", "true"), ("Stream-Next-Offset", offset_text(9))]


@pytest.mark.parametrize("body", [None, b"the end"])
@pytest.mark.parametrize("said", [None, claim(0, 0)])
def test_closing_is_noted_with_who_did_it(body: bytes | None, said: ProducerClaim | None) -> None:
    decided = decide(known(), request(body, closes=True, claim=said), NOON)
    assert isinstance(decided, StreamChange)
    assert decided.record is not None
    assert decided.record.is_closed
    assert decided.record.closed_by == (None if said is None else ClosedBy("p", 0, 0))


# The order of the checks

IN_ORDER: Mapping[str, type[PostroadError]] = {
    "missing": StreamNotFound,
    "untyped": InvalidParameter,
    "closed": StreamClosed,
    "type": ContentTypeMismatch,
    "producer": ProducerGap,
    "seq": SequenceConflict,
    "body": MalformedJson,
}
ALL_SETS = list(chain.from_iterable(combinations(IN_ORDER, count) for count in range(len(IN_ORDER) + 1)))


def test_of_several_faults_the_first_in_the_protocols_order_is_told() -> None:
    for faults in ALL_SETS:
        record = stream(is_closed="closed" in faults, state=State.DELETED if "missing" in faults else State.LIVE)
        tried = request(
            content_type=None if "untyped" in faults else "image/png" if "type" in faults else "TEXT/Plain; charset=utf-8",
            claim=claim(0, 5) if "producer" in faults else claim(0, 1),
            seq="a" if "seq" in faults else "c",
            fault=MalformedJson() if "body" in faults else None,
        )
        told = known(record, producers={"p": Producer(0, 0)}, last_seq="b")
        if not faults:
            assert isinstance(decide(told, tried, NOON), StreamChange)
            continue
        with pytest.raises(PostroadError) as refusal:
            decide(told, tried, NOON)
        first = next(fault for fault in IN_ORDER if fault in faults and not (fault == "type" and "untyped" in faults))
        assert refusal.type is IN_ORDER[first], faults


def test_a_duplicate_is_one_whatever_its_stream_seq_and_body_are_by_now() -> None:
    told = known(producers={"p": Producer(0, 3)}, last_seq="z")
    again = request(claim=claim(0, 2), seq="a", fault=MalformedJson())
    assert decide(told, again, NOON) == AppendOutcome(9, False, is_duplicate=True, claim=claim(0, 3))


def test_an_empty_body_is_refused_unless_it_closes_and_then_its_type_is_nobodys_business() -> None:
    for told in (known(), known(stream(is_closed=True))):
        with pytest.raises(InvalidParameter, match="empty"):
            decide(told, request(None, claim=claim(0, 0)), NOON)
    with pytest.raises(MalformedJson):
        decide(known(), request(None, fault=MalformedJson()), NOON)
    assert isinstance(decide(known(), request(None, content_type="image/png", closes=True), NOON), StreamChange)


@pytest.mark.parametrize(
    ("last", "sent", "is_later"),
    [
        (None, "", True),
        ("B", "a", True),
        ("a", "B", False),
        ("2", "10", False),
        ("2", "2", False),
        ("2", "20", True),
        ("09", "10", True),
        ("z", "é", True),
        ("\ue000", "\U00010000", True),
        ("\U00010000", "\ue000", False),
    ],
)
def test_stream_seq_rises_byte_by_byte(last: str | None, sent: str, is_later: bool) -> None:
    told = known(last_seq=last)
    if is_later:
        decided = decide(told, request(seq=sent), NOON)
        assert isinstance(decided, StreamChange)
        assert with_change(told, decided, NOON).last_seq == sent
    else:
        with pytest.raises(SequenceConflict):
            decide(told, request(seq=sent), NOON)


def test_a_stream_seq_has_a_length() -> None:
    assert check_seq(None) is None
    assert check_seq("a" * 256) == "a" * 256
    for text in ("", "a" * 257):
        with pytest.raises(InvalidParameter):
            check_seq(text)


def test_the_first_guarded_append_says_so_in_the_record_and_no_other_does() -> None:
    """From there on the producers are read; what came before has none."""
    assert isinstance(plain := decide(known(), request(), NOON), StreamChange)
    assert plain.record is None
    for guarded in (request(claim=claim(0, 0)), request(seq="a")):
        assert isinstance(first := decide(known(), guarded, NOON), StreamChange)
        assert first.record == stream(guarded_from=0)
        assert resolve(first.record, 12) == stream(guarded_from=12)
        assert isinstance(
            second := decide(with_change(known(), first, NOON), request(claim=claim(0, 0, "q"), seq="b"), NOON), StreamChange
        )
        assert second.record is None


def test_a_record_that_was_the_first_was_born_where_it_is() -> None:
    assert resolve(stream(incarnation=0), 7).incarnation == 7
    assert resolve(stream(incarnation=5), 7).incarnation == 5
    assert resolve(stream(incarnation=5, guarded_from=6), 7).guarded_from == 6


# Against a naive model

CLAIMS = st.builds(ProducerClaim, st.sampled_from(["p", "q"]), st.integers(0, 2), st.integers(0, 3))
APPENDS = st.tuples(
    st.none() | CLAIMS,
    st.none() | st.sampled_from(["1", "10", "2", "a", "B"]),
    st.integers(0, 9).map(lambda n: n == 0),
    st.booleans(),
)


@given(st.lists(APPENDS, max_size=30))
def test_appends_in_any_order_are_judged_as_the_protocols_words_would(
    appends: list[tuple[ProducerClaim | None, str | None, bool, bool]],
) -> None:
    naive, told = Naive(), known(stream(guarded_from=3))
    producers: dict[str, Producer] = {}
    for said, seq, closes, has_data in appends:
        told = replace(told, producers=producers)
        try:
            decided = decide(told, request(b"x" if has_data else None, claim=said, seq=seq, closes=closes), NOON)
        except PostroadError as refusal:
            verdict = refusal.code
        else:
            if isinstance(decided, StreamChange):
                verdict = "new"
                producers.update(decided.producers or {})
                told = with_change(told, decided, NOON)
            else:
                verdict = "duplicate"
        assert verdict == naive.append(said, seq, closes, has_data)
        assert {name: (one.epoch, one.sequence) for name, one in producers.items()} == naive.producers


# Expiry and what is found


@given(touched=st.integers(0, 10**13), ttl=st.integers(0, 10**9), now=st.integers(0, 2 * 10**13))
def test_a_sliding_lifetime_counts_from_the_last_use(touched: int, ttl: int, now: int) -> None:
    assert is_expired(stream(ttl_seconds=ttl), touched, now) == (now - touched >= ttl * 1000)
    assert not is_expired(stream(), touched, now)


@given(touched=st.integers(0, 10**13), until=st.integers(0, 10**13), now=st.integers(0, 2 * 10**13))
def test_a_fixed_end_is_not_moved_by_use(touched: int, until: int, now: int) -> None:
    assert is_expired(stream(expires_at_ms=until), touched, now) == (now >= until)


def test_what_is_deleted_hidden_or_expired_is_not_found() -> None:
    assert existing_record(known(), NOON) == stream()
    with pytest.raises(StreamNotFound):
        existing_record(StreamSnapshot(None), NOON)
    with pytest.raises(StreamNotFound):
        existing_record(known(stream(state=State.DELETED)), NOON)
    with pytest.raises(StreamGone):
        existing_record(known(stream(state=State.SOFT_DELETED)), NOON)
    existing_record(known(stream(ttl_seconds=1)), NOON + 999)
    with pytest.raises(StreamNotFound, match="expired"):
        existing_record(known(stream(ttl_seconds=1)), NOON + 1000)
