"""The NATS protocol as bytes: what is sent, and how what comes is taken apart. Knows no sockets."""

import re
from dataclasses import dataclass, field

_MESSAGE = re.compile(rb"MSG ([^ \r]+) [^ \r]+ (?:([^ \r]+) )?(\d+)\r\n")
_WITH_HEADERS = re.compile(rb"HMSG ([^ \r]+) [^ \r]+ (?:([^ \r]+) )?(\d+) (\d+)\r\n")
_HEADER = re.compile(rb"([^:\r\n]+):[ \t]*([^\r\n]*)\r\n")
_STATUS = re.compile(rb"NATS/1\.0 (\d{3}) ?([^\r\n]*)\r\n")

# These two are matched against every message that is read, hence `++`: without the way back they take half the time.
#
# A direct get's answer: the stored headers, if any, and after them these six lines. The end of the match is compared with the
# length of the headers, so that a stored message cannot pass its own lines off as the server's.
_DIRECT = re.compile(
    rb"HMSG [^ \r]++ [^ \r]++ (\d++) (\d++)\r\nNATS/1\.0\r\nNats-Stream: [^\r\n]*+\r\nNats-Subject: ([^\r\n]*+)\r\n"
    rb"Nats-Sequence: (\d++)\r\nNats-Time-Stamp: ([^\r\n]*+)\r\n(?:Nats-Num-Pending: \d++\r\n)?+"
    rb"(?:Nats-Last-Sequence: \d++\r\n)?+\r\n"
)
_DIRECT_LINES = re.compile(
    rb"\r\nNats-Stream: [^\r\n]*\r\nNats-Subject: ([^\r\n]*)\r\nNats-Sequence: (\d+)\r\nNats-Time-Stamp: ([^\r\n]*)\r\n"
)


@dataclass(slots=True)
class Columns:
    """Messages in the order of their sequences, a list for each part of them, as the server wrote them."""

    subjects: list[bytes] = field(default_factory=list)
    sequences: list[bytes] = field(default_factory=list)
    times: list[bytes] = field(default_factory=list)
    headers: list[bytes | None] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.data)

    def cut_after(self, last: int) -> bool:
        """Forget what is beyond a sequence; whether there was anything."""
        kept = had = len(self.sequences)
        while kept and int(self.sequences[kept - 1]) > last:
            kept -= 1
        for column in (self.subjects, self.sequences, self.times, self.headers, self.data):
            del column[kept:]
        return kept < had


@dataclass(frozen=True, slots=True)
class Frame:
    """A message as it came over the protocol. `status` is set when the server speaks for itself."""

    subject: bytes
    reply: bytes
    headers: bytes
    data: bytes

    @property
    def status(self) -> int:
        found = _STATUS.match(self.headers)
        return int(found[1]) if found else 0

    @property
    def description(self) -> str:
        found = _STATUS.match(self.headers)
        return found[2].decode("utf-8", "replace") if found else ""


def take_frame(buffer: bytes, position: int) -> tuple[Frame | None, int]:
    """The message that begins here and where it ends; or None and where it will end, as far as that is known."""
    line_end = buffer.find(b"\r\n", position)
    if line_end < 0:
        return None, len(buffer) + 1
    plain = _MESSAGE.match(buffer, position)
    if plain is not None:
        end = plain.end() + int(plain[3])
        if end + 2 > len(buffer):
            return None, end + 2
        return Frame(plain[1], plain[2] or b"", b"", buffer[plain.end() : end]), end + 2
    rich = _WITH_HEADERS.match(buffer, position)
    if rich is None:
        raise ValueError("this is no message")
    middle, end = rich.end() + int(rich[3]), rich.end() + int(rich[4])
    if end + 2 > len(buffer):
        return None, end + 2
    return Frame(rich[1], rich[2] or b"", buffer[rich.end() : middle], buffer[middle:end]), end + 2


def delivery_pattern(stream: str, consumer: str) -> re.Pattern[bytes]:
    """The first line of a message from this consumer. All that is known of the message stands in its reply subject.

    Groups: subject, stream sequence, consumer sequence, time in nanoseconds, pending, length of headers or None, length.
    """
    name = re.escape(f"{stream}.{consumer}".encode())
    return re.compile(
        rb"H?+MSG ([^ \r]++) [^ \r]++ \$JS\.ACK\.(?:[^. ]++\.[^. ]++\.)??" + name + rb"\.\d++\.(\d++)\.(\d++)\.(\d++)\.(\d++)"
        rb"(?:\.[^ \r]++)?+ (?:(\d++) )?(\d++)\r\n"
    )


