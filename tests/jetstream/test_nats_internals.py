"""What is replaced in nats-py behaves like the original."""

from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio import client as nats_client

from postroad.jetstream.nats_internals import Client

pieces = st.one_of(
    st.sampled_from(
        [
            b"\r\n",
            b":",
            b": ",
            b" ",
            b"\t",
            b"\n",
            b"\r",
            b"Nats-Sequence",
            b"a b",
            b"\xff",
            "gr\u00f6\u00dfe".encode(),
            b"\x1c",
            b"\x85",
        ]
    ),
    st.binary(max_size=3),
)
header_blocks = st.lists(pieces, max_size=30).map(b"".join)


@given(header_blocks)
@example(b"Nats-Sequence: 5\r\nX-Note: gr\xc3\xb6\xc3\x9fe \r\n\r\n")
@example(b"Name:Value\r\nName:\tother\r\nno colon\r\na b: c\r\n: empty\r\n")
def test_headers_are_parsed_like_by_nats_py(block: bytes) -> None:
    assert Client._parse_header_lines(block) == nats_client.Client._parse_header_lines(block)
