"""The parser of the NATS protocol: any split of the bytes yields the same calls; what is not the protocol is rejected."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio import client as nats_client

from postroad.jetstream.nats_parser import NatsParser, ProtocolViolation, ServerInfo, parse_headers


class _Recorder:
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_message(self, sid: int, subject: str, reply: str, header_block: bytes, data: bytes) -> None:
        headers = parse_headers(header_block) if header_block else None
        self.calls.append(("message", sid, subject, reply, headers, data))

    def on_info(self, info: ServerInfo) -> None:
        self.calls.append(("info", info.version, info.max_payload, info.connect_urls))

    def on_ping(self) -> None:
        self.calls.append(("ping",))

    def on_pong(self) -> None:
        self.calls.append(("pong",))

    def on_error(self, text: str) -> None:
        self.calls.append(("error", text))


def calls_of(*chunks: bytes) -> list[tuple[Any, ...]]:
    recorder = _Recorder()
    parser = NatsParser(recorder)
    for chunk in chunks:
        parser.feed(chunk)
    return recorder.calls


words = st.text("abcdef.*$_", min_size=1, max_size=8)
payloads = st.one_of(st.binary(max_size=40), st.sampled_from([b"\r\n", b"MSG a 1 3\r\nabc\r\n", b"PING\r\n"]))


@st.composite
def commands(draw: st.DrawFn) -> tuple[bytes, tuple[Any, ...]]:
    """The bytes of a command, and the call that it must cause."""
    kind = draw(st.sampled_from(["message", "headers", "ping", "pong", "error", "info"]))
    if kind in ("message", "headers"):
        sid, subject, reply, data = draw(st.integers(1, 999)), draw(words), draw(st.one_of(st.just(""), words)), draw(payloads)
        start = " ".join(word for word in (subject, str(sid), reply) if word)
        if kind == "message":
            return f"MSG {start} {len(data)}\r\n".encode() + data + b"\r\n", ("message", sid, subject, reply, None, data)
        block = b"NATS/1.0\r\nNats-Sequence: 7\r\n\r\n"
        line = f"HMSG {start} {len(block)} {len(block) + len(data)}\r\n".encode()
        return line + block + data + b"\r\n", ("message", sid, subject, reply, {"Nats-Sequence": "7"}, data)
    return {
        "ping": (b"PING\r\n", ("ping",)),
        "pong": (b"PONG\r\n", ("pong",)),
        "error": (b"-ERR 'Stale Connection'\r\n", ("error", "Stale Connection")),
        "info": (b'INFO {"version":"2.15.1","max_payload":9,"later":[1]}\r\n', ("info", "2.15.1", 9, [])),
    }[kind]


@given(st.lists(commands(), max_size=12), st.data())
def test_any_split_of_the_bytes_yields_the_same_calls(sent: list[tuple[bytes, tuple[Any, ...]]], data: st.DataObject) -> None:
    stream = b"".join(one for one, _ in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert calls_of(*chunks) == [call for _, call in sent]


def test_a_large_message_in_many_chunks_is_put_together_once() -> None:
    data = b"x" * 300_000
    stream = b"MSG a 1 %d\r\n%b\r\n" % (len(data), data)
    assert calls_of(*[stream[start : start + 1000] for start in range(0, len(stream), 1000)]) == [
        ("message", 1, "a", "", None, data)
    ]


@pytest.mark.parametrize(("sent", "subject"), [(b"live.a\xff", "live.a\ufffd"), (b"a\x0bb", "a\x0bb"), (b"a\x0cb", "a\x0cb")])
def test_a_subject_of_another_client_may_have_any_bytes(sent: bytes, subject: str) -> None:
    assert calls_of(b"MSG %b 1 2\r\nhi\r\nPING\r\n" % sent) == [("message", 1, subject, "", None, b"hi"), ("ping",)]
    assert calls_of(b"HMSG %b 1 r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n" % sent) == [("message", 1, subject, "r", {}, b"hi")]


@pytest.mark.parametrize(
    "sent",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"MSG a\r\n",
        b"MSG a one 3\r\nabc\r\n",
        b"MSG a 1 -3\r\n",
        b"MSG a 1 99999999999\r\n",
        b"HMSG a 1 3\r\n",
        b"MSG a 1 b c 3\r\n",
        b"INFO nothing\r\n",
        b"x" * 2_000_000,
    ],
)
def test_what_is_not_the_protocol_is_rejected(sent: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        calls_of(sent)


@pytest.mark.parametrize(
    ("block", "headers"),
    [
        (b"NATS/1.0 503\r\n\r\n", {"Status": "503"}),
        (b"NATS/1.0 404 No Messages\r\n\r\n", {"Status": "404", "Description": "No Messages"}),
        (
            b"NATS/1.0 408 Request Timeout\r\nNats-Pending-Bytes: 5\r\n\r\n",
            {"Status": "408", "Description": "Request Timeout", "Nats-Pending-Bytes": "5"},
        ),
        (b"NATS/1.0\r\n\r\n", {}),
    ],
)
def test_the_status_of_a_message_is_in_its_headers(block: bytes, headers: dict[str, str]) -> None:
    assert parse_headers(block) == headers


pieces = st.one_of(
    st.sampled_from(
        [b"\r\n", b":", b": ", b" ", b"\t", b"\n", b"\r", b"Nats-Sequence", b"a b", b"\xff", b"\x1c", b"\x85", "größe".encode()]
    ),
    st.binary(max_size=3),
)


@given(st.lists(pieces, max_size=30).map(b"".join))
@example(b"Nats-Sequence: 5\r\nX-Note: gr\xc3\xb6\xc3\x9fe \r\n\r\n")
@example(b"Name:Value\r\nName:\tother\r\nno colon\r\na b: c\r\n: empty\r\n")
def test_headers_are_parsed_as_by_another_client(block: bytes) -> None:
    assert parse_headers(b"NATS/1.0\r\n" + block) == nats_client.Client._parse_header_lines(block)
