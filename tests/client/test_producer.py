"""Producers without a network: a number is used for one append only, so none is repeated or dropped."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.api.streams import Appended
from postroad.client.calls import Call, Content
from postroad.client.errors import (
    EngineUnavailable,
    Forbidden,
    Overloaded,
    PostroadError,
    ProducerFenced,
    StreamClosed,
    TooLarge,
    Unreachable,
)
from postroad.client.producer import Append, Numbering
from postroad.client.stream_protocol import content_of, content_of_messages, stream_path

OK = Appended(offset="1", is_closed=False)


def append_of(data: str, *, closes: bool = False) -> Append:
    return Append(Content(data.encode(), "text/plain"), closes)


def play(numbering: Numbering, wanted: Append, answer: Callable[[Call[Any]], Appended]) -> Appended:
    """Execute like a transport."""
    script = numbering.append(wanted)
    try:
        call = next(script)
        while True:
            try:
                appended = answer(call)
            except PostroadError as problem:
                call = script.throw(problem)
            else:
                call = script.send(appended)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


class Server:
    """Stores new appends like a server. Loses responses on request."""

    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.before: list[PostroadError] = []  # raised before the append is stored
        self.after: list[PostroadError] = []  # raised although the append is stored

    def __call__(self, call: Call[Any]) -> Appended:
        if self.before:
            raise self.before.pop(0)
        seq = int(call.headers["Producer-Seq"])
        assert seq <= len(self.stored), "a gap"
        assert isinstance(call.body, Content)
        is_duplicate = seq < len(self.stored)
        if not is_duplicate:
            self.stored.append(call.body.data)
        if self.after:
            raise self.after.pop(0)
        return Appended(offset="1", is_closed=False, is_duplicate=is_duplicate)


def has_no_uncertain_append(producer: Numbering) -> bool:
    return producer.in_doubt is None


def numbering() -> Numbering:
    return Numbering("/v1/stream/s", "p", 3, 0)


def test_appends_are_numbered_and_may_be_repeated() -> None:
    producer, calls = numbering(), list[Call[Any]]()

    def answer(call: Call[Any]) -> Appended:
        calls.append(call)
        return OK

    play(producer, append_of("a"), answer)
    play(producer, append_of("b", closes=True), answer)
    assert [(call.headers["Producer-Id"], call.headers["Producer-Epoch"], call.headers["Producer-Seq"]) for call in calls] == [
        ("p", "3", "0"),
        ("p", "3", "1"),
    ]
    assert all(call.is_repeatable for call in calls)
    assert ["Stream-Closed" in call.headers for call in calls] == [False, True]


@pytest.mark.parametrize("problem", [Unreachable(), EngineUnavailable(), Overloaded(), Forbidden()])
def test_an_append_in_doubt_is_resolved_by_repeating_it(problem: PostroadError) -> None:
    producer, server = numbering(), Server()
    server.after = [problem]
    with pytest.raises(type(problem)):
        play(producer, append_of("a"), server)
    assert producer.in_doubt == append_of("a")
    assert play(producer, append_of("a"), server).is_duplicate
    assert (server.stored, producer.next_seq) == ([b"a"], 1)
    assert has_no_uncertain_append(producer)


def test_an_append_in_doubt_is_repeated_before_another() -> None:
    producer, server = numbering(), Server()
    server.before = [Unreachable()]
    with pytest.raises(Unreachable):
        play(producer, append_of("a"), server)
    server.before = [Unreachable()]
    with pytest.raises(Unreachable):
        play(producer, append_of("b"), server)
    assert producer.in_doubt == append_of("a")
    play(producer, append_of("b"), server)
    assert server.stored == [b"a", b"b"]


@pytest.mark.parametrize("problem", [TooLarge(), StreamClosed(), ProducerFenced()])
def test_a_refused_append_frees_its_number(problem: PostroadError) -> None:
    producer, server = numbering(), Server()
    server.before = [problem]
    with pytest.raises(type(problem)):
        play(producer, append_of("a"), server)
    play(producer, append_of("b"), server)
    assert server.stored == [b"b"]


def test_a_cancelled_append_is_in_doubt() -> None:
    producer = numbering()
    script = producer.append(append_of("a"))
    next(script)
    script.close()
    assert producer.in_doubt == append_of("a")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.sampled_from(["before", "after"]), max_size=3))))
def test_repeating_until_success_stores_each_append_once_and_in_order(wanted: list[tuple[str, list[str]]]) -> None:
    producer, server = numbering(), Server()
    for data, losses in wanted:
        for loss in [*losses, None]:
            server.before = [Unreachable()] if loss == "before" else []
            server.after = [Unreachable()] if loss == "after" else []
            try:
                play(producer, append_of(data), server)
            except Unreachable:
                continue
            break
    assert server.stored == [data.encode() for data, _ in wanted]


def test_invalid_producer_arguments_are_refused() -> None:
    for wrong in (("", 0, 0), ("p", -1, 0), ("p", 0, -1)):
        with pytest.raises(ValueError, match="a producer has an id"):
            Numbering("/", *wrong)


# Requests


def test_a_list_is_one_message_and_messages_are_several() -> None:
    assert content_of([1, 2], None) == Content(b"[[1,2]]", "application/json")
    assert content_of_messages([1, 2]) == Content(b"[1,2]", "application/json")
    assert content_of(b"[1,2]", "application/json") == Content(b"[1,2]", "application/json")
    assert content_of(bytearray(b"x"), None) == Content(b"x", "application/octet-stream")


@pytest.mark.parametrize("wrong", ["", "a//b", "/a", "a/", ".", "a/../b", ".."])
def test_an_id_that_a_url_would_change_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="segment"):
        stream_path(wrong, None)


def test_slashes_of_an_id_are_kept_and_reserved_characters_escaped() -> None:
    assert stream_path("a/b:c@d+e~f=g", None) == "/v1/stream/a/b:c@d+e~f=g"
    assert stream_path("a?b#c d", "acme") == "/v1/acme/stream/a%3Fb%23c%20d"
