"""State machine of wakes. Pure: no I/O, clock or randomness.

idle ── data is pending ──▶ to be delivered ── delivered ──▶ waiting for a claim (pull-wake only)
 ▲                              │ ▲ failed: retry later         │ claimed
 │                              ▼ │                             ▼
 └──── done, released, or the lease has expired ◀─────────── leased
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import msgspec

from postroad.api.stream_subscriptions import LeaseHeld, NothingPending, WakeFenced
from postroad.kernel.backoff import Backoff
from postroad.stream_subscriptions.records import Kind, SubscriptionRecord, Wake
from postroad.stream_subscriptions.rules import first_pending

_BACKOFF = Backoff(first_seconds=1.0, max_seconds=60.0, jitter=(0.8, 1.2))


class Action(Enum):
    WAIT = "wait"
    WAKE = "wake"
    DELIVER = "deliver"
    EXPIRE = "expire"


@dataclass(frozen=True, slots=True)
class NextAction:
    """Action to take now. `at_ms` is the end of a `WAIT`; None: until the next change."""

    action: Action
    at_ms: int | None = None


def next_action(record: SubscriptionRecord, tails: Mapping[str, str], now_ms: int) -> NextAction:
    wake = record.wake
    if wake is None:
        return NextAction(Action.WAIT if first_pending(record, tails) is None else Action.WAKE)
    if wake.lease_until_ms is not None:
        is_expired = wake.lease_until_ms <= now_ms
        return NextAction(Action.EXPIRE) if is_expired else NextAction(Action.WAIT, wake.lease_until_ms)
    if wake.attempt_at_ms is not None:
        is_due = wake.attempt_at_ms <= now_ms
        return NextAction(Action.DELIVER) if is_due else NextAction(Action.WAIT, wake.attempt_at_ms)
    return NextAction(Action.WAIT)


def start_wake(record: SubscriptionRecord, tails: Mapping[str, str], now_ms: int, wake_id: str) -> SubscriptionRecord:
    """Start a wake; no change if there is one or nothing is pending."""
    trigger = first_pending(record, tails)
    if record.wake is not None or trigger is None:
        return record
    wake = Wake(id=wake_id, trigger=trigger, attempt_at_ms=now_ms)
    return msgspec.structs.replace(record, wake=wake, generation=record.generation + 1)


def delivered(record: SubscriptionRecord, wake_id: str, now_ms: int) -> SubscriptionRecord:
    """The subscriber received the wake. The lease of a webhook begins; that of a pull-wake begins with its claim."""
    wake = record.wake
    if wake is None or wake.id != wake_id:
        return record
    if wake.lease_until_ms is None and record.kind is Kind.WEBHOOK:
        wake = msgspec.structs.replace(wake, lease_until_ms=now_ms + record.lease_ttl_ms)
    return msgspec.structs.replace(record, wake=msgspec.structs.replace(wake, attempt_at_ms=None), failures=0)


def delivery_failed(record: SubscriptionRecord, wake_id: str, now_ms: int, chance: float) -> SubscriptionRecord:
    """Schedule the next attempt, unless the subscriber has acknowledged the wake meanwhile."""
    wake = record.wake
    if wake is None or wake.id != wake_id or wake.attempt_at_ms is None:
        return record
    failures = record.failures + 1
    retried = msgspec.structs.replace(wake, attempt_at_ms=now_ms + retry_ms(failures, chance))
    return msgspec.structs.replace(record, wake=retried, failures=failures)


def expire_lease(record: SubscriptionRecord, now_ms: int) -> SubscriptionRecord:
    """End the wake if its lease has expired."""
    wake = record.wake
    if wake is None or wake.lease_until_ms is None or wake.lease_until_ms > now_ms:
        return record
    return end_wake(record)


def end_wake(record: SubscriptionRecord) -> SubscriptionRecord:
    return msgspec.structs.replace(record, wake=None)


def claim(record: SubscriptionRecord, worker: str, tails: Mapping[str, str], now_ms: int, wake_id: str) -> SubscriptionRecord:
    """Lease the waiting wake, or a new one, to the worker. Raises LeaseHeld, NothingPending."""
    free = expire_lease(record, now_ms)
    if free.wake is not None and free.wake.holder is not None:
        holder = {"current_holder": free.wake.holder, "generation": free.generation}
        raise LeaseHeld(f"worker {free.wake.holder[:100]!r} holds the lease", extra={"error": holder})
    if first_pending(free, tails) is None:
        raise NothingPending("everything is acknowledged")
    ready = start_wake(free, tails, now_ms, wake_id)
    if ready.wake is None:
        raise NothingPending("everything is acknowledged")
    wake = msgspec.structs.replace(ready.wake, attempt_at_ms=None, lease_until_ms=now_ms + record.lease_ttl_ms, holder=worker)
    return msgspec.structs.replace(ready, wake=wake, failures=0)


def check_wake(record: SubscriptionRecord, wake_id: str | None, generation: int | None, now_ms: int) -> None:
    """Raises WakeFenced unless this is the current wake."""
    wake = expire_lease(record, now_ms).wake
    if wake is None or wake.id != wake_id or record.generation != generation:
        raise fenced()


def fenced() -> WakeFenced:
    return WakeFenced("the wake has ended")


def renew_lease(record: SubscriptionRecord, now_ms: int) -> SubscriptionRecord:
    """Restart the lease after an acknowledgement, which also proves that the wake was delivered."""
    if record.wake is None:
        return record
    wake = msgspec.structs.replace(record.wake, attempt_at_ms=None, lease_until_ms=now_ms + record.lease_ttl_ms)
    return msgspec.structs.replace(record, wake=wake, failures=0)


def retry_ms(failures: int, chance: float) -> int:
    """Milliseconds to the next attempt. `chance` from 0 to 1 chooses the place within the jitter."""
    return round(1000 * _BACKOFF.delay(failures, chance))
