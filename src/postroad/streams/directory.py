"""Directory of a tenant's streams, for lists in the order of their ids.

    i.<tenant>.c         changes: one message with every creation and deletion, in its batch
    i.<tenant>.r         the root: bounds of the pages; the last one counts
    i.<tenant>.p.<page>  a page of sorted ids, written once

A list reads the root, the pages that it shows and the changes since the root, which compaction keeps few. So its cost depends on
what it returns, not on the number of streams. A root replaces another only by a precondition. Log and pages of the root before
are kept until the next compaction, for readers that still use it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import PendingMessage
from postroad.jetstream.management import subjects_of
from postroad.kernel.errors import Conflict, EngineUnavailable
from postroad.kernel.ids import new_id
from postroad.kernel.names import streams_store
from postroad.streams import metrics
from postroad.streams.directory_pages import (
    DirectoryChange,
    DirectoryPage,
    DirectoryRoot,
    PageRef,
    covering,
    decode_change,
    decode_page,
    decode_root,
    encode,
    is_sparse,
    merged,
    page_ranges,
    split,
)
from postroad.streams.records import State, decode_record
from postroad.streams.store import LAST_ONLY, StreamStore, precondition

COMPACT_FROM = 1000  # changes since the root
_READ_MAX = 500
_WRITE_PAGES_MAX = 50
_ATTEMPTS_MAX = 5
_VIEWS_MAX = 1000

log = structlog.get_logger("postroad.streams")


def _log_subject(tenant: str) -> str:
    return f"i.{tenant}.c"


def _root_subject(tenant: str) -> str:
    return f"i.{tenant}.r"


def _page_subject(tenant: str, page: str) -> str:
    return f"i.{tenant}.p.{page}"


def added_message(tenant: str, *streams: str) -> PendingMessage:
    return PendingMessage(_log_subject(tenant), encode(DirectoryChange(added=streams)), new_id())


def removed_message(tenant: str, *streams: str) -> PendingMessage:
    return PendingMessage(_log_subject(tenant), encode(DirectoryChange(removed=streams)), new_id())


class _PageMissing(Exception):
    """A page of an outdated root was removed."""


@dataclass(slots=True)
class _View:
    """The directory as this process has read it: the root, and for each changed id whether it is there."""

    root: DirectoryRoot
    root_at: int
    position: int
    changes: dict[str, bool] = field(default_factory=dict)


class StreamDirectory:
    def __init__(self, store: StreamStore) -> None:
        self._store = store
        self._views: dict[str, _View] = {}

    def forget(self, tenant: str) -> None:
        self._views.pop(tenant, None)

    # Read

    async def ids(self, tenant: str, low: str, high: str | None, limit: int) -> list[str]:
        """Up to `limit` ids of streams from `low` up to, but not including, `high`, in order. Some may be of expired streams.

        Raises EngineUnavailable.
        """
        for _ in range(_ATTEMPTS_MAX):
            view = await self._view(tenant)
            try:
                return await self._read_ids(tenant, view, low, high, limit)
            except _PageMissing:
                self._views.pop(tenant, None)
        raise EngineUnavailable("the directory of streams changes too quickly", retry_after=1)

    async def _read_ids(self, tenant: str, view: _View, low: str, high: str | None, limit: int) -> list[str]:
        found: list[str] = []
        pages = covering(view.root, low, high)
        for number, page in enumerate(pages):
            until = pages[number + 1].first if number + 1 < len(pages) else high
            start = low if number == 0 else page.first
            found += merged((await self._page(tenant, page.id)).ids, _within(view.changes, start, until), start, until)
            if len(found) >= limit:
                return found[:limit]
        return found if pages else merged((), view.changes, low, high)[:limit]

    async def _page(self, tenant: str, page: str) -> DirectoryPage:
        entry = await stream_reader.last(self._store.connection, streams_store(tenant), _page_subject(tenant, page))
        if entry is None:
            raise _PageMissing
        return decode_page(entry.payload)

    async def _view(self, tenant: str) -> _View:
        await self._store.ensure(tenant)
        root = await stream_reader.last(self._store.connection, streams_store(tenant), _root_subject(tenant))
        if root is None:
            await self._build(tenant)
            root = await stream_reader.last(self._store.connection, streams_store(tenant), _root_subject(tenant))
        if root is None:
            raise EngineUnavailable("the directory of streams cannot be read", retry_after=1)
        view = self._views.get(tenant)
        if view is None or view.root_at != root.sequence:
            decoded = decode_root(root.payload)
            if len(self._views) >= _VIEWS_MAX:
                self._views.pop(next(iter(self._views)))
            view = self._views[tenant] = _View(decoded, root.sequence, decoded.upto)
        await self._read_changes(tenant, view)
        return view

    async def _read_changes(self, tenant: str, view: _View) -> None:
        connection, subject = self._store.connection, _log_subject(tenant)
        end = await self._log_end(tenant) if self._store.may_lag else 0
        while True:
            position = view.position
            page = await stream_reader.read_to(connection, streams_store(tenant), subject, position + 1, end, _READ_MAX)
            for entry in page.entries:
                if entry.sequence > view.position:  # another caller may have read it meanwhile
                    change = decode_change(entry.payload)
                    view.changes.update(dict.fromkeys(change.added, True) | dict.fromkeys(change.removed, False))
                    view.position = entry.sequence
            if page.is_end:
                return

    async def _log_end(self, tenant: str) -> int:
        entry = await stream_reader.last(self._store.connection, streams_store(tenant), _log_subject(tenant))
        return 0 if entry is None else entry.sequence

    # Write

    async def compact(self, tenant: str, changes_min: int = COMPACT_FROM) -> bool:
        """Write the changes since the root into the pages if they are many. Returns whether it did."""
        view = await self._view(tenant)
        if len(view.changes) < changes_min:
            return False
        changes, upto = dict(view.changes), view.position
        pages: list[PageRef | tuple[str, ...]] = []
        try:
            for page, low, high in page_ranges(view.root):
                some = _within(changes, low, high)
                if page is not None and not some:
                    pages.append(page)
                    continue
                ids = () if page is None else (await self._page(tenant, page.id)).ids
                pages += split(merged(ids, some, low, high))
        except _PageMissing:
            self._views.pop(tenant, None)
            return False
        root = await self._write(tenant, view.root_at, upto, pages)
        if root is None:
            return False
        if is_sparse(root.pages):
            await self._build(tenant, view_at=await self._root_at(tenant))
        await self._remove_unused(tenant, root, view.root, view.root_at)
        return True

    async def _root_at(self, tenant: str) -> int:
        entry = await stream_reader.last(self._store.connection, streams_store(tenant), _root_subject(tenant))
        return 0 if entry is None else entry.sequence

    async def _build(self, tenant: str, view_at: int = 0) -> None:
        """Write the directory from the records of all streams: once for each tenant, and when pages have become sparse."""
        upto = await self._log_end(tenant)  # before the records are read: later changes apply to them again
        ids = sorted(await live_ids(self._store, tenant))
        await self._write(tenant, view_at, upto, list(split(ids)))

    async def _write(
        self, tenant: str, replaced_at: int, upto: int, pages: Sequence[PageRef | tuple[str, ...]]
    ) -> DirectoryRoot | None:
        """Write the new pages, then the root in place of the one with this sequence; None if another process was first."""
        committer = self._store.committer_of(tenant)
        refs: list[PageRef] = []
        messages: list[PendingMessage] = []
        for page in pages:
            if isinstance(page, PageRef):
                refs.append(page)
                continue
            ref = PageRef(page[0], new_id(), len(page))
            refs.append(ref)
            messages.append(PendingMessage(_page_subject(tenant, ref.id), encode(DirectoryPage(ids=page)), new_id()))
        for start in range(0, len(messages), _WRITE_PAGES_MAX):
            await committer.append_together(messages[start : start + _WRITE_PAGES_MAX], uses_reserve=True)
        root, subject = DirectoryRoot(upto=upto, pages=tuple(refs)), _root_subject(tenant)
        headers = LAST_ONLY + precondition(subject, replaced_at)
        try:
            await committer.append(
                PendingMessage(subject, encode(root), new_id(), headers, is_conditional=True), uses_reserve=True
            )
        except Conflict:
            for message in messages:
                await self._store.purge_subject(tenant, message.subject, 0)
            return None
        metrics.directory_compactions.inc()
        return root

    async def _remove_unused(self, tenant: str, root: DirectoryRoot, before: DirectoryRoot, before_at: int) -> None:
        """Remove the log that the previous root includes, and pages that neither root has. Pages written after the previous root
        may belong to a compaction in progress."""
        await self._store.purge_subject(tenant, _log_subject(tenant), before.upto + 1)
        used = {_page_subject(tenant, page.id) for page in (*root.pages, *before.pages)}
        stored = await subjects_of(self._store.connection, streams_store(tenant), f"i.{tenant}.p.*")
        for subject in stored:
            if subject not in used:
                await self._store.purge_subject(tenant, subject, before_at)


def _within(changes: dict[str, bool], low: str, high: str | None) -> dict[str, bool]:
    return {one: is_added for one, is_added in changes.items() if one >= low and (high is None or one < high)}


async def live_ids(store: StreamStore, tenant: str) -> list[str]:
    """Ids of the tenant's streams, including expired ones that are not deleted yet. Reads the records of all streams."""
    is_live: dict[str, bool] = {}
    position = 1
    while True:
        page = await store.read_records(tenant, position, _READ_MAX)
        for entry in page.entries:
            record = decode_record(entry.payload)
            is_live[record.id] = record.state is State.LIVE
        position = page.next_sequence
        if page.is_end:
            return [stream for stream, is_one in is_live.items() if is_one]
