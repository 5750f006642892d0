"""Follower without a network: nothing is lost or repeated, for any split of responses."""

import logging
from base64 import b64encode
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.api.streams import Chunk, StreamMessage
from postroad.client.calls import Call
from postroad.client.errors import Overloaded, RateLimited, StreamNotFound, Unreachable
from postroad.client.follower import Event, EventParser, Follower, Live, Position

READ: Call[Chunk] = Call(method="GET", path="/v1/stream/s", query={"offset": None})
JSON = "application/json"


def offset(number: int) -> str:
    return f"{number:04}"


def chunk(
    messages: list[Any], start: int, *, media: str = JSON, is_up_to_date: bool = True, is_closed: bool = False, data: bytes = b""
) -> Chunk:
    """A chunk whose offsets are message counts."""
    return Chunk(
        content_type=media,
        data=msgspec.json.encode(messages) if media == JSON else data,
        next_offset=offset(start + len(messages)),
        is_up_to_date=is_up_to_date,
        is_closed=is_closed,
    )


def values(messages: list[StreamMessage]) -> list[Any]:
    return [message.value for message in messages]


# Events


def cut(text: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[begin:end] for begin, end in pairwise(ends)]


def parse(pieces: list[bytes]) -> list[Event]:
    parser = EventParser()
    return [event for piece in pieces for event in parser.feed(piece)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["data", "control"]),
            st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])), min_size=1),
        )
    ),
    st.lists(st.integers(0, 10_000)),
    st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_events_do_not_depend_on_the_split_of_the_response(
    events: list[tuple[str, list[str]]], places: list[int], end: str
) -> None:
    text = "".join(
        f"event: {kind}{end}" + "".join(f"data: {line}{end}" for line in lines) + f": beat{end}{end}" for kind, lines in events
    )
    wanted = [Event(kind, "\n".join(lines).encode()) for kind, lines in events]
    assert parse(cut(text.encode(), places)) == wanted


def test_an_event_without_data_is_ignored() -> None:
    assert parse([b"retry: 1000\n\n: beat\n\nid: 7\nevent: control\ndata:{}\n\nevent: data\n\n"]) == [
        Event("control", b"{}", "7")
    ]


def test_an_event_is_complete_after_a_single_cr() -> None:
    parser = EventParser()
    assert list(parser.feed(b"event: data\rdata:1\r\r")) == [Event("data", b"1")]
    assert list(parser.feed(b"\nevent: data\r\ndata:2\r\n\r\n")) == [Event("data", b"2")]


# Positions


@given(st.lists(st.integers(1, 4), max_size=8), st.integers(0, 40), st.lists(st.integers(1, 4), max_size=20))
def test_a_saved_offset_and_skip_continue_without_gaps_and_repetitions(
    sizes: list[int], stop: int, later_sizes: list[int]
) -> None:
    """Also if the next responses have other sizes."""
    total = sum(sizes)

    def read(sizes: list[int], position: Position, start: int) -> Iterator[StreamMessage]:
        at = start
        for size in [*sizes, *[1] * total]:
            if at >= total:
                return
            end = min(total, at + size)
            yield from position.advance_by(chunk(list(range(at, end)), at))
            at = end

    first = list(read(sizes, Position("-1"), 0))[:stop]
    saved = first[-1] if first else None
    place, skip = (saved.offset, saved.skip) if saved else ("-1", 0)
    rest = list(read(later_sizes, Position(place, skip), 0 if place == "-1" else int(place)))
    assert values(first) + values(rest) == list(range(total))


def test_skip_is_ignored_for_bytes() -> None:
    position = Position("0001", 3)
    assert [message.data for message in position.advance_by(chunk([], 9, media="text/plain", data=b"abc"))] == [b"abc"]
    assert position.advance_by(chunk([], 9, media="text/plain")) == []
    with pytest.raises(ValueError, match="skip"):
        Position("0001", -1)


# Following


def event(kind: str, data: bytes) -> bytes:
    return b"event: " + kind.encode() + b"\ndata:" + data + b"\n\n"


def control(number: int, *, is_closed: bool = False) -> bytes:
    fields: dict[str, Any] = {"streamNextOffset": offset(number), "upToDate": True}
    fields |= {"streamClosed": True} if is_closed else {"streamCursor": str(number)}
    return event("control", msgspec.json.encode(fields))


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def follower(start: str = "-1", live: Live | None = None, clock: Clock | None = None, skip: int = 0) -> Follower:
    return Follower(READ, Position(start, skip), live, clock or Clock())


def live_follower(clock: Clock | None = None) -> Follower:
    """A follower at the start of an empty stream that reads events."""
    reader = follower(clock=clock)
    reader.next_call()
    reader.on_chunk(chunk([], 0))
    assert reader.reads_events
    reader.next_call()
    reader.on_open({})
    return reader


