"""The directory of streams: pages, changes and compaction compared with a set; and its cost."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.api.streams import StreamNotFound
from postroad.jetstream import stream_reader
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import subjects_of
from postroad.streams import directory, directory_pages
from postroad.streams.directory import StreamDirectory, added_message
from postroad.streams.directory_pages import DirectoryRoot, PageRef, covering, merged, page_ranges, prefix_end, split
from postroad.streams.store import StreamName
from tests.streams.workers import OpenWorker, Worker

IDS = st.text("ab:/~", min_size=1, max_size=4)

# Rules


@given(st.sets(IDS), st.dictionaries(IDS, st.booleans()), IDS, st.none() | IDS)
def test_pages_and_changes_are_a_sorted_set(ids: set[str], changes: dict[str, bool], low: str, high: str | None) -> None:
    expected = sorted(
        one
        for one in (ids | {one for one, is_added in changes.items() if is_added})
        if changes.get(one, True) and low <= one and (high is None or one < high)
    )
    assert merged(ids, changes, low, high) == expected


@given(st.sets(IDS, max_size=60), st.integers(1, 7), IDS, st.none() | IDS)
def test_the_pages_that_cover_a_range_have_all_its_ids(ids: set[str], size: int, low: str, high: str | None) -> None:
    ordered = sorted(ids)
    chunks = [tuple(ordered[at : at + size]) for at in range(0, len(ordered), size)]
    root = DirectoryRoot(upto=0, pages=tuple(PageRef(chunk[0], str(number), len(chunk)) for number, chunk in enumerate(chunks)))
    covered = [one for page in covering(root, low, high) for one in chunks[int(page.id)]]
    assert set(merged(ordered, {}, low, high)) <= set(covered)
    for one in ordered:  # each id belongs into exactly the page that has it
        [page] = [page for page, start, end in page_ranges(root) if one >= start and (end is None or one < end)]
        assert page is not None and one in chunks[int(page.id)]


@given(st.lists(IDS, max_size=30, unique=True))
def test_splitting_keeps_order_and_leaves_no_page_empty(ids: list[str]) -> None:
    ordered = sorted(ids)
    pages = split(ordered)
    assert [one for page in pages for one in page] == ordered
    assert all(0 < len(page) <= directory_pages.PAGE_IDS_MAX for page in pages)


@given(st.text("ab\U0010ffff", max_size=4), st.text("ab\U0010ffff", max_size=4))
def test_the_end_of_a_prefix(prefix: str, text: str) -> None:
    end = prefix_end(prefix)
    assert text.startswith(prefix) == (text >= prefix and (end is None or text < end))


# Stored


async def ids_of(worker: Worker, tenant: str, low: str = "", high: str | None = None, limit: int = 10_000) -> list[str]:
    """As a process with empty caches reads them."""
    return await StreamDirectory(worker.store).ids(tenant, low, high, limit)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_pages, "PAGE_IDS_MAX", 4)
    monkeypatch.setattr(directory, "_READ_MAX", 3)


@pytest.mark.usefixtures("small")
async def test_creations_and_deletions_are_listed_across_compactions(worker: Worker, other: Worker, name: str) -> None:
    expected: set[str] = set()
    reader = other.streams.directory  # with its caches
    assert await reader.ids(name, "", None, 1) == []
    for round_number in range(6):
        for number in range(7):
            stream = f"s{round_number}{number}"
            await worker.create(StreamName(name, stream))
            expected.add(stream)
        for stream in sorted(expected)[:: round_number + 2]:
            await worker.streams.delete(None, StreamName(name, stream))
            expected.discard(stream)
        assert await reader.ids(name, "", None, 1000) == sorted(expected)
        assert await worker.streams.directory.compact(name, 1)
        for found in (await reader.ids(name, "", None, 1000), await ids_of(worker, name)):
            assert found == sorted(expected)
        assert await ids_of(worker, name, "s1", "s3") == sorted(one for one in expected if "s1" <= one < "s3")
        assert await ids_of(worker, name, limit=5) == sorted(expected)[:5]
    pages = await subjects_of(worker.connection, StreamName(name, "").store, f"i.{name}.p.*")
    assert len(pages) < 3 * len(expected), "pages that no root has are removed"


@pytest.mark.usefixtures("small")
async def test_a_directory_is_built_for_streams_of_before(worker: Worker, name: str) -> None:
    """An earlier version wrote no changes."""
    for number in range(9):
        await worker.create(StreamName(name, f"s{number}"))
    await worker.streams.delete(None, StreamName(name, "s3"))
    await worker.store.purge_subject(name, f"i.{name}.>", 0)
    expected = [f"s{number}" for number in range(9) if number != 3]
    assert await ids_of(worker, name) == expected
    await worker.create(StreamName(name, "a"))
    assert await ids_of(worker, name) == ["a", *expected]


@pytest.mark.usefixtures("small")
async def test_concurrent_compactions_lose_nothing(worker: Worker, other: Worker, name: str) -> None:
    await ids_of(worker, name)
    for number in range(12):
        await worker.create(StreamName(name, f"s{number:02}"))
    done = await asyncio.gather(*(one.streams.directory.compact(name, 1) for one in (worker, other)))
    assert any(done)
    assert await ids_of(worker, name) == [f"s{number:02}" for number in range(12)]


@pytest.mark.usefixtures("small")
async def test_a_reader_of_an_outdated_root_reads_the_new_one(worker: Worker, other: Worker, name: str) -> None:
    for number in range(12):
        await worker.create(StreamName(name, f"s{number:02}"))
    assert len(await other.streams.directory.ids(name, "", None, 100)) == 12
    view = other.streams.directory._views[name]
    for stream in await subjects_of(worker.connection, StreamName(name, "").store, f"i.{name}.p.*"):
        await worker.store.purge_subject(name, stream, 0)
    with pytest.raises(directory._PageMissing):
        await other.streams.directory._read_ids(name, view, "", None, 100)


async def test_a_deleted_source_of_forks_is_not_listed(worker: Worker, name: str) -> None:
    source, fork = StreamName(name, "source"), StreamName(name, "fork")
    await worker.create(source, b"x")
    await worker.fork(fork, source)
    await worker.streams.delete(None, source)
    assert await ids_of(worker, name) == ["fork"]
    await worker.streams.delete(None, fork)
    assert await ids_of(worker, name) == []
    with pytest.raises(StreamNotFound):
        await worker.streams.snapshot(source)


async def test_a_page_costs_the_same_among_many_streams(new_worker: OpenWorker, name: str) -> None:
    """100,000 ids: a page reads the root, one page and the changes, whatever the number of streams is."""
    worker = await new_worker()
    await worker.create(StreamName(name, "first"))
    await ids_of(worker, name)
    committer = worker.store.committer_of(name)
    ids = [f"session:{number:06}" for number in range(100_000)]
    for start in range(0, len(ids), 10_000):
        await committer.append(added_message(name, *ids[start : start + 10_000]))
    assert await worker.streams.directory.compact(name)
    entries = await entries_read(worker, name, "session:050000", 100)
    assert entries <= 3
    assert await ids_of(worker, name, "session:099998") == ids[99_998:]


async def entries_read(worker: Worker, tenant: str, low: str, limit: int) -> int:
    """Messages that a list by a process with empty caches reads from the engine."""
    counted = 0
    last, read = stream_reader.last, stream_reader.read_to

    async def count_last(connection: Connection, *arguments: object) -> object:
        nonlocal counted
        counted += connection is worker.connection
        return await last(connection, *arguments)  # type: ignore[arg-type]

    async def count_read(connection: Connection, *arguments: object) -> object:
        nonlocal counted
        page = await read(connection, *arguments)  # type: ignore[arg-type]
        counted += len(page.entries) if connection is worker.connection else 0
        return page

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stream_reader, "last", count_last)
        patched.setattr(stream_reader, "read_to", count_read)
        assert len(await ids_of(worker, tenant, low, None, limit)) == limit
    return counted
