"""Reading a stream by subject and sequence, without a consumer: batched direct gets."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from postroad.engine.link import Link, Lost, Reply
from postroad.kernel.errors import EngineUnavailable

_INTERNAL = ("Nats-Stream", "Nats-Subject", "Nats-Sequence", "Nats-Time-Stamp", "Nats-Num-Pending", "Nats-Last-Sequence")
_READ_BYTES_MAX = 4 * 1024 * 1024


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
    link: Link, stream: str, subject: str, from_sequence: int = 1, limit: int = 256, bytes_max: int = _READ_BYTES_MAX
) -> Page:
    """Up to `limit` entries of `subject` (a pattern is allowed) at or after `from_sequence`, in order.

    Raises EngineUnavailable when the engine does not answer. Costs by what is read, not by what is stored; a pattern, however,
    is looked for message by message.
    """
    body = {"seq": max(from_sequence, 1), "batch": limit, "max_bytes": bytes_max, "next_by_subj": subject}
    entries, headers = await _batch(link, stream, body)
    left = int(headers.get("Nats-Num-Pending", 0))
    following = entries[-1].sequence + 1 if entries else from_sequence
    return Page(entries, following, left)


async def newest(link: Link, stream: str, subjects: Sequence[str]) -> list[Entry]:
    """The newest entry of each of these subjects, as they were at one moment; in the order of their sequences."""
    entries, _ = await _batch(link, stream, {"multi_last": list(subjects), "max_bytes": _READ_BYTES_MAX * len(subjects)})
    return entries


async def _batch(link: Link, stream: str, body: dict[str, object]) -> tuple[list[Entry], dict[str, str]]:
    """The entries that answer a batched direct get, and the headers of its end."""
    entries: list[Entry] = []
    try:
        inbox, answers = link.expect_many()
        try:
            await link.publish(f"$JS.API.DIRECT.GET.{stream}", msgspec.json.encode(body), inbox)
            async with asyncio.timeout(link.settings.request_timeout):
                while True:
                    answer = await answers.get()
                    if answer is None:
                        raise Lost
                    headers = answer.headers or {}
                    if "Status" in headers:
                        break
                    entries.append(entry_of(answer.data, headers))
        finally:
            link.forget(inbox)
    except (Lost, TimeoutError) as exc:
        raise EngineUnavailable(f"reading {stream} was not answered", retry_after=1) from exc
    if headers["Status"] not in ("204", "404"):  # the end of the batch, or nothing there
        raise EngineUnavailable(f"reading {stream} was answered {headers['Status']}", retry_after=1)
    return entries, headers


async def last(link: Link, stream: str, subject: str) -> Entry | None:
    """The newest entry of one subject, None if there is none."""
    return _entry_or_none(await _direct(link, f"{stream}.{subject}", b""))


async def at(link: Link, stream: str, sequence: int) -> Entry | None:
    """The entry with this sequence, None if there is none."""
    return _entry_or_none(await _direct(link, stream, msgspec.json.encode({"seq": sequence})))


async def _direct(link: Link, what: str, body: bytes) -> Reply:
    """A read may be repeated freely, so one that met a lost connection or a missing leader is, until the time-out."""
    loop = asyncio.get_running_loop()
    give_up = loop.time() + link.settings.request_timeout
    while True:
        try:
            async with asyncio.timeout_at(give_up):
                await link.wait_up()
                answer = await link.request(f"$JS.API.DIRECT.GET.{what}", body)
            if answer.status != "503":
                return answer
        except (Lost, TimeoutError):
            pass
        if loop.time() + 0.05 > give_up:
            raise EngineUnavailable(f"reading {what.split('.')[0]} was not answered", retry_after=1)
        await asyncio.sleep(0.05)


def _entry_or_none(answer: Reply) -> Entry | None:
    return entry_of(answer.data, answer.headers or {}) if "Nats-Sequence" in (answer.headers or {}) else None
