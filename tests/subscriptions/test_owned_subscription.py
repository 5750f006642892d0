"""A subscription in the process that delivers it: the breaker's probe, and subscriptions that wait for a slot."""

from postroad.subscriptions.delivery_cursor import CursorState, DeliveryCursor
from postroad.subscriptions.endpoint_rules import BREAKER_FAILURES, BREAKER_OPEN_MS, Outcome
from postroad.subscriptions.owned_subscription import OwnedCursor, OwnedSubscription, Started
from postroad.subscriptions.push_client import AttemptResult
from postroad.subscriptions.records import LIVE_CURSOR
from postroad.subscriptions.scheduler import Scheduler
from tests.subscriptions.simulation import new_record

FAILED = AttemptResult(Outcome.TRANSIENT, 1, 500)


def _owned(open_count: int) -> OwnedSubscription:
    cursor = DeliveryCursor(CursorState(read_to=0))
    for sequence in range(1, open_count + 1):
        cursor.open(sequence)
    return OwnedSubscription(new_record(max_in_flight=8), {LIVE_CURSOR: OwnedCursor(LIVE_CURSOR, cursor)})


def test_the_probe_of_a_half_open_breaker_is_made_alone() -> None:
    """Also when it takes longer than the breaker was open for, and when earlier attempts have not ended."""
    owned = _owned(5)
    for _ in range(3):
        owned.window.grow()
    assert isinstance(owned.start(0), Started)
    for _ in range(BREAKER_FAILURES):
        owned.count(FAILED, 0)
    assert owned.start(0) == BREAKER_OPEN_MS
    assert owned.start(BREAKER_OPEN_MS) is None, "an attempt from before is in flight"
    owned.in_flight -= 1
    assert isinstance(owned.start(BREAKER_OPEN_MS), Started)
    assert owned.start(3 * BREAKER_OPEN_MS) is None, "the probe is in flight"


async def test_a_subscription_waits_once_for_the_slots_of_its_tenant() -> None:
    async def attempt(_owned: OwnedSubscription, _started: Started) -> None:
        """Not called in this test."""

    scheduler = Scheduler(attempt, lambda: 0, slots=2, is_served=lambda _tenant: True)
    scheduler._in_flight["acme"] = 1  # all that it may have while there are two slots
    owned = _owned(5)
    scheduler.add(owned)
    for _ in range(10):
        scheduler.wake(owned)
        scheduler._pump()
    assert [list(waiting) for waiting in scheduler._deferred.values()] == [[owned.record.id]]
    scheduler.remove(owned.record.id)
