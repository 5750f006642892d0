"""NATS protocol: encoding and parsing of bytes, without I/O."""

import re
from dataclasses import dataclass, field

_MSG = re.compile(rb"MSG ([^ \r]+) [^ \r]+ (?:([^ \r]+) )?(\d+)\r\n")
_HMSG = re.compile(rb"HMSG ([^ \r]+) [^ \r]+ (?:([^ \r]+) )?(\d+) (\d+)\r\n")
_HEADER = re.compile(rb"([^:\r\n]+):[ \t]*([^\r\n]*)\r\n")
_STATUS = re.compile(rb"NATS/1\.0 (\d{3}) ?([^\r\n]*)\r\n")

# This expression and that of `delivery_pattern` are matched against every message read. The possessive `++` prevents
# backtracking, which halves the time.
#
# A direct get's reply: the stored headers, if any, and after them these six lines. The end of the match is compared with the
# length of the headers, so that stored headers cannot imitate those of the server.
_DIRECT = re.compile(
    rb"HMSG [^ \r]++ [^ \r]++ (\d++) (\d++)\r\nNATS/1\.0\r\nNats-Stream: [^\r\n]*+\r\nNats-Subject: ([^\r\n]*+)\r\n"
    rb"Nats-Sequence: (\d++)\r\nNats-Time-Stamp: ([^\r\n]*+)\r\n(?:Nats-Num-Pending: \d++\r\n)?+"
    rb"(?:Nats-Last-Sequence: \d++\r\n)?+\r\n"
)
_DIRECT_HEADERS = re.compile(
    rb"\r\nNats-Stream: [^\r\n]*\r\nNats-Subject: ([^\r\n]*)\r\nNats-Sequence: (\d+)\r\nNats-Time-Stamp: ([^\r\n]*)\r\n"
)


@dataclass(slots=True)
class MessageColumns:
    """Messages in sequence order, one list for each field, values as the server sent them."""

    subjects: list[bytes] = field(default_factory=list)
    sequences: list[bytes] = field(default_factory=list)
    times: list[bytes] = field(default_factory=list)
    headers: list[bytes | None] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.data)

    def truncate_after(self, last: int) -> bool:
        """Remove messages after sequence `last`. Returns true if there were any."""
        kept = count = len(self.sequences)
        while kept and int(self.sequences[kept - 1]) > last:
            kept -= 1
        for column in (self.subjects, self.sequences, self.times, self.headers, self.data):
            del column[kept:]
        return kept < count


@dataclass(frozen=True, slots=True)
class Frame:
    """One MSG or HMSG. `status` is 0 unless the server itself sent it."""

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


def parse_frame(buffer: bytes, position: int) -> tuple[Frame | None, int]:
    """Return the frame at `position` and its end; for an incomplete frame, None and its end as far as known.

    Raises ValueError if the line is neither MSG nor HMSG.
    """
    if buffer.find(b"\r\n", position) < 0:
        return None, len(buffer) + 1
    plain = _MSG.match(buffer, position)
    if plain is not None:
        end = plain.end() + int(plain[3])
        if end + 2 > len(buffer):
            return None, end + 2
        return Frame(plain[1], plain[2] or b"", b"", buffer[plain.end() : end]), end + 2
    with_headers = _HMSG.match(buffer, position)
    if with_headers is None:
        raise ValueError("neither MSG nor HMSG")
    start = with_headers.end()
    body, end = start + int(with_headers[3]), start + int(with_headers[4])
    if end + 2 > len(buffer):
        return None, end + 2
    return Frame(with_headers[1], with_headers[2] or b"", buffer[start:body], buffer[body:end]), end + 2


def delivery_pattern(stream: str, consumer: str) -> re.Pattern[bytes]:
    """Expression for the first line of a delivery from this consumer. Its reply subject contains the metadata.

    Groups: subject, stream sequence, consumer sequence, time in nanoseconds, pending, length of headers or None, length.
    """
    name = re.escape(f"{stream}.{consumer}".encode())
    return re.compile(
        rb"H?+MSG ([^ \r]++) [^ \r]++ \$JS\.ACK\.(?:[^. ]++\.[^. ]++\.)??" + name + rb"\.\d++\.(\d++)\.(\d++)\.(\d++)\.(\d++)"
        rb"(?:\.[^ \r]++)?+ (?:(\d++) )?(\d++)\r\n"
    )


