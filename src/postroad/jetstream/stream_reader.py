"""Reads of a stream by subject and sequence, without a consumer: batched direct gets.

On a cluster any replica answers a direct get, and one that is not the leader may lack the latest messages: those of the last
moments, or seconds if it was away. So reads that decisions depend on (`last`, `at`, `newest`) go to the leader, or are compared
with it. A `read` returns what the replica has: in order and without gaps, but perhaps not to the end.

Entries that a power failure could take back are not returned before they are durable (`StoreSync.wait`).
"""

import asyncio
import base64
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from postroad.jetstream.api_errors import NO_SUCH_MESSAGE, STREAM_NOT_FOUND, ApiFailure, translate
from postroad.jetstream.connection import Connection, ConnectionLost, Reply
from postroad.jetstream.nats_parser import parse_headers
from postroad.kernel.clock import rfc3339
from postroad.kernel.errors import EngineNoResponders, EngineUnavailable

_INTERNAL = ("Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending", "Nats-Last-Sequence")
_POSITION = "Nats-Sequence"  # only entries have it; any client may store an entry with a header `Status`
_READ_BYTES_MAX = 4 * 1024 * 1024
_SUBJECTS_MAX = 500  # of one `multi_last`, which the server answers with 1,024 entries at most; `<parent>.*` counts several times
_LAG_SECONDS = 0.005  # a healthy replica lags less
_ATTEMPT_SECONDS = 1.0
_FIRST_REPLY_SECONDS = (0.5, 1.0, 1.5, 2.0)


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
    """Consecutive entries and the position to read on from. `remaining`: the number of entries after them at that time."""

    entries: Sequence[Entry]
    next_sequence: int
    remaining: int

    @property
    def is_end(self) -> bool:
        return self.remaining == 0


def time_ms(text: str) -> int:
    """RFC 3339 with nanoseconds, truncated to milliseconds."""
    whole, _, rest = text.removesuffix("Z").partition(".")
    return int(datetime.fromisoformat(whole + "+00:00").timestamp()) * 1000 + int((rest + "000")[:3])


def entry_of(payload: bytes, headers: dict[str, str]) -> Entry:
    """The entry in a reply to a direct get, or in a republished message."""
    stored_headers = {name: value for name, value in headers.items() if name not in _INTERNAL}
    return Entry(
        headers["Nats-Subject"], int(headers["Nats-Sequence"]), time_ms(headers["Nats-Time-Stamp"]), payload, stored_headers
    )


async def read(
    connection: Connection, stream: str, subject: str, from_sequence: int = 1, limit: int = 256, bytes_max: int = _READ_BYTES_MAX
) -> Page:
    """Up to `limit` entries of `subject` (a pattern is allowed) at or after `from_sequence`, in order.

    Raises EngineUnavailable when the engine does not answer. The cost grows with the entries read, not with those stored, except
    for a pattern, which the server matches message by message.
    """
    body = {"seq": max(from_sequence, 1), "batch": limit, "max_bytes": bytes_max, "next_by_subj": subject}
    entries, headers = await _batch(connection, stream, body)
    next_sequence = entries[-1].sequence + 1 if entries else from_sequence
    return Page(entries, next_sequence, int(headers.get("Nats-Num-Pending", 0)))


async def read_all(
    connection: Connection, stream: str, subjects: Sequence[str], from_sequence: int, limit: int, bytes_max: int
) -> Page:
    """Like `read`, for several subjects, which do not overlap."""
    pages = await asyncio.gather(*(read(connection, stream, one, from_sequence, limit, bytes_max) for one in subjects))
    return _merge(pages, from_sequence, limit)


async def read_all_since(
    connection: Connection, stream: str, subjects: Sequence[str], since_ms: int, limit: int, bytes_max: int
) -> Page:
    """Like `read_since`, for several subjects, which do not overlap."""
    pages = await asyncio.gather(*(read_since(connection, stream, one, since_ms, limit, bytes_max) for one in subjects))
    return _merge(pages, 1, limit)


def _merge(pages: Sequence[Page], from_sequence: int, limit: int) -> Page:
    """The entries of several subjects in their order."""
    if len(pages) == 1:
        return pages[0]
    # Beyond the end of a page that is not the last of its subject there may be entries that were not read.
    end = min((page.next_sequence for page in pages if not page.is_end), default=None)
    entries = sorted((entry for page in pages for entry in page.entries), key=lambda entry: entry.sequence)
    kept = [entry for entry in entries if end is None or entry.sequence < end][:limit]
    left = sum(page.remaining for page in pages) + len(entries) - len(kept)
    return Page(kept, kept[-1].sequence + 1 if kept else from_sequence, left)


