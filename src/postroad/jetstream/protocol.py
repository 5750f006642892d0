"""NATS protocol text for publishing, encoded once into bytes."""

from collections.abc import Iterable, Sequence

from postroad.jetstream.batching import PendingMessage

Headers = Iterable[tuple[str, str]]

_NO_LINE_BREAKS = {ord("\r"): " ", ord("\n"): " "}


def header_lines(headers: Headers) -> str:
    """Header lines without the version line and the closing blank line. Line breaks in values become spaces."""
    return "".join([f"{name}: {value.translate(_NO_LINE_BREAKS)}\r\n" for name, value in headers])


def encode_plain(subject: str, payload: bytes, reply_subject: str) -> bytes:
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply_subject.encode(), len(payload), payload)


def encode_publish(message: PendingMessage, reply_subject: str) -> bytes:
    return _publish(message, reply_subject, "")


def encode_batch(messages: Sequence[PendingMessage], batch_id: str, reply_subject: str) -> bytes:
    """An atomic batch; only its last message, which commits it, is answered."""
    batch = f"Nats-Batch-Id: {batch_id}\r\nNats-Batch-Sequence: "
    commands = [_publish(message, "", f"{batch}{index}\r\n") for index, message in enumerate(messages[:-1], 1)]
    commands.append(_publish(messages[-1], reply_subject, f"{batch}{len(messages)}\r\nNats-Batch-Commit: 1\r\n"))
    return b"".join(commands)


def _publish(message: PendingMessage, reply_subject: str, batch_lines: str) -> bytes:
    header = f"NATS/1.0\r\nNats-Msg-Id: {message.id}\r\n{message.headers}{batch_lines}\r\n".encode()
    size = len(header)
    sizes = f"{size} {size + len(message.payload)}"
    return b"%b%b%b\r\n" % (f"HPUB {message.subject} {reply_subject} {sizes}\r\n".encode(), header, message.payload)
