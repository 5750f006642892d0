"""The reserve of the store and the quotas of tenants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.jetstream.storage_budget import (
    UNLIMITED,
    StorageBudgets,
    StoreMeasurement,
    default_reserve,
)
from postroad.kernel.errors import EngineFull, StorageQuotaExceeded

MIB = 1024 * 1024


def budgets(available: int, *, reserve: int = 10 * MIB, factor: int = 1, quota: int = UNLIMITED) -> StorageBudgets:
    made = StorageBudgets(factor=factor)
    made.prefixes = frozenset({"Q", "D", "S"})
    made.quota_of = lambda _tenant: quota
    made.store.measure(StoreMeasurement(used=0, limit=available), reserve)
    return made


def test_without_a_known_limit_nothing_is_refused() -> None:
    made = budgets(0, reserve=0)
    made.of_stream("Q_acme__orders").admit(1 << 40)
    assert not made.store.is_reserved and not made.store.is_critical
    made.check_change(is_platform=False, is_release=False)


@pytest.mark.parametrize(
    ("measured", "available"),
    [
        (StoreMeasurement(used=30, limit=100), 70),
        (StoreMeasurement(used=30, limit=100, disk_free=20), 20),
        (StoreMeasurement(used=30, disk_free=20), 20),
        (StoreMeasurement(used=120, limit=100), -20),
        (StoreMeasurement(used=30), UNLIMITED),
    ],
)
def test_the_smaller_of_limit_and_disk_counts(measured: StoreMeasurement, available: int) -> None:
    assert measured.available == available


@pytest.mark.parametrize(
    ("limit", "reserve"), [(0, 0), (12 * MIB, 6 * MIB), (64 * MIB, 8 * MIB), (1000 * MIB, 100 * MIB), (1 << 40, 1024 * MIB)]
)
def test_the_default_reserve_is_a_tenth_within_bounds(limit: int, reserve: int) -> None:
    assert default_reserve(limit) == reserve


def test_a_tenants_write_ends_at_the_reserve_and_the_platforms_does_not() -> None:
    made = budgets(20 * MIB)
    queue = made.of_stream("Q_acme__orders")
    queue.admit(9 * MIB)
    with pytest.raises(EngineFull, match="reserve"):
        queue.admit(2 * MIB)
    queue.count(2 * MIB)
    made.of_stream("AUDIT").admit(5 * MIB)
    assert made.store.is_reserved and made.store.is_critical


def test_a_large_dead_letter_does_not_use_the_second_half_of_the_reserve_and_a_deletion_does() -> None:
    made = budgets(11 * MIB)
    queue = made.of_stream("D_acme")
    queue.count(5 * MIB)
    with pytest.raises(EngineFull):
        queue.count(2 * MIB)
    made.store.count(5 * MIB)
    queue.count(1000)


def test_what_other_workers_may_have_written_is_counted() -> None:
    made = budgets(20 * MIB, factor=4)
    made.of_stream("Q_acme__orders").admit(2 * MIB)
    with pytest.raises(EngineFull):
        made.of_stream("Q_other__orders").admit(3 * MIB)


def test_writes_in_progress_are_counted() -> None:
    made = budgets(20 * MIB)
    made.store.measure(StoreMeasurement(limit=20 * MIB), 10 * MIB, pending_bytes=10 * MIB)
    with pytest.raises(EngineFull):
        made.of_stream("Q_acme__orders").admit(1)


def test_a_few_bytes_before_the_reserve_count_as_none() -> None:
    assert budgets(10 * MIB + 60_000).store.is_reserved
    assert not budgets(10 * MIB + 70_000).store.is_reserved


def test_a_tenants_streams_share_its_quota_and_a_sample_corrects_the_count() -> None:
    made = budgets(0, reserve=0, quota=1000)
    queue, stream = made.of_stream("Q_acme__a__b"), made.of_stream("S_acme")
    assert queue is stream is made.of_tenant("acme")
    queue.admit(900)
    with pytest.raises(StorageQuotaExceeded, match="900 bytes; its quota is 1000"):
        stream.admit(101)
    made.of_stream("Q_other__q").admit(1000)
    made.set_usage({"other": 1000})
    stream.admit(1000)
    with pytest.raises(StorageQuotaExceeded):
        made.of_stream("Q_other__q").admit(1)


def test_a_changed_quota_applies_to_known_tenants() -> None:
    made = budgets(0, reserve=0, quota=10)
    queue = made.of_stream("Q_acme__q")
    made.quota_of = lambda _tenant: 20
    made.refresh_quotas()
    queue.admit(20)


@pytest.mark.parametrize(
    ("available_mib", "is_platform", "is_release", "is_refused"),
    [
        (11, False, False, False),
        (9, False, False, True),
        (9, False, True, False),
        (5, False, True, True),
        (5, True, True, False),
        (0, True, False, False),
    ],
)
def test_changes_use_the_reserve_by_what_they_do(
    available_mib: int, is_platform: bool, is_release: bool, is_refused: bool
) -> None:
    made = budgets(max(1, available_mib * MIB))
    if is_refused:
        with pytest.raises(EngineFull):
            made.check_change(is_platform=is_platform, is_release=is_release)
    else:
        made.check_change(is_platform=is_platform, is_release=is_release)


@given(st.lists(st.integers(min_value=1, max_value=4 * MIB)), st.integers(min_value=1, max_value=4))
def test_admitted_writes_never_use_the_reserve(sizes: list[int], factor: int) -> None:
    made = budgets(30 * MIB, factor=factor)
    queue, admitted = made.of_stream("Q_acme__q"), 0
    for size in sizes:
        try:
            queue.admit(size)
            admitted += size
        except EngineFull:
            assert size > made.store.left
    assert admitted <= 20 * MIB + 4 * MIB * (factor - 1)