async def read_since(
    connection: Connection, stream: str, subject: str, since_ms: int, limit: int, bytes_max: int = _READ_BYTES_MAX
) -> Page:
    """Like `read`, from the first entry that was stored at `since_ms` or later."""
    body = {"start_time": rfc3339(max(since_ms, 1)), "batch": limit, "max_bytes": bytes_max, "next_by_subj": subject}
    entries, headers = await _batch(connection, stream, body)
    next_sequence = entries[-1].sequence + 1 if entries else 1
    return Page(entries, next_sequence, int(headers.get("Nats-Num-Pending", 0)))


async def read_to(connection: Connection, stream: str, subject: str, from_sequence: int, end: int, limit: int = 256) -> Page:
    """Like `read`, for a subject that is known to reach the sequence `end`: repeated while the replica lacks it.

    Raises EngineUnavailable also if the replica does not catch up in time.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + connection.settings.request_timeout
    while True:
        page = await read(connection, stream, subject, from_sequence, limit)
        if not page.is_end or page.next_sequence > end or not connection.settings.has_replicas:
            return page
        if loop.time() > deadline:
            raise EngineUnavailable(f"the replica of {stream} lags behind its leader", retry_after=1)
        await asyncio.sleep(_LAG_SECONDS)


async def newest(connection: Connection, stream: str, subjects: Sequence[str]) -> list[Entry]:
    """The newest entry of each subject, as a consistent snapshot, in order of their sequences.

    The snapshot is not older than this call with regard to the first subject.
    """
    if not connection.settings.has_replicas:
        return await _newest(connection, stream, subjects)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + connection.settings.request_timeout
    while True:
        last_of_first, entries = await asyncio.gather(
            last(connection, stream, subjects[0]), _newest(connection, stream, subjects)
        )
        if last_of_first is None or any(entry.sequence >= last_of_first.sequence for entry in entries):
            return entries
        if loop.time() > deadline:
            raise EngineUnavailable(f"the replica of {stream} lags behind its leader", retry_after=1)
        await asyncio.sleep(_LAG_SECONDS)


async def _newest(connection: Connection, stream: str, subjects: Sequence[str]) -> list[Entry]:
    entries, _ = await _batch(connection, stream, {"multi_last": list(subjects), "max_bytes": _READ_BYTES_MAX * len(subjects)})
    return entries


async def last_sequences_of(connection: Connection, stream: str, subjects: Sequence[str]) -> list[tuple[str, int]]:
    """Subject and sequence of the newest entry of each subject that has one (`<parent>.*` is allowed), perhaps outdated.

    Reads every newest entry whole. Raises EngineUnavailable if they are too many or too large for a few replies.
    """
    found: list[tuple[str, int]] = []
    for start in range(0, len(subjects), _SUBJECTS_MAX):
        body = {"multi_last": subjects[start : start + _SUBJECTS_MAX], "max_bytes": _READ_BYTES_MAX}
        entries, headers = await _batch(connection, stream, body)
        if int(headers.get("Nats-Num-Pending", 0)):
            raise EngineUnavailable(f"the newest entries of {stream} are too large to be read together", retry_after=1)
        found += [(entry.subject, entry.sequence) for entry in entries]
    return found


async def last_of_each(connection: Connection, stream: str, subjects: Sequence[str]) -> dict[str, int]:
    """The sequence of the newest entry of each subject that has one, perhaps outdated. The entries may be of any size."""
    found: dict[str, int] = {}
    for start in range(0, len(subjects), _SUBJECTS_MAX):
        left = list(subjects[start : start + _SUBJECTS_MAX])
        while left:
            entries, headers = await _batch(connection, stream, {"multi_last": left, "max_bytes": _READ_BYTES_MAX})
            found |= {entry.subject: entry.sequence for entry in entries}
            if not entries or not int(headers.get("Nats-Num-Pending", 0)):
                break
            left = [subject for subject in left if subject not in found]
    return found


async def _batch(connection: Connection, stream: str, body: dict[str, object]) -> tuple[list[Entry], dict[str, str]]:
    """The entries of a batched direct get, and the headers of its final message.

    The server chooses a replica at random, also one that it can no longer reach but still believes connected. So with replicas a
    request that gets no reply soon is sent again, to another replica perhaps.
    """
    first_reply_seconds = _FIRST_REPLY_SECONDS if connection.settings.has_replicas else (connection.settings.request_timeout,)
    payload = msgspec.json.encode(body)
    for seconds in first_reply_seconds:
        entries: list[Entry] = []
        try:
            inbox, replies = connection.expect_many()
            try:
                connection.publish(f"$JS.API.DIRECT.GET.{stream}", payload, inbox)
                async with asyncio.timeout(seconds) as timeout:
                    reply = await replies.get()
                    timeout.reschedule(asyncio.get_running_loop().time() + connection.settings.request_timeout)
                    while reply is not None and _POSITION in (headers := reply.headers):
                        entries.append(entry_of(reply.data, headers))
                        reply = await replies.get()
            finally:
                connection.forget(inbox)
        except TimeoutError:
            continue
        except ConnectionLost:
            break
        if reply is None:
            break
        if headers.get("Status") not in ("204", "404"):  # end of the batch, or no entries
            kind = EngineNoResponders if headers.get("Status") == "503" else EngineUnavailable
            raise kind(f"reading {stream} was answered {headers.get('Status')}", retry_after=1)
        if entries:
            await connection.store_sync.wait(stream, entries[-1].sequence)
        return entries, headers
    raise EngineUnavailable(f"reading {stream} was not answered", retry_after=1)


async def last(connection: Connection, stream: str, subject: str) -> Entry | None:
    """The newest entry of a subject (a pattern is allowed), or None."""
    if connection.settings.has_replicas:
        return await _read_from_leader(connection, stream, {"last_by_subj": subject})
    return await _durable_entry(connection, stream, await _direct_get(connection, f"{stream}.{subject}", b""))


async def last_before(connection: Connection, stream: str, subject: str, sequence: int) -> Entry | None:
    """The newest entry of a subject with a lower sequence, or None. Not newer than a replica that lags."""
    body: dict[str, object] = {"multi_last": [subject], "up_to_seq": sequence - 1, "max_bytes": _READ_BYTES_MAX}
    entries, _ = await _batch(connection, stream, body) if sequence > 1 else ([], {})
    return entries[-1] if entries else None


async def at(connection: Connection, stream: str, sequence: int) -> Entry | None:
    """The entry with this sequence, or None."""
    if connection.settings.has_replicas:
        return await _read_from_leader(connection, stream, {"seq": sequence})
    return await _any_at(connection, stream, sequence)


async def at_each(connection: Connection, stream: str, sequences: Sequence[int]) -> list[Entry | None]:
    """The entries with these sequences. Any replica answers: None may also mean that it lags behind."""
    if len(sequences) == 1:
        return [await _any_at(connection, stream, sequences[0])]
    return await asyncio.gather(*(_any_at(connection, stream, sequence) for sequence in sequences))


async def _any_at(connection: Connection, stream: str, sequence: int) -> Entry | None:
    return await _durable_entry(connection, stream, await _direct_get(connection, stream, msgspec.json.encode({"seq": sequence})))


class _StoredMessage(msgspec.Struct):
    subject: str
    seq: int
    time: str
    data: str = ""
    hdrs: str = ""


class _GetResponse(msgspec.Struct):
    message: _StoredMessage


_decode_get = msgspec.json.Decoder(_GetResponse).decode


async def _read_from_leader(connection: Connection, stream: str, body: dict[str, object]) -> Entry | None:
    """More expensive than a direct get, which any replica answers."""
    try:
        response = await connection.api(f"STREAM.MSG.GET.{stream}", body, attempt_timeout=_ATTEMPT_SECONDS)
        stored = _decode_get(response).message
    except ApiFailure as failure:
        if failure.error.err_code in NO_SUCH_MESSAGE:
            return None
        if failure.error.err_code == STREAM_NOT_FOUND:  # like a direct get, which has no responders then
            raise EngineUnavailable(f"reading {stream} was not answered", retry_after=1) from failure
        raise translate(failure.error) from failure
    headers = parse_headers(base64.b64decode(stored.hdrs))
    return Entry(stored.subject, stored.seq, time_ms(stored.time), base64.b64decode(stored.data), headers)


async def _direct_get(connection: Connection, target: str, body: bytes) -> Reply:
    """A direct get, repeated until the timeout if the connection is lost or there is no leader. An answer that there are no
    responders is the cause of the failure also if a later attempt had none."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + connection.settings.request_timeout
    kind: type[EngineUnavailable] = EngineUnavailable
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                await connection.wait_up()
                reply = await connection.request(f"$JS.API.DIRECT.GET.{target}", body)
            if reply.status != "503" or _POSITION in reply.headers:
                return reply
            kind = EngineNoResponders
        except (ConnectionLost, TimeoutError):
            pass
        if loop.time() + 0.05 > deadline:
            raise kind(f"reading {target.split('.')[0]} was not answered", retry_after=1)
        await asyncio.sleep(0.05)


async def _durable_entry(connection: Connection, stream: str, reply: Reply) -> Entry | None:
    if _POSITION not in reply.headers:
        return None
    entry = entry_of(reply.data, reply.headers)
    await connection.store_sync.wait(stream, entry.sequence)
    return entry
