from hypothesis import given
from hypothesis import strategies as st

from postroad.jetstream.batching import PendingMessage
from postroad.jetstream.protocol import encode_batch, encode_publish, header_lines


def test_a_publish_command_counts_its_bytes() -> None:
    command = encode_publish(PendingMessage("a.b", b"body", "1", "X: é\r\n"), "_INBOX.1")
    head, header, body = command.split(b"\r\n", 1)[0], "NATS/1.0\r\nNats-Msg-Id: 1\r\nX: é\r\n\r\n".encode(), b"body\r\n"
    assert head == b"HPUB a.b _INBOX.1 %d %d" % (len(header), len(header) + 4)
    assert command == head + b"\r\n" + header + body


def test_only_the_last_message_of_a_batch_commits_it_and_is_answered() -> None:
    messages = [PendingMessage("a.b", b"body", f"id-{number}") for number in range(3)]
    lines = encode_batch(messages, "batch-1", "_INBOX.1").split(b"\r\n")
    assert [line.split()[1:-2] for line in lines if line.startswith(b"HPUB")] == [[b"a.b"], [b"a.b"], [b"a.b", b"_INBOX.1"]]
    assert [line for line in lines if line.startswith(b"Nats-Batch")] == [
        *[b"Nats-Batch-Id: batch-1", b"Nats-Batch-Sequence: 1"],
        *[b"Nats-Batch-Id: batch-1", b"Nats-Batch-Sequence: 2"],
        *[b"Nats-Batch-Id: batch-1", b"Nats-Batch-Sequence: 3", b"Nats-Batch-Commit: 1"],
    ]


@given(st.text())
def test_a_header_value_cannot_add_another_header(value: str) -> None:
    lines = header_lines([("X", value), ("Y", "after")])
    assert lines.count("\r") == lines.count("\n") == 2
    assert lines.startswith("X: ") and lines.endswith("\r\nY: after\r\n")
