"""What a sync must cover, and who shares it. Runs on nothing: no engine, no files."""

from hypothesis import given
from hypothesis import strategies as st

from postroad.jetstream.sync_rules import (
    FILES_MAX,
    YOUNG_NS,
    BlockListing,
    SyncGroups,
    SyncPlan,
    is_synced_file,
    needs_listing,
    plan_sync,
)

NOW = 10**18
OLD = NOW - 10 * YOUNG_NS


def listing(files: dict[str, int], *, inode: int = 1, mtime_ns: int = OLD) -> BlockListing:
    return BlockListing(inode, mtime_ns, NOW, files)


def test_a_directory_is_listed_again_if_it_changed_was_replaced_or_was_young() -> None:
    known = listing({"1.blk": 10})

    assert needs_listing(None, 1, OLD)
    assert not needs_listing(known, 1, OLD)
    assert needs_listing(known, 1, OLD + 1)
    assert needs_listing(known, 2, OLD)
    young = listing({"1.blk": 10}, mtime_ns=NOW - YOUNG_NS + 1)
    assert needs_listing(young, 1, young.mtime_ns)  # a change of the same tick would not show
    future = listing({"1.blk": 10}, mtime_ns=NOW + 10**12)
    assert needs_listing(future, 1, future.mtime_ns)  # the clock was set back


TICK_NS = 10_000_000  # of the coarsest kernel


@given(st.lists(st.tuples(st.sampled_from(["change", "sync"]), st.sampled_from([0, 1, 5, 12, 25])), max_size=12))
def test_a_sync_knows_every_change_however_coarse_the_time_of_a_change(steps: list[tuple[str, int]]) -> None:
    """Also of two changes in one tick, of which the first is listed at once and the second synced long after."""
    now, changes, mtime = NOW, 0, OLD
    known: BlockListing | None = None
    for step, pause_ms in steps:
        now += pause_ms * 1_000_000
        if step == "change":
            changes, mtime = changes + 1, now - now % TICK_NS
        elif needs_listing(known, 1, mtime):
            known = BlockListing(1, mtime, now, {"1.blk": changes})
        assert step == "change" or (known is not None and known.files == {"1.blk": changes})


def test_the_last_block_is_that_with_the_highest_number() -> None:
    assert listing({"9.blk": 1, "10.blk": 2, "10.key": 3, "index.db": 4}).last_block == "10.blk"
    assert listing({}).last_block is None


def test_only_blocks_and_their_keys_are_synced() -> None:
    names = ["1.blk", "1.key", "index.db", "thw.db", "2.blk.tmp"]

    assert [name for name in names if is_synced_file(name)] == ["1.blk", "1.key"]


def test_the_first_sync_covers_every_block_and_the_directories_above() -> None:
    plan = plan_sync(None, listing({"1.blk": 10, "1.key": 11, "2.blk": 12}))

    assert plan == SyncPlan(("1.blk", "1.key", "2.blk"), is_directory_synced=True, are_parents_synced=True)


def test_a_new_block_is_synced_with_the_one_that_was_last() -> None:
    plan = plan_sync(listing({"1.blk": 10, "2.blk": 12}), listing({"1.blk": 10, "2.blk": 12, "3.blk": 13}))

    assert plan == SyncPlan(("2.blk", "3.blk"), is_directory_synced=True)


def test_a_compacted_block_is_synced_since_its_inode_is_new() -> None:
    plan = plan_sync(listing({"1.blk": 10, "2.blk": 12}), listing({"1.blk": 20, "2.blk": 12}))

    assert plan == SyncPlan(("1.blk", "2.blk"), is_directory_synced=True)


def test_a_removed_block_needs_a_sync_of_the_directory() -> None:
    plan = plan_sync(listing({"1.blk": 10, "2.blk": 12}), listing({"2.blk": 12}))

    assert plan == SyncPlan(("2.blk",), is_directory_synced=True)


def test_a_last_block_that_was_removed_is_not_synced() -> None:
    plan = plan_sync(listing({"1.blk": 10}), listing({"2.blk": 12}))

    assert plan.files == ("2.blk",)


def test_a_replaced_directory_is_synced_as_a_new_one_even_if_inodes_are_the_same() -> None:
    plan = plan_sync(listing({"2.blk": 12}), listing({"2.blk": 12, "3.blk": 13}, inode=2))

    assert plan == SyncPlan(("2.blk", "3.blk"), is_directory_synced=True, are_parents_synced=True)


def test_many_new_files_are_synced_with_the_filesystem() -> None:
    many = {f"{number}.blk": number for number in range(FILES_MAX + 1)}

    assert plan_sync(None, listing(many)) == SyncPlan(is_filesystem_synced=True)


@given(
    before=st.dictionaries(st.integers(1, 9), st.integers(1, 5)),
    after=st.dictionaries(st.integers(1, 9), st.integers(1, 5), min_size=1),
)
def test_every_file_that_may_have_unsynced_data_is_synced(before: dict[int, int], after: dict[int, int]) -> None:
    """The server writes to new files, and to the last one of any moment."""
    known = listing({f"{number}.blk": inode for number, inode in before.items()})
    found = listing({f"{number}.blk": inode for number, inode in after.items()})

    synced = plan_sync(known, found).files

    assert {name for name, inode in found.files.items() if known.files.get(name) != inode} <= set(synced)
    assert found.last_block in synced
    assert known.last_block in (*synced, None) or known.last_block not in found.files


def test_callers_that_arrive_during_a_sync_wait_for_the_next_one() -> None:
    groups: SyncGroups[str] = SyncGroups()
    states = [groups.is_due]
    groups.add("Q", "a")
    groups.add("J", "b", "c")
    states.append(groups.is_due)
    assert groups.begin() == ["Q", "J"]
    groups.add("Q", "d")
    states.append(groups.is_due)
    assert groups.end() == ["a", "b", "c"]
    states.append(groups.is_due)
    assert states == [False, True, False, True]  # one at a time
    assert groups.begin() == ["Q"]
    assert groups.end() == ["d"]
    assert groups.is_idle


def test_a_group_from_which_every_caller_was_removed_still_ends() -> None:
    groups: SyncGroups[str] = SyncGroups()
    groups.add("Q", "a")
    groups.begin()
    assert groups.remove("Q") == ["a"]
    groups.add("Q", "b")
    states = [groups.is_idle, groups.is_due]
    assert groups.end() == []
    assert [*states, groups.is_due] == [False, False, True]


def test_callers_are_removed_wherever_they_wait() -> None:
    groups: SyncGroups[int] = SyncGroups()
    groups.add("Q", 1, 2)
    groups.begin()
    groups.add("Q", 3, 4)
    assert groups.remove_where(lambda caller: caller % 2 == 0) == [2, 4]
    assert groups.end() == [1]
    groups.begin()
    assert groups.end() == [3]
