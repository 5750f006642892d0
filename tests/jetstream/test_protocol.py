from hypothesis import given
from hypothesis import strategies as st

from postroad.jetstream.protocol import header_lines, publish_command


def test_a_publish_command_counts_its_bytes() -> None:
    command = publish_command("a.b", "_INBOX.1", "X: é\r\n", b"body")
    head, header, body = command.split(b"\r\n", 1)[0], "NATS/1.0\r\nX: é\r\n\r\n".encode(), b"body\r\n"
    assert head == b"HPUB a.b _INBOX.1 %d %d" % (len(header), len(header) + 4)
    assert command == head + b"\r\n" + header + body


@given(st.text())
def test_no_value_can_smuggle_in_a_header_of_its_own(value: str) -> None:
    lines = header_lines([("X", value), ("Y", "after")])
    assert lines.count("\r") == lines.count("\n") == 2
    assert lines.startswith("X: ") and lines.endswith("\r\nY: after\r\n")
