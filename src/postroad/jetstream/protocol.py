"""NATS protocol text for publishing, encoded once into bytes."""

from collections.abc import Iterable

Headers = Iterable[tuple[str, str]]


def header_lines(headers: Headers) -> str:
    """Header lines without the version line and the closing blank one. A line break in a value cannot end its line."""
    return "".join([f"{name}: {value.translate(_NO_BREAKS)}\r\n" for name, value in headers])


def publish_command(subject: str, reply: str, lines: str, payload: bytes) -> bytes:
    header = f"NATS/1.0\r\n{lines}\r\n".encode()
    size = len(header)
    return b"%b%b%b\r\n" % (f"HPUB {subject} {reply} {size} {size + len(payload)}\r\n".encode(), header, payload)


_NO_BREAKS = {ord("\r"): " ", ord("\n"): " "}