def test_a_follower_catches_up_and_then_reads_events() -> None:
    reader = follower()
    assert (reader.reads_events, reader.next_call().query) == (False, {"offset": "-1"})
    assert values(reader.on_chunk(chunk([0, 1], 0, is_up_to_date=False))) == [0, 1]
    assert (reader.reads_events, reader.next_call().query) == (False, {"offset": "0002"})
    assert values(reader.on_chunk(chunk([2], 2))) == [2]
    assert (reader.reads_events, reader.next_call().query) == (True, {"offset": "0003", "live": "sse", "cursor": None})


@pytest.mark.parametrize(
    ("media", "live", "wanted"),
    [
        (JSON, None, "sse"),
        ("application/octet-stream", None, "sse"),
        ("text/plain; charset=utf-8", None, "long-poll"),  # events would change its line endings
        ("text/plain", "sse", "sse"),
        (JSON, "long-poll", "long-poll"),
    ],
)
def test_text_is_polled_unless_requested_otherwise(media: str, live: Live | None, wanted: str) -> None:
    reader = follower(live=live)
    reader.next_call()
    reader.on_chunk(chunk([], 0, media=media))
    call = reader.next_call()
    assert call.query["live"] == wanted
    assert (call.wait_seconds > 0) is (wanted == "long-poll")


def test_data_is_returned_once_its_offset_is_known() -> None:
    reader = live_follower()
    assert reader.on_data(event("data", b"[1,2]")) == []
    messages = reader.on_data(control(2))
    assert [(message.value, message.offset, message.skip) for message in messages] == [(1, "0000", 1), (2, "0002", 0)]
    assert reader.on_data(event("data", b"[3]") + event("data", b"[4]") + control(4) + event("data", b"[5]")) != []
    # The connection breaks: 5 had no offset, so it is read again.
    assert reader.next_call().query == {"offset": "0004", "live": "sse", "cursor": "4"}
    reader.on_open({})
    assert values(reader.on_data(event("data", b"[5]") + control(5, is_closed=True) + event("data", b"[6]"))) == [5]
    assert reader.has_ended()


def test_bytes_of_one_event_are_one_piece() -> None:
    reader = follower()
    reader.next_call()
    reader.on_chunk(chunk([], 0, media="application/octet-stream"))
    reader.next_call()
    reader.on_open({"stream-sse-data-encoding": "base64"})
    sent = event("data", b64encode(b"\x00\xff")) + event("data", b64encode(b"\r\n")) + control(2)
    assert [(message.data, message.offset) for message in reader.on_data(sent)] == [(b"\x00\xff\r\n", "0002")]


@pytest.mark.parametrize("sent", [event("data", b"no json"), event("control", b"{}"), event("control", b"oops")])
def test_an_invalid_event_is_treated_like_a_broken_connection(sent: bytes) -> None:
    with pytest.raises(Unreachable):
        live_follower().on_data(sent)


def test_an_empty_poll_may_lack_the_content_type() -> None:
    reader = follower(live="long-poll")
    reader.next_call()
    reader.on_chunk(chunk([0], 0))
    reader.next_call()
    assert reader.on_chunk(Chunk(content_type="", data=b"", next_offset="0001", is_up_to_date=True, is_closed=False)) == []
    assert values(reader.on_chunk(chunk([1], 1, is_closed=True))) == [1]
    assert reader.has_ended()


def test_pauses_grow_without_progress_and_reset_with_progress() -> None:
    reader = live_follower()
    pauses = [reader.pause_after(Unreachable("away")) for _ in range(9)]
    assert 0.05 <= pauses[0] <= 0.1
    assert 2.5 <= pauses[-1] <= 5
    reader.next_call()
    reader.on_open({})
    reader.on_data(event("data", b"[1]") + control(1))
    assert reader.pause_after(Unreachable("away")) <= 0.1
    assert reader.pause_after(RateLimited(retry_after=70)) == 70


def test_an_empty_response_that_ends_at_once_is_followed_by_a_pause() -> None:
    clock = Clock()
    reader = live_follower(clock)
    reader.on_data(control(0))
    assert reader.pause_seconds() > 0
    reader.next_call()
    clock.now += 60  # the server ends a response regularly
    assert reader.pause_seconds() == 0
    reader.next_call()
    reader.on_data(event("data", b"[1]") + control(1))
    assert reader.pause_seconds() == 0


def test_permanent_errors_are_raised_and_temporary_ones_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    reader = live_follower()
    with pytest.raises(StreamNotFound):
        reader.pause_after(StreamNotFound())
    with caplog.at_level(logging.WARNING, "postroad.streams"):
        reader.pause_after(Overloaded("busy"))
        reader.pause_after(Overloaded("busy"))
        reader.next_call()
        reader.on_data(control(0))
    assert caplog.messages == ["the stream cannot be read, retrying: busy", "reading the stream works again"]
