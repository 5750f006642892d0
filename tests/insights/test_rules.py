"""Time ranges, the messages that cover them, the order of rows, and cursors."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.api.insights import Grain
from postroad.api.reports.health import REPORT as HEALTH
from postroad.api.reports.health import HealthRow
from postroad.insights.rules import Position, Span, decode_cursor, encode_cursor, is_in, make_key, parts, row_key, span
from postroad.kernel.errors import InvalidParameter

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


def ms(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp() * 1000)  # type: ignore[misc,arg-type]


NOW = ms(2026, 11, 16, 12, 34, 56)


def test_the_default_range_is_the_last_day_by_the_hour() -> None:
    assert span(None, None, None, NOW) == Span(Grain.HOUR, ms(2026, 11, 15, 12), ms(2026, 11, 16, 13))


def test_the_default_start_is_a_day_before_the_end() -> None:
    assert span(None, ms(2026, 1, 2), None, NOW) == Span(Grain.HOUR, ms(2026, 1, 1), ms(2026, 1, 2))


@pytest.mark.parametrize(
    ("length", "grain"),
    [
        (1, Grain.MINUTE),
        (2 * HOUR, Grain.MINUTE),
        (2 * HOUR + 1, Grain.HOUR),
        (3 * DAY, Grain.HOUR),
        (3 * DAY + 1, Grain.DAY),
        (400 * DAY, Grain.DAY),
    ],
)
def test_the_default_grain_depends_on_the_length_of_the_range(length: int, grain: Grain) -> None:
    assert span(NOW - length, NOW, None, 0).grain is grain


def test_a_range_is_rounded_to_whole_minutes_hours_or_days() -> None:
    since, until = ms(2026, 11, 16, 10, 20, 30), ms(2026, 11, 16, 11, 20, 30)
    assert span(since, until, Grain.MINUTE, 0)[1:] == (ms(2026, 11, 16, 10, 20), ms(2026, 11, 16, 11, 21))
    assert span(since, until, Grain.HOUR, 0)[1:] == (ms(2026, 11, 16, 10), ms(2026, 11, 16, 12))
    assert span(since, until, Grain.DAY, 0)[1:] == (ms(2026, 11, 16), ms(2026, 11, 17))
    assert span(ms(2026, 11, 16), ms(2026, 11, 17), Grain.DAY, 0)[1:] == (ms(2026, 11, 16), ms(2026, 11, 17))


@pytest.mark.parametrize(
    ("grain", "days", "hint"),
    [
        (Grain.MINUTE, 2, "grain=hour"),
        (Grain.HOUR, 92, "grain=day"),
        (Grain.DAY, 400, "shorter range"),
        (None, 400, "shorter range"),
    ],
)
def test_a_range_is_bounded(grain: Grain | None, days: int, hint: str) -> None:
    span(NOW - days * DAY, NOW, grain, 0)
    with pytest.raises(InvalidParameter, match=f"at most {days} days.*{hint}"):
        span(NOW - days * DAY - 1, NOW, grain, 0)


@pytest.mark.parametrize(("since", "until"), [(5, 5), (6, 5), (NOW + 1, None)])
def test_a_range_that_ends_before_it_begins_is_refused(since: int, until: int | None) -> None:
    with pytest.raises(InvalidParameter, match="must be before"):
        span(since, until, None, NOW)


def test_days_and_hours_are_in_one_message_per_day() -> None:
    asked = span(ms(2026, 12, 30, 5), ms(2027, 1, 1, 7), Grain.HOUR, 0)
    assert [(part.day, part.name) for part in parts(asked)] == [("20261230", "hour"), ("20261231", "hour"), ("20270101", "hour")]
    asked = span(ms(2024, 2, 28), ms(2024, 3, 1), Grain.DAY, 0)
    assert [(part.day, part.name) for part in parts(asked)] == [("20240228", "day"), ("20240229", "day")]


def test_minutes_are_in_one_message_per_requested_hour() -> None:
    asked = span(ms(2026, 11, 15, 22, 59), ms(2026, 11, 16, 1, 1), Grain.MINUTE, 0)
    assert [(part.day, part.name) for part in parts(asked)] == [
        ("20261115", "minute-22"),
        ("20261115", "minute-23"),
        ("20261116", "minute-00"),
        ("20261116", "minute-01"),
    ]


def test_after_a_key_only_messages_with_later_rows_are_read() -> None:
    asked = span(ms(2026, 11, 10), ms(2026, 11, 16), Grain.HOUR, 0)
    assert [part.day for part in parts(asked, (ms(2026, 11, 14, 23), "q"))] == ["20261114", "20261115"]
    assert len(list(parts(asked, (0,)))) == 6


def test_a_row_outside_the_range_of_its_message_is_left_out() -> None:
    asked = span(ms(2026, 11, 15, 6), ms(2026, 11, 16, 6), Grain.HOUR, 0)
    first, second = parts(asked)
    for at, expected in ((ms(2026, 11, 15, 5), False), (ms(2026, 11, 15, 6), True), (ms(2026, 11, 16), False)):
        assert is_in(make_key(at), asked, first) == expected
    assert [is_in(make_key(ms(2026, 11, 16, hour)), asked, second) for hour in (5, 6)] == [True, False]


@given(st.integers(0, 2**42), st.integers(1, 400 * DAY), st.sampled_from([*Grain, None]))
def test_every_minute_hour_or_day_of_a_range_is_in_exactly_one_message(since: int, length: int, grain: Grain | None) -> None:
    try:
        asked = span(since, since + length, grain, 0)
    except InvalidParameter:
        return
    assert asked.since <= since and asked.until >= since + length
    unit = {Grain.MINUTE: MINUTE, Grain.HOUR: HOUR, Grain.DAY: DAY}[asked.grain]
    read = list(parts(asked))
    assert len(read) == len({part[:2] for part in read}) <= 402
    for at in range(asked.since, asked.until, unit * 7):
        assert sum(is_in(make_key(at), asked, part) for part in read) == 1


@given(
    st.none() | st.tuples(st.integers(0, 2**42), st.integers(1, 2 * DAY), st.sampled_from(Grain)),
    st.integers(0, 2**45),
    st.lists(st.text(max_size=300), max_size=2),
)
def test_a_cursor_decodes_to_its_position(asked: tuple[int, int, Grain] | None, at: int, names: list[str]) -> None:
    given_span = None if asked is None else span(asked[0], asked[0] + asked[1], asked[2], 0)
    position = Position(given_span, make_key(at, *names))
    text = encode_cursor(position)
    assert decode_cursor(text, has_time=given_span is not None) == position
    assert text.replace("-", "").replace("_", "").isalnum() and len(text) <= 2048
    with pytest.raises(InvalidParameter):
        decode_cursor(text, has_time=given_span is None)


@pytest.mark.parametrize("text", ["", "7", "x", "AAAA", "e30", "W10", "WzEsMiwzLFtdXQ", "bnVsbA", "Ww", "-_-_"])
def test_other_texts_are_refused_as_cursors(text: str) -> None:
    for has_time in (True, False):
        with pytest.raises(InvalidParameter):
            decode_cursor(text, has_time=has_time)


@pytest.mark.parametrize(
    "asked",
    [
        Span(Grain.MINUTE, 0, 3 * DAY),
        Span(Grain.MINUTE, 0, 2 * DAY + 3 * MINUTE),
        Span(Grain.HOUR, 5, HOUR),
        Span(Grain.HOUR, 0, HOUR + 5),
        Span(Grain.DAY, 5, 5),
        Span(Grain.DAY, -5, 5),
        Span(Grain.DAY, 2**60, 2**60 + 1),
    ],
)
def test_a_forged_cursor_cannot_request_an_invalid_range(asked: Span) -> None:
    with pytest.raises(InvalidParameter):
        decode_cursor(encode_cursor(Position(asked, (0, ""))), has_time=True)


@pytest.mark.parametrize(("grain", "days"), [(Grain.MINUTE, 2), (Grain.HOUR, 92), (Grain.DAY, 400)])
def test_the_longest_range_has_valid_cursors(grain: Grain, days: int) -> None:
    """Rounding makes it longer than the limit."""
    position = Position(span(NOW - days * DAY, NOW, grain, 0), (NOW, ""))
    assert decode_cursor(encode_cursor(position), has_time=True) == position


def test_long_names_that_differ_at_the_end_have_different_keys() -> None:
    first, second = make_key(1, "q", "x" * 900 + "1"), make_key(1, "q", "x" * 900 + "2")
    assert first != second and max(len(str(name)) for name in first) < 200


def test_unhealthy_queues_come_first() -> None:
    names = [("healthy", "a"), ("unknown", "b"), ("unhealthy", "z"), ("new-status", "c")]
    keys = [row_key(HEALTH, HealthRow(queue=queue, status=status, problems=[]), None) for status, queue in names]
    assert sorted(keys) == [keys[index] for index in (3, 2, 1, 0)]