def take_deliveries(
    buffer: bytes, position: int, pattern: re.Pattern[bytes], columns: Columns, most: int
) -> tuple[int, tuple[bytes, bytes] | None]:
    """Take at most `most` whole messages of a consumer; where the rest begins; consumer sequence and pending of the last."""
    match, size = pattern.match, len(buffer)
    subjects, sequences, times = columns.subjects.append, columns.sequences.append, columns.times.append
    headers, data = columns.headers.append, columns.data.append
    last = None
    while most:
        found = match(buffer, position)
        if found is None:
            break
        subject, sequence, place, time, pending, header_bytes, all_bytes = found.groups()
        start = found.end()
        end = start + int(all_bytes)
        if end + 2 > size:
            break
        if header_bytes is None:
            headers(None)
        else:
            middle = start + int(header_bytes)
            headers(buffer[start:middle])
            start = middle
        subjects(subject)
        sequences(sequence)
        times(time)
        data(buffer[start:end])
        last = (place, pending)
        position = end + 2
        most -= 1
    return position, last


def take_direct(buffer: bytes, position: int, columns: Columns) -> int:
    """Take all whole messages of a direct get; where the rest begins. Its last word (a status) is left there."""
    match, size = _DIRECT.match, len(buffer)
    subjects, sequences, times = columns.subjects.append, columns.sequences.append, columns.times.append
    headers, data = columns.headers.append, columns.data.append
    while True:
        found = match(buffer, position)
        first = found.end(2) + 2 if found is not None else 0
        if found is None or found.end() != first + int(found[1]):
            taken = _take_direct_with_headers(buffer, position, columns)
            if taken is None:
                return position
            position = taken
            continue
        _, all_bytes, subject, sequence, time = found.groups()
        start = found.end()
        end = first + int(all_bytes)
        if end + 2 > size:
            return position
        subjects(subject)
        sequences(sequence)
        times(time)
        headers(None)
        data(buffer[start:end])
        position = end + 2


def _take_direct_with_headers(buffer: bytes, position: int, columns: Columns) -> int | None:
    rich = _WITH_HEADERS.match(buffer, position)
    if rich is None:
        return None
    start = rich.end()
    middle, end = start + int(rich[3]), start + int(rich[4])
    if end + 2 > len(buffer):
        return None
    own = buffer.rfind(b"\r\nNats-Stream: ", start, middle)
    lines = _DIRECT_LINES.match(buffer, own, middle) if own >= 0 else None
    if lines is None:
        return None
    columns.subjects.append(lines[1])
    columns.sequences.append(lines[2])
    columns.times.append(lines[3])
    columns.headers.append(buffer[start : own + 2])
    columns.data.append(buffer[middle:end])
    return end + 2


def ack_pattern(inbox: bytes) -> re.Pattern[bytes]:
    """An acknowledgement that a message was stored. Groups: number of the message, `true` if it was there already."""
    return re.compile(
        rb"MSG " + re.escape(inbox) + rb'\.(\d+) [^ \r]+ \d+\r\n\{"stream": ?"[^"]*", ?"seq": ?\d+(?:, ?"domain": ?"[^"]*")?'
        rb'(?:, ?"duplicate": ?(true|false))?\}\r\n'
    )


def take_acks(buffer: bytes, position: int, pattern: re.Pattern[bytes], numbers: list[int]) -> tuple[int, int]:
    """Take the acknowledgements that come next; where the rest begins, and how many were of duplicates."""
    duplicates = 0
    while (found := pattern.match(buffer, position)) is not None:
        number, duplicate = found.groups()
        numbers.append(int(number))
        duplicates += duplicate == b"true"
        position = found.end()
    return position, duplicates


def header_pairs(headers: bytes) -> list[tuple[bytes, bytes]]:
    """Names and values in order; the line with the version is left out."""
    return _HEADER.findall(headers, headers.find(b"\r\n") + 2)


def publish(subject: bytes, reply: bytes, headers: bytes, data: bytes) -> bytes:
    """A message to be sent. `headers` is a whole block as `header_block` makes it, or nothing."""
    if not headers:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(data), data)
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, len(headers), len(headers) + len(data), headers, data)


def header_block(lines: bytes) -> bytes:
    """`lines` are `Name: value\\r\\n`, one after the other."""
    return b"NATS/1.0\r\n" + lines + b"\r\n" if lines else b""
