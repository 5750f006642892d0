"""Rules of rate limits: which tokens a record of a route still has. Pure, integers only.

Time is divided into intervals. What an interval does not use is carried over, up to `burst`, so any w consecutive intervals admit
at most w · max + burst. The interval of a record never goes back, whatever the clocks of its writers say.

With `overflow: delay` tokens of later intervals may be borrowed: `debt` are those that were borrowed and not yet repaid. They
are delivered in the intervals that repay them, in order.
"""

from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from postroad.kernel.clock import LATEST_MS, EpochMs

_PREFETCH_SLOT_MS = 1000
_DAY_MS = 86_400_000
_TTL_SECONDS_MAX = 10 * 365 * 86_400  # also of a debt that a much smaller limit repays

_Count = Annotated[int, Meta(ge=0, le=2**53)]


class Limit(msgspec.Struct, frozen=True):
    """A rate limit in the units of the rules. `delay_intervals`: how many intervals ahead tokens may be borrowed."""

    max: int
    interval_ms: int
    burst: int = 0
    cooldown_ms: int = 0
    delay_intervals: int = 0


class RateRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """Format 1 of the use of a limit. `carried`: tokens of earlier intervals. `prefetchers`: workers that took tokens in
    advance, with the second in which they did."""

    interval: _Count
    interval_ms: Annotated[int, Meta(ge=1, le=_DAY_MS)]
    used: _Count = 0
    carried: _Count = 0
    debt: _Count = 0
    cooldown_until_ms: EpochMs = 0
    prefetchers: tuple[tuple[str, _Count], ...] = ()
    v: int = 1


class Acquired(NamedTuple):
    """The record after an acquisition. `granted` tokens are valid in the interval of the record; `borrowed` are the times at
    which commands with borrowed tokens are to be delivered; `prefetched` tokens were taken in advance."""

    record: RateRecord
    granted: int
    borrowed: tuple[int, ...]
    prefetched: int


def is_possible(record: RateRecord) -> bool:
    """False for a damaged record, of which no time can be shown."""
    return end_ms(record) + 2 * _DAY_MS <= LATEST_MS


def start_ms(record: RateRecord) -> int:
    return record.interval * record.interval_ms


def end_ms(record: RateRecord) -> int:
    return (record.interval + 1) * record.interval_ms


def allowed(record: RateRecord, limit: Limit) -> int:
    """Tokens of the record's interval, used ones included."""
    return limit.max + record.carried


def available(record: RateRecord, limit: Limit) -> int:
    return max(0, allowed(record, limit) - record.used)


def current(record: RateRecord | None, limit: Limit, now_ms: int) -> RateRecord:
    """The record at this time, without an acquisition."""
    interval = now_ms // limit.interval_ms
    if record is None:
        return RateRecord(interval=interval, interval_ms=limit.interval_ms, carried=limit.burst)
    if record.interval_ms != limit.interval_ms:
        return _with_other_interval(record, limit, interval)
    if interval <= record.interval:  # also if this clock is behind
        return _within(record, limit)
    return _advanced(_within(record, limit), limit, interval)


def _within(record: RateRecord, limit: Limit) -> RateRecord:
    """The record under a limit that may have changed: never more carried over than the burst allows."""
    return msgspec.structs.replace(record, carried=min(record.carried, limit.burst)) if record.carried > limit.burst else record


def _advanced(record: RateRecord, limit: Limit, interval: int) -> RateRecord:
    """The record at the beginning of a later interval. Debt is repaid first, by each interval's `max`."""
    skipped = interval - record.interval - 1
    left, debt = available(record, limit), record.debt
    if debt:
        repaid = min(debt, skipped * limit.max)
        debt -= repaid
        carried = 0 if debt else min(limit.burst, skipped * limit.max - repaid)
    else:
        carried = min(limit.burst, left + skipped * limit.max)
    used = min(debt, limit.max + carried)
    return msgspec.structs.replace(record, interval=interval, used=used, carried=carried, debt=debt - used)


