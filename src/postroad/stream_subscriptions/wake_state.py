"""How a wake goes on from one state to the next. Pure: no I/O, no clock, no chance.

idle ── something is pending ──▶ to be told ── told ──▶ waiting to be claimed (pull-wake only)
 ▲                                  │ ▲ failed: again later         │ claimed
 │                                  ▼ │                             ▼
 └──── done, released, or the lease has ended ◀──────────────── leased
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from postroad.kernel.backoff import Backoff
from postroad.kernel.errors import LeaseHeld, NothingPending, WakeFenced
from postroad.stream_subscriptions.records import Kind, SubscriptionRecord, Wake
from postroad.stream_subscriptions.rules import first_pending

_BACKOFF = Backoff(first_seconds=1.0, max_seconds=60.0, jitter=(0.8, 1.2))


class Step(Enum):
    WAIT = "wait"
    WAKE = "wake"
    TELL = "tell"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done now or, for `WAIT`, when to look again; None: when something happens."""

    step: Step
    at_ms: int | None = None


def due(record: SubscriptionRecord, tails: Mapping[str, str], now_ms: int) -> Due:
    wake = record.wake
    if wake is None:
        return Due(Step.WAIT if first_pending(record, tails) is None else Step.WAKE)
    if wake.lease_until_ms is not None:
        return Due(Step.EXPIRE) if wake.lease_until_ms <= now_ms else Due(Step.WAIT, wake.lease_until_ms)
    if wake.attempt_at_ms is not None:
        return Due(Step.TELL) if wake.attempt_at_ms <= now_ms else Due(Step.WAIT, wake.attempt_at_ms)
    return Due(Step.WAIT)


def woken(record: SubscriptionRecord, tails: Mapping[str, str], now_ms: int, wake_id: str) -> SubscriptionRecord:
    """With a wake that is to be told; as it was if one is under way or nothing is pending."""
    trigger = first_pending(record, tails)
    if record.wake is not None or trigger is None:
        return record
    wake = Wake(id=wake_id, trigger=trigger, attempt_at_ms=now_ms)
    return msgspec.structs.replace(record, wake=wake, generation=record.generation + 1)


def told(record: SubscriptionRecord, wake_id: str, now_ms: int) -> SubscriptionRecord:
    """The subscriber heard of the wake. A webhook's lease begins; a pull-wake's begins when somebody claims it."""
    wake = record.wake
    if wake is None or wake.id != wake_id:
        return record
    if wake.lease_until_ms is None and record.kind is Kind.WEBHOOK:
        wake = msgspec.structs.replace(wake, lease_until_ms=now_ms + record.lease_ttl_ms)
    return msgspec.structs.replace(record, wake=msgspec.structs.replace(wake, attempt_at_ms=None), failures=0)


def failed(record: SubscriptionRecord, wake_id: str, now_ms: int, chance: float) -> SubscriptionRecord:
    """The subscriber could not be told: again later, unless it has shown meanwhile that it knows."""
    wake = record.wake
    if wake is None or wake.id != wake_id or wake.attempt_at_ms is None:
        return record
    failures = record.failures + 1
    again = msgspec.structs.replace(wake, attempt_at_ms=now_ms + retry_ms(failures, chance))
    return msgspec.structs.replace(record, wake=again, failures=failures)


def expired(record: SubscriptionRecord, now_ms: int) -> SubscriptionRecord:
    wake = record.wake
    if wake is None or wake.lease_until_ms is None or wake.lease_until_ms > now_ms:
        return record
    return ended(record)


def ended(record: SubscriptionRecord) -> SubscriptionRecord:
    return msgspec.structs.replace(record, wake=None)


def claimed(record: SubscriptionRecord, worker: str, tails: Mapping[str, str], now_ms: int, wake_id: str) -> SubscriptionRecord:
    """Leased to the worker, by the wake that is waiting or by a new one. Raises WakeTaken, NothingToDo."""
    free = expired(record, now_ms)
    if free.wake is not None and free.wake.holder is not None:
        holder = {"current_holder": free.wake.holder, "generation": free.generation}
        raise LeaseHeld(f"{free.wake.holder[:100]!r} has it", extra={"error": holder})
    if first_pending(free, tails) is None:
        raise NothingPending("everything is acknowledged")
    ready = woken(free, tails, now_ms, wake_id)
    if ready.wake is None:
        raise NothingPending("everything is acknowledged")
    wake = msgspec.structs.replace(ready.wake, attempt_at_ms=None, lease_until_ms=now_ms + record.lease_ttl_ms, holder=worker)
    return msgspec.structs.replace(ready, wake=wake, failures=0)


def check_wake(record: SubscriptionRecord, wake_id: str | None, generation: int | None, now_ms: int) -> None:
    """Raises WakeFenced unless this is the wake that is under way."""
    wake = expired(record, now_ms).wake
    if wake is None or wake.id != wake_id or record.generation != generation:
        raise over()


def over() -> WakeFenced:
    return WakeFenced("this wake is over")


def extended(record: SubscriptionRecord, now_ms: int) -> SubscriptionRecord:
    """Who acknowledges is alive: the lease begins anew, and nobody needs to be told any more."""
    if record.wake is None:
        return record
    wake = msgspec.structs.replace(record.wake, attempt_at_ms=None, lease_until_ms=now_ms + record.lease_ttl_ms)
    return msgspec.structs.replace(record, wake=wake, failures=0)


def retry_ms(failures: int, chance: float) -> int:
    """Milliseconds to the next attempt. `chance` from 0 to 1 chooses the place within the jitter."""
    return round(1000 * _BACKOFF.delay(failures, chance))
