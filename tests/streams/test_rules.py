"""The rules of the protocol, without JetStream and clock."""

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


def snapshot(record: StreamRecord | None = None, **more: Any) -> StreamSnapshot:
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
    """The protocol's table. The response to a duplicate has the highest accepted sequence, not the sent one."""
    producers = {} if before is None else {"p": Producer(*before)}
    current = snapshot(producers={**producers, "q": Producer(9, 9)}, last_seq="m")
    sent_request = request(claim=claim(*sent))
    if isinstance(expected, Refusal):
        with pytest.raises(expected.of) as refusal:
            decide(current, sent_request, NOON)
        assert dict(refusal.value.headers) == expected.headers
    elif expected == NEW:
        decided = decide(current, sent_request, NOON)
        assert isinstance(decided, StreamChange)
        assert decided.producers == {"p": Producer(*sent)}, "other producers do not change"
    else:
        assert isinstance(expected, tuple)
        assert decide(current, sent_request, NOON) == AppendOutcome(9, False, is_duplicate=True, claim=claim(*expected))


def test_the_number_of_producers_is_limited_and_existing_ones_continue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "PRODUCERS_MAX", 2)
    full = snapshot(producers={"p": Producer(0, 0), "q": Producer(0, 0)})
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
def test_producer_headers_are_sent_together_and_are_integers(
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
def test_a_closed_stream_accepts_only_the_repeated_close(
    closed_by: tuple[str, int, int] | None, tried: AppendRequest, is_done_before: bool
) -> None:
    closed = stream(is_closed=True, closed_by=None if closed_by is None else ClosedBy(*closed_by))
    current = snapshot(closed, producers={"p": Producer(0, 4)}, last_seq="z")
    if is_done_before:
        assert decide(current, tried, NOON) == AppendOutcome(9, is_closed=True, is_duplicate=True, claim=tried.claim)
    else:
        with pytest.raises(StreamClosed) as refusal:
            decide(current, tried, NOON)
        assert list(refusal.value.headers) == [("Stream-Closed", "true"), ("Stream-Next-Offset", offset_text(9))]


@pytest.mark.parametrize("body", [None, b"the end"])
@pytest.mark.parametrize("said", [None, claim(0, 0)])
def test_a_close_stores_its_producer(body: bytes | None, said: ProducerClaim | None) -> None:
    decided = decide(snapshot(), request(body, closes=True, claim=said), NOON)
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


def test_the_first_of_several_faults_is_reported_in_the_protocols_order() -> None:
    for faults in ALL_SETS:
        record = stream(is_closed="closed" in faults, state=State.DELETED if "missing" in faults else State.LIVE)
        tried = request(
            content_type=None if "untyped" in faults else "image/png" if "type" in faults else "TEXT/Plain; charset=utf-8",
            claim=claim(0, 5) if "producer" in faults else claim(0, 1),
            seq="a" if "seq" in faults else "c",
            fault=MalformedJson() if "body" in faults else None,
        )
        current = snapshot(record, producers={"p": Producer(0, 0)}, last_seq="b")
        if not faults:
            assert isinstance(decide(current, tried, NOON), StreamChange)
            continue
        with pytest.raises(PostroadError) as refusal:
            decide(current, tried, NOON)
        first = next(fault for fault in IN_ORDER if fault in faults and not (fault == "type" and "untyped" in faults))
        assert refusal.type is IN_ORDER[first], faults


def test_a_duplicate_is_detected_before_seq_and_body_are_checked() -> None:
    current = snapshot(producers={"p": Producer(0, 3)}, last_seq="z")
    again = request(claim=claim(0, 2), seq="a", fault=MalformedJson())
    assert decide(current, again, NOON) == AppendOutcome(9, False, is_duplicate=True, claim=claim(0, 3))


def test_an_empty_body_is_refused_unless_it_closes_and_needs_no_content_type() -> None:
    for current in (snapshot(), snapshot(stream(is_closed=True))):
        with pytest.raises(InvalidParameter, match="empty"):
            decide(current, request(None, claim=claim(0, 0)), NOON)
    with pytest.raises(MalformedJson):
        decide(snapshot(), request(None, fault=MalformedJson()), NOON)
    assert isinstance(decide(snapshot(), request(None, content_type="image/png", closes=True), NOON), StreamChange)


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
def test_stream_seq_is_compared_byte_by_byte(last: str | None, sent: str, is_later: bool) -> None:
    current = snapshot(last_seq=last)
    if is_later:
        decided = decide(current, request(seq=sent), NOON)
        assert isinstance(decided, StreamChange)
        assert with_change(current, decided, NOON).last_seq == sent
    else:
        with pytest.raises(SequenceConflict):
            decide(current, request(seq=sent), NOON)


def test_the_length_of_stream_seq_is_limited() -> None:
    assert check_seq(None) is None
    assert check_seq("a" * 256) == "a" * 256
    for text in ("", "a" * 257):
        with pytest.raises(InvalidParameter):
            check_seq(text)


def test_only_the_first_guarded_append_changes_the_record() -> None:
    """Producers are read from that sequence on."""
    assert isinstance(plain := decide(snapshot(), request(), NOON), StreamChange)
    assert plain.record is None
    for guarded in (request(claim=claim(0, 0)), request(seq="a")):
        assert isinstance(first := decide(snapshot(), guarded, NOON), StreamChange)
        assert first.record == stream(guarded_from=0)
        assert resolve(first.record, 12) == stream(guarded_from=12)
        assert isinstance(
            second := decide(with_change(snapshot(), first, NOON), request(claim=claim(0, 0, "q"), seq="b"), NOON), StreamChange
        )
        assert second.record is None


def test_the_incarnation_of_a_first_record_is_its_own_sequence() -> None:
    assert resolve(stream(incarnation=0), 7).incarnation == 7
    assert resolve(stream(incarnation=5), 7).incarnation == 5
    assert resolve(stream(incarnation=5, guarded_from=6), 7).guarded_from == 6


# Comparison with a naive model

CLAIMS = st.builds(ProducerClaim, st.sampled_from(["p", "q"]), st.integers(0, 2), st.integers(0, 3))
APPENDS = st.tuples(
    st.none() | CLAIMS,
    st.none() | st.sampled_from(["1", "10", "2", "a", "B"]),
    st.integers(0, 9).map(lambda n: n == 0),
    st.booleans(),
)


@given(st.lists(APPENDS, max_size=30))
def test_decisions_equal_those_of_a_naive_model(
    appends: list[tuple[ProducerClaim | None, str | None, bool, bool]],
) -> None:
    naive, current = Naive(), snapshot(stream(guarded_from=3))
    producers: dict[str, Producer] = {}
    for said, seq, closes, has_data in appends:
        current = replace(current, producers=producers)
        try:
            decided = decide(current, request(b"x" if has_data else None, claim=said, seq=seq, closes=closes), NOON)
        except PostroadError as refusal:
            verdict = refusal.code
        else:
            if isinstance(decided, StreamChange):
                verdict = "new"
                producers.update(decided.producers or {})
                current = with_change(current, decided, NOON)
            else:
                verdict = "duplicate"
        assert verdict == naive.append(said, seq, closes, has_data)
        assert {name: (one.epoch, one.sequence) for name, one in producers.items()} == naive.producers


# Expiry


@given(touched=st.integers(0, 10**13), ttl=st.integers(0, 10**9), now=st.integers(0, 2 * 10**13))
def test_a_ttl_counts_from_the_last_use(touched: int, ttl: int, now: int) -> None:
    assert is_expired(stream(ttl_seconds=ttl), touched, now) == (now - touched >= ttl * 1000)
    assert not is_expired(stream(), touched, now)


@given(touched=st.integers(0, 10**13), until=st.integers(0, 10**13), now=st.integers(0, 2 * 10**13))
def test_a_fixed_expiry_does_not_move(touched: int, until: int, now: int) -> None:
    assert is_expired(stream(expires_at_ms=until), touched, now) == (now >= until)


def test_a_deleted_or_expired_stream_does_not_exist() -> None:
    assert existing_record(snapshot(), NOON) == stream()
    with pytest.raises(StreamNotFound):
        existing_record(StreamSnapshot(None), NOON)
    with pytest.raises(StreamNotFound):
        existing_record(snapshot(stream(state=State.DELETED)), NOON)
    with pytest.raises(StreamGone):
        existing_record(snapshot(stream(state=State.SOFT_DELETED)), NOON)
    existing_record(snapshot(stream(ttl_seconds=1)), NOON + 999)
    with pytest.raises(StreamNotFound, match="expired"):
        existing_record(snapshot(stream(ttl_seconds=1)), NOON + 1000)