def _with_other_interval(record: RateRecord, limit: Limit, interval: int) -> RateRecord:
    """The limit has another length of intervals now. What the old interval used counts in the new one if they overlap, nothing is
    carried over, and debt stays."""
    overlaps = end_ms(record) > interval * limit.interval_ms
    interval = max(interval, start_ms(record) // limit.interval_ms)
    return RateRecord(
        interval=interval,
        interval_ms=limit.interval_ms,
        used=record.used if overlaps else 0,
        debt=record.debt,
        cooldown_until_ms=record.cooldown_until_ms,
        prefetchers=record.prefetchers,
    )


def acquire(
    record: RateRecord | None,
    limit: Limit,
    now_ms: int,
    wanted: int,
    *,
    prefetch: int = 0,
    worker: str = "",
    prefetch_workers: int = 0,
) -> Acquired:
    """Acquire at most `wanted` tokens for waiting commands, then at most `prefetch` in advance.

    A worker prefetches only if fewer than `prefetch_workers` others did in the same second.
    """
    now = current(record, limit, now_ms)
    if now_ms < now.cooldown_until_ms:
        return Acquired(now, 0, (), 0)
    free = available(now, limit)
    granted = min(wanted, free)
    borrowed = _borrow(now, limit, now_ms, wanted - granted) if wanted > granted else ()
    is_exhausted = granted + len(borrowed) < wanted
    slot = now_ms // _PREFETCH_SLOT_MS
    active = tuple(one for one in now.prefetchers if one[1] >= slot)
    may_prefetch = any(name == worker for name, _ in active) or len(active) < prefetch_workers
    prefetched = min(prefetch, free - granted) if prefetch and may_prefetch and not now.debt else 0
    if prefetched and all(name != worker for name, _ in active):
        active = (*active, (worker, slot))
    after = msgspec.structs.replace(
        now,
        used=now.used + granted + prefetched,
        debt=now.debt + len(borrowed),
        cooldown_until_ms=now_ms + limit.cooldown_ms if is_exhausted and limit.cooldown_ms else now.cooldown_until_ms,
        prefetchers=active,
    )
    return Acquired(after, granted, borrowed, prefetched)


def _borrow(now: RateRecord, limit: Limit, now_ms: int, wanted: int) -> tuple[int, ...]:
    """Delivery times of tokens that later intervals repay, in the order in which they do."""
    count = min(wanted, limit.delay_intervals * limit.max - now.debt)
    if count <= 0:
        return ()
    first = max(now.interval, now_ms // limit.interval_ms) + 1
    return tuple((first + (now.debt + number) // limit.max) * limit.interval_ms for number in range(count))


def give_back(record: RateRecord | None, limit: Limit, now_ms: int, interval: int, count: int) -> RateRecord | None:
    """The record after unused tokens of the present interval were returned. None: they do not count any more, or not yet."""
    if record is None or record.interval_ms != limit.interval_ms or not count:
        return None
    now = current(record, limit, now_ms)
    return msgspec.structs.replace(now, used=max(0, now.used - count)) if now.interval == interval else None


def retry_at_ms(record: RateRecord, limit: Limit, now_ms: int) -> int:
    """When a refused command may be sent again: after the cooldown, at the next interval that has tokens."""
    intervals = 1 + (record.debt // limit.max if not limit.delay_intervals else 0)
    at_ms = max(record.cooldown_until_ms, (record.interval + intervals) * record.interval_ms, now_ms + 1)
    return min(at_ms, LATEST_MS)


def ttl_seconds(record: RateRecord, limit: Limit) -> int:
    """When the record may be forgotten: its interval is over, debt is repaid, and a whole burst is carried over."""
    intervals = 2 + -(-(limit.burst + record.debt) // limit.max)
    return min(-(-(intervals * limit.interval_ms + limit.cooldown_ms) // 1000) + 60, _TTL_SECONDS_MAX)
