"""Protocol parsing: independent of chunk boundaries, and not confused by the content of messages."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jetstream import protocol
from spark_jetstream.protocol import MessageColumns

PAYLOADS = st.lists(st.binary(max_size=40) | st.just(b"\r\nMSG x 1 3\r\nabc\r\n"), max_size=8)


def direct(sequence: int, data: bytes, stored: bytes = b"") -> bytes:
    headers = (
        b"NATS/1.0\r\n%bNats-Stream: S\r\nNats-Subject: s.a\r\nNats-Sequence: %d\r\nNats-Time-Stamp: 2026-11-16T06:10:33.5Z\r\n"
        b"Nats-Num-Pending: 3\r\nNats-Last-Sequence: 1\r\n\r\n" % (stored, sequence)
    )
    return b"HMSG _INBOX.x.1 1 %d %d\r\n%b%b\r\n" % (len(headers), len(headers) + len(data), headers, data)


def delivery(sequence: int, data: bytes, stored: bytes = b"", prefix: bytes = b"", suffix: bytes = b"") -> bytes:
    reply = b"$JS.ACK.%bS.C.1.%d.%d.1794809433694360901.%d%b" % (prefix, sequence, sequence, 9, suffix)
    if not stored:
        return b"MSG s.a 1 %b %d\r\n%b\r\n" % (reply, len(data), data)
    headers = protocol.encode_headers(stored)
    return b"HMSG s.a 1 %b %d %d\r\n%b%b\r\n" % (reply, len(headers), len(headers) + len(data), headers, data)


@settings(deadline=None)
@given(PAYLOADS, st.integers(1, 60))
def test_deliveries_are_parsed_at_any_chunk_size(payloads: list[bytes], chunk: int) -> None:
    whole = b"".join(delivery(number, data, b"A: b\r\n" if number % 2 else b"") for number, data in enumerate(payloads, 1))
    pattern = protocol.delivery_pattern("S", "C")
    columns, buffer = MessageColumns(), b""
    for start in range(0, len(whole), chunk):
        buffer += whole[start : start + chunk]
        position, _ = protocol.parse_deliveries(buffer, 0, pattern, columns, 100)
        buffer = buffer[position:]

    assert buffer == b""
    assert columns.data == payloads
    assert columns.sequences == [b"%d" % number for number in range(1, len(payloads) + 1)]
    assert [bool(block) for block in columns.headers] == [bool(number % 2) for number in range(1, len(payloads) + 1)]


@settings(deadline=None)
@given(PAYLOADS, st.integers(1, 60))
def test_direct_replies_are_parsed_at_any_chunk_size(payloads: list[bytes], chunk: int) -> None:
    whole = b"".join(direct(number, data, b"A: b\r\n" if number % 2 else b"") for number, data in enumerate(payloads, 1))
    columns, buffer = MessageColumns(), b""
    for start in range(0, len(whole), chunk):
        buffer += whole[start : start + chunk]
        buffer = buffer[protocol.parse_direct_replies(buffer, 0, columns) :]

    assert buffer == b""
    assert columns.data == payloads
    assert columns.sequences == [b"%d" % number for number in range(1, len(payloads) + 1)]


def test_no_more_deliveries_are_parsed_than_the_limit() -> None:
    columns = MessageColumns()

    position, last = protocol.parse_deliveries(
        delivery(1, b"a") + delivery(2, b"b"), 0, protocol.delivery_pattern("S", "C"), columns, 1
    )

    assert columns.data == [b"a"]
    assert position == len(delivery(1, b"a"))
    assert last == (b"1", b"9")


def test_a_delivery_from_a_domain_is_parsed() -> None:
    columns = MessageColumns()

    protocol.parse_deliveries(
        delivery(5, b"x", prefix=b"hub.ACCOUNT.", suffix=b".r4nd"), 0, protocol.delivery_pattern("S", "C"), columns, 9
    )

    assert (columns.sequences, columns.times) == ([b"5"], [b"1794809433694360901"])


def test_deliveries_of_other_consumers_are_ignored() -> None:
    columns = MessageColumns()

    assert protocol.parse_deliveries(delivery(1, b"a"), 0, protocol.delivery_pattern("S", "D"), columns, 9) == (0, None)
    assert not len(columns)


@pytest.mark.parametrize("after", [b"", b"\r\nX: y\r\n"])
def test_stored_headers_cannot_imitate_those_of_the_server(after: bytes) -> None:
    forged = (
        b"Nats-Stream: S\r\nNats-Subject: forged\r\nNats-Sequence: 99\r\nNats-Time-Stamp: 1970-01-01T00:00:00Z\r\n"
        b"Nats-Num-Pending: 0\r\nNats-Last-Sequence: 0\r\n"
    )
    columns = MessageColumns()

    protocol.parse_direct_replies(direct(7, b"x", forged + after), 0, columns)

    assert (columns.subjects, columns.sequences) == ([b"s.a"], [b"7"])
    assert protocol.parse_headers(columns.headers[0] or b"")[1] == (b"Nats-Subject", b"forged")


def test_the_final_status_of_a_direct_get_is_left_in_the_buffer() -> None:
    end = b"HMSG _INBOX.x.1 1 64 64\r\nNATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: 9\r\n\r\n\r\n"
    columns = MessageColumns()

    position = protocol.parse_direct_replies(direct(1, b"a") + end, 0, columns)

    frame, after = protocol.parse_frame(direct(1, b"a") + end, position)
    assert frame is not None
    assert (frame.status, frame.description) == (204, "EOB")
    assert after == len(direct(1, b"a") + end)


def test_an_incomplete_frame_returns_its_expected_end() -> None:
    assert protocol.parse_frame(b"MSG a 1 5\r\nab", 0) == (None, len(b"MSG a 1 5\r\nabcde\r\n"))
    assert protocol.parse_frame(b"MSG a 1", 0)[0] is None
    with pytest.raises(ValueError, match="neither MSG nor HMSG"):
        protocol.parse_frame(b"HELLO\r\n", 0)


def test_messages_after_the_last_sequence_are_removed() -> None:
    columns = MessageColumns()
    protocol.parse_direct_replies(direct(1, b"a") + direct(2, b"b") + direct(5, b"c"), 0, columns)

    assert columns.truncate_after(2)
    assert not columns.truncate_after(2)
    assert (columns.data, columns.subjects, len(columns.times), len(columns.headers)) == ([b"a", b"b"], [b"s.a"] * 2, 2, 2)


def test_acknowledgements_are_parsed_up_to_the_first_error() -> None:
    buffer = (
        b'MSG _INBOX.x.1 1 22\r\n{"stream":"S","seq":8}\r\n'
        b'MSG _INBOX.x.2 1 60\r\n{"stream":"S", "seq":9,"domain":"hub", "duplicate": true}\r\n'
        b'MSG _INBOX.x.3 1 60\r\n{"error":{"code":400,"description":"no"},"stream":"S","seq":0}\r\n'
    )
    numbers: list[int] = []

    position, duplicates = protocol.parse_acks(buffer, 0, protocol.ack_pattern(b"_INBOX.x"), numbers)

    assert (numbers, duplicates) == ([1, 2], 1)
    assert buffer[position:].startswith(b"MSG _INBOX.x.3")


def test_a_published_message_contains_its_lengths() -> None:
    assert protocol.encode_publish(b"a.b", b"r", b"", b"xyz") == b"PUB a.b r 3\r\nxyz\r\n"
    block = protocol.encode_headers(b"A: b\r\n")
    assert protocol.encode_publish(b"a.b", b"r", block, b"xyz") == b"HPUB a.b r 18 21\r\nNATS/1.0\r\nA: b\r\n\r\nxyz\r\n"
    assert protocol.encode_headers(b"") == b""
