"""Trimming of a bucket with a change stream: its stream keeps all revisions, and those that were copied are removed here.

A purge costs a fraction of a millisecond per revision, so a key is trimmed only when it has `SPARE_REVISIONS` more than the
bucket's `history`, and never beyond what the bridge has copied.
"""

import asyncio
from collections.abc import Sequence

import structlog

from postroad.buckets.records import BucketRecord
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import purge_stream, subject_counts
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.errors import PostroadError

SPARE_REVISIONS = 16
_KEYS_MAX = 100_000  # that are counted in memory; the search finds the others
_SEARCH_SECONDS = 3600.0
_RETRY_SECONDS = 5.0
_READ_ENTRIES = 1000

log = structlog.get_logger("postroad.buckets")


class RevisionTrimmer:
    def __init__(self, connection: Connection, record: BucketRecord) -> None:
        self._connection, self.record = connection, record
        self._copied: dict[str, list[int]] = {}  # revisions by subject, since the last trim
        self._due: dict[str, None] = {}
        self._has_due = asyncio.Event()
        self._position = 0  # the last revision that was copied since the start

    def add(self, entries: Sequence[Entry]) -> None:
        """Count copied revisions."""
        if len(self._copied) > _KEYS_MAX:
            self._copied = {subject: self._copied[subject] for subject in self._due}
        for entry in entries:
            revisions = self._copied.setdefault(entry.subject, [])
            revisions.append(entry.sequence)
            if len(revisions) > self.record.settings.history + SPARE_REVISIONS:
                self._due[entry.subject] = None
                self._has_due.set()
        if entries:
            self._position = entries[-1].sequence

    async def run(self) -> None:
        """Trim until cancelled: the keys that are written often, and once an hour all that have too many revisions."""
        while True:
            try:
                await self._search()
                async with asyncio.timeout(_SEARCH_SECONDS):
                    while True:
                        await self._has_due.wait()
                        await self._trim_due()
            except TimeoutError:
                continue
            except PostroadError as problem:
                log.warning("bucket_not_trimmed", bucket=self.record.name, tenant=self.record.tenant, code=problem.code)
                await asyncio.sleep(_RETRY_SECONDS)
            except Exception:  # a bug: it must not end the trimming for good
                log.exception("bucket_trimming_crashed", bucket=self.record.name, tenant=self.record.tenant)
                await asyncio.sleep(_RETRY_SECONDS)

    async def _trim_due(self) -> None:
        history = self.record.settings.history
        while self._due:
            subject = next(iter(self._due))
            revisions = self._copied.get(subject, [])[-history:]
            if len(revisions) == history:
                await purge_stream(self._connection, self.record.stream, subject, before=revisions[0])
                self._copied[subject] = [one for one in self._copied[subject] if one >= revisions[0]]  # also those added since
            del self._due[subject]
        self._has_due.clear()

    async def _search(self) -> None:
        """Trim the keys that were not counted by this process."""
        history = self.record.settings.history
        async for page in subject_counts(self._connection, self.record.stream, ">"):
            for subject in [one for one, count in page.items() if count > history + SPARE_REVISIONS]:
                await self._trim_stored(subject, history)

    async def _trim_stored(self, subject: str, history: int) -> None:
        mapping = self.record.change_stream
        copied_to = max(self._position, 0 if mapping is None else mapping.position)
        kept: list[int] = []
        start = 1
        while True:
            page = await stream_reader.read(self._connection, self.record.stream, subject, start, _READ_ENTRIES)
            copied = [entry.sequence for entry in page.entries if entry.sequence <= copied_to]
            kept = [*kept, *copied][-history:]
            if page.is_end or len(copied) < len(page.entries):
                break
            start = page.next_sequence
        if len(kept) == history:
            await purge_stream(self._connection, self.record.stream, subject, before=kept[0])