def parse_deliveries(
    buffer: bytes, position: int, pattern: re.Pattern[bytes], columns: MessageColumns, limit: int
) -> tuple[int, tuple[bytes, bytes] | None]:
    """Append up to `limit` complete deliveries. Returns the end position, and the last consumer sequence and pending count."""
    match, size = pattern.match, len(buffer)
    subjects, sequences, times = columns.subjects.append, columns.sequences.append, columns.times.append
    headers, data = columns.headers.append, columns.data.append
    last = None
    while limit:
        found = match(buffer, position)
        if found is None:
            break
        subject, sequence, consumer_sequence, time, pending, header_bytes, all_bytes = found.groups()
        start = found.end()
        end = start + int(all_bytes)
        if end + 2 > size:
            break
        if header_bytes is None:
            headers(None)
        else:
            body = start + int(header_bytes)
            headers(buffer[start:body])
            start = body
        subjects(subject)
        sequences(sequence)
        times(time)
        data(buffer[start:end])
        last = (consumer_sequence, pending)
        position = end + 2
        limit -= 1
    return position, last


def parse_direct_replies(buffer: bytes, position: int, columns: MessageColumns) -> int:
    """Append all complete messages of a direct get. Returns the end position; the final status frame is left there."""
    match, size = _DIRECT.match, len(buffer)
    subjects, sequences, times = columns.subjects.append, columns.sequences.append, columns.times.append
    headers, data = columns.headers.append, columns.data.append
    while True:
        found = match(buffer, position)
        first = found.end(2) + 2 if found is not None else 0
        if found is None or found.end() != first + int(found[1]):
            end_with_headers = _parse_direct_with_headers(buffer, position, columns)
            if end_with_headers is None:
                return position
            position = end_with_headers
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


def _parse_direct_with_headers(buffer: bytes, position: int, columns: MessageColumns) -> int | None:
    """Append one message that has stored headers. Returns its end, or None if there is no complete one."""
    found = _HMSG.match(buffer, position)
    if found is None:
        return None
    start = found.end()
    body, end = start + int(found[3]), start + int(found[4])
    if end + 2 > len(buffer):
        return None
    stored_end = buffer.rfind(b"\r\nNats-Stream: ", start, body)
    server_headers = _DIRECT_HEADERS.match(buffer, stored_end, body) if stored_end >= 0 else None
    if server_headers is None:
        return None
    columns.subjects.append(server_headers[1])
    columns.sequences.append(server_headers[2])
    columns.times.append(server_headers[3])
    columns.headers.append(buffer[start : stored_end + 2])
    columns.data.append(buffer[body:end])
    return end + 2


def ack_pattern(inbox: bytes) -> re.Pattern[bytes]:
    """Expression for a publish acknowledgement. Groups: number of the message, `true` for a duplicate."""
    return re.compile(
        rb"MSG " + re.escape(inbox) + rb'\.(\d+) [^ \r]+ \d+\r\n\{"stream": ?"[^"]*", ?"seq": ?\d+(?:, ?"domain": ?"[^"]*")?'
        rb'(?:, ?"duplicate": ?(true|false))?\}\r\n'
    )


def parse_acks(buffer: bytes, position: int, pattern: re.Pattern[bytes], numbers: list[int]) -> tuple[int, int]:
    """Append the numbers of acknowledged messages. Returns the end position and the count of duplicates."""
    duplicates = 0
    while (found := pattern.match(buffer, position)) is not None:
        number, duplicate = found.groups()
        numbers.append(int(number))
        duplicates += duplicate == b"true"
        position = found.end()
    return position, duplicates


def parse_headers(headers: bytes) -> list[tuple[bytes, bytes]]:
    """Return names and values in order, without the version line."""
    return _HEADER.findall(headers, headers.find(b"\r\n") + 2)


def encode_publish(subject: bytes, reply: bytes, headers: bytes, data: bytes) -> bytes:
    """Encode PUB, or HPUB if `headers` (from `encode_headers`) are not empty."""
    if not headers:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, reply, len(data), data)
    return b"HPUB %b %b %d %d\r\n%b%b\r\n" % (subject, reply, len(headers), len(headers) + len(data), headers, data)


def encode_headers(lines: bytes) -> bytes:
    """Encode a header section from lines of the form `Name: value\\r\\n`; empty without lines."""
    return b"NATS/1.0\r\n" + lines + b"\r\n" if lines else b""
