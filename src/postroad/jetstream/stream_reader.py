"""Reading a stream by subject and sequence, without a consumer: batched direct gets.

On a cluster any replica answers a direct get, and one that is not the leader may lack what was stored a moment ago, or seconds
ago if it was away. So what decisions rest on (`last`, `at`, `newest`) is asked of the leader, or held against what it says. A
`read` is whatever the replica has: in order and without gaps, but perhaps not to the end.
"""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from postroad.jetstream.api_errors import NO_SUCH_MESSAGE, STREAM_NOT_FOUND, ApiFailure, translate
from postroad.jetstream.connection import Connection, ConnectionLost, Reply
from postroad.kernel.errors import EngineUnavailable

_INTERNAL = ("Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending", "Nats-Last-Sequence")
_READ_BYTES_MAX = 4 * 1024 * 1024
_LAG_SECONDS = 0.005  # what a replica that is well lags behind is less


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored message."""

    subject: str
    sequence: int
    at_ms: int
    payload: bytes
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Page:
    """A run of entries, and where to read on. `left`: how many there were beyond them when it was read."""

    entries: Sequence[Entry]
    next_sequence: int
    left: int

    @property
    def is_end(self) -> bool:
        return self.left == 0


def _millis(text: str) -> int:
    """RFC 3339 with nanoseconds, cut to milliseconds."""
    whole, _, rest = text.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(whole + "+00:00").timestamp()) * 1000 + int((rest + "000")[:3])


def entry_of(payload: bytes, headers: dict[str, str]) -> Entry:
    """An entry from the headers that a direct get or a republished message carries."""
    kept = {name: value for name, value in headers.items() if name not in _INTERNAL}
    return Entry(headers["Nats-Subject"], int(headers["Nats-Sequence"]), _millis(headers["Nats-Time-Stamp"]), payload, kept)


async def read(
    connection: Connection, stream: str, subject: str, from_sequence: int = 1, limit: int = 256, bytes_max: int = _READ_BYTES_MAX
) -> Page:
    """Up to `limit` entries of `subject` (a pattern is allowed) at or after `from_sequence`, in order.

    Raises EngineUnavailable when the engine does not answer. Costs by what is read, not by what is stored; a pattern, however,
    is looked for message by message.
    """
    body = {"seq": max(from_sequence, 1), "batch": limit, "max_bytes": bytes_max, "next_by_subj": subject}
    entries, headers = await _batch(connection, stream, body)
    left = int(headers.get("Nats-Num-Pending", 0))
    following = entries[-1].sequence + 1 if entries else from_sequence
    return Page(entries, following, left)


async def read_to(connection: Connection, stream: str, subject: str, from_sequence: int, end: int, limit: int = 256) -> Page:
    """As `read`, of a subject that is known to reach to the sequence `end`: a replica that lacks it is asked again.

    Raises EngineUnavailable also if it goes on lacking it.
    """
    loop = asyncio.get_running_loop()
    give_up = loop.time() + connection.settings.request_timeout
    while True:
        page = await read(connection, stream, subject, from_sequence, limit)
        if not page.is_end or page.next_sequence > end or not connection.settings.has_replicas:
            return page
        if loop.time() > give_up:
            raise EngineUnavailable(f"the replica of {stream} that answers is behind", retry_after=1)
        await asyncio.sleep(_LAG_SECONDS)


async def newest(connection: Connection, stream: str, subjects: Sequence[str]) -> list[Entry]:
    """The newest entry of each of these subjects, as they were at one moment; in the order of their sequences.

    What was stored under the first of them before this was called is among them.
    """
    if not connection.settings.has_replicas:
        return await _newest(connection, stream, subjects)
    loop = asyncio.get_running_loop()
    give_up = loop.time() + connection.settings.request_timeout
    while True:
        held_against, entries = await asyncio.gather(last(connection, stream, subjects[0]), _newest(connection, stream, subjects))
        if held_against is None or any(entry.sequence >= held_against.sequence for entry in entries):
            return entries
        if loop.time() > give_up:
            raise EngineUnavailable(f"the replica of {stream} that answers is behind", retry_after=1)
        await asyncio.sleep(_LAG_SECONDS)


async def _newest(connection: Connection, stream: str, subjects: Sequence[str]) -> list[Entry]:
    entries, _ = await _batch(connection, stream, {"multi_last": list(subjects), "max_bytes": _READ_BYTES_MAX * len(subjects)})
    return entries


async def _batch(connection: Connection, stream: str, body: dict[str, object]) -> tuple[list[Entry], dict[str, str]]:
    """The entries that answer a batched direct get, and the headers of its end."""
    entries: list[Entry] = []
    try:
        inbox, answers = connection.expect_many()
        try:
            await connection.publish(f"$JS.API.DIRECT.GET.{stream}", msgspec.json.encode(body), inbox)
            async with asyncio.timeout(connection.settings.request_timeout):
                while True:
                    answer = await answers.get()
                    if answer is None:
                        raise ConnectionLost
                    headers = answer.headers or {}
                    if "Status" in headers:
                        break
                    entries.append(entry_of(answer.data, headers))
        finally:
            connection.forget(inbox)
    except (ConnectionLost, TimeoutError) as exc:
        raise EngineUnavailable(f"reading {stream} was not answered", retry_after=1) from exc
    if headers["Status"] not in ("204", "404"):  # the end of the batch, or nothing there
        raise EngineUnavailable(f"reading {stream} was answered {headers['Status']}", retry_after=1)
    return entries, headers


async def last(connection: Connection, stream: str, subject: str) -> Entry | None:
    """The newest entry of one subject (a pattern is allowed), None if there is none."""
    if connection.settings.has_replicas:
        return await _of_leader(connection, stream, {"last_by_subj": subject})
    return _entry_or_none(await _direct(connection, f"{stream}.{subject}", b""))


async def at(connection: Connection, stream: str, sequence: int) -> Entry | None:
    """The entry with this sequence, None if there is none."""
    if connection.settings.has_replicas:
        return await _of_leader(connection, stream, {"seq": sequence})
    return _entry_or_none(await _direct(connection, stream, msgspec.json.encode({"seq": sequence})))


class _Kept(msgspec.Struct):
    subject: str
    seq: int
    time: str
    data: str = ""
    hdrs: str = ""


class _KeptAnswer(msgspec.Struct):
    message: _Kept


_decode_kept = msgspec.json.Decoder(_KeptAnswer).decode


async def _of_leader(connection: Connection, stream: str, body: dict[str, object]) -> Entry | None:
    """What the stream's leader has: dearer than a direct get, which any replica answers."""
    try:
        kept = _decode_kept(await connection.api(f"STREAM.MSG.GET.{stream}", body)).message
    except ApiFailure as failure:
        if failure.error.err_code in NO_SUCH_MESSAGE:
            return None
        if failure.error.err_code == STREAM_NOT_FOUND:  # as when a direct get finds nobody who answers
            raise EngineUnavailable(f"reading {stream} was not answered", retry_after=1) from failure
        raise translate(failure.error) from failure
    return Entry(kept.subject, kept.seq, _millis(kept.time), base64.b64decode(kept.data), _headers(base64.b64decode(kept.hdrs)))


def _headers(block: bytes) -> dict[str, str]:
    """`NATS/1.0` and a line for each, as they are stored."""
    pairs = (line.partition(":") for line in block.decode().split("\r\n")[1:] if line)
    return {name: value.strip() for name, _, value in pairs}


async def _direct(connection: Connection, what: str, body: bytes) -> Reply:
    """A read may be repeated freely, so one that met a lost connection or a missing leader is, until the time-out."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + connection.settings.request_timeout
    while True:
        try:
            async with asyncio.timeout_at(give_up):
                await connection.wait_up()
                answer = await connection.request(f"$JS.API.DIRECT.GET.{what}", body)
            if answer.status != "503":
                return answer
        except (ConnectionLost, TimeoutError):
            pass
        if loop.time() + 0.05 > give_up:
            raise EngineUnavailable(f"reading {what.split('.')[0]} was not answered", retry_after=1)
        await asyncio.sleep(0.05)


def _entry_or_none(answer: Reply) -> Entry | None:
    return entry_of(answer.data, answer.headers or {}) if "Nats-Sequence" in (answer.headers or {}) else None
