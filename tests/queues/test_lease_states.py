"""The fold of lease transitions: any order, any repetition."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from postroad.queues.lease_states import LIVE, LeaseCounts, QueueLeases, Step, Transition

NOW = 1_000_000


def folded(*transitions: Transition, now: int = NOW) -> QueueLeases:
    leases = QueueLeases()
    for one in transitions:
        leases.apply(one)
    leases.advance(now)
    return leases


def leased(sequence: int, until: int, attempt: int = 1, at: int = 1) -> Transition:
    return Transition(sequence, attempt, Step.LEASED, at, until)


def test_a_lease_ends_by_itself() -> None:
    leases = folded(leased(1, NOW + 10))
    assert leases.counts(NOW + 9) == LeaseCounts(leased=1)
    assert leases.counts(NOW + 10) == LeaseCounts(overdue=1)


def test_the_next_delivery_ends_the_overdue_state() -> None:
    leases = folded(leased(1, NOW - 1), leased(1, NOW + 5, attempt=2, at=2))
    assert leases.counts(NOW) == LeaseCounts(leased=1)
    assert leases.is_delivered_again(1, 1) and not leases.is_delivered_again(1, 2)


def test_a_retry_waits_until_it_is_due() -> None:
    leases = folded(leased(1, NOW + 10), Transition(1, 1, Step.RETRIED, 2, NOW + 20, NOW + 10))
    assert leases.counts(NOW + 19) == LeaseCounts(retrying=1)
    assert leases.counts(NOW + 20) == LeaseCounts()


def test_an_ack_that_is_known_before_its_lease_ends_it() -> None:
    leases = folded(Transition(1, 1, Step.ACKED, NOW), leased(1, NOW + 60_000))
    assert leases.counts(NOW) == LeaseCounts()


def test_an_extension_replaces_the_deadline() -> None:
    leases = folded(leased(1, NOW + 10), Transition(1, 1, Step.EXTENDED, 2, NOW + 100))
    assert leases.counts(NOW + 50) == LeaseCounts(leased=1)
    assert leases.counts(NOW + 100) == LeaseCounts(overdue=1)


def test_a_purge_ends_the_leases_before_it() -> None:
    purge = Transition(0, 0, Step.PURGED, 50)
    assert folded(leased(1, NOW + 10, at=10), leased(2, NOW + 10, at=60), purge).counts(NOW) == LeaseCounts(leased=1)
    assert folded(purge, leased(1, NOW + 10, at=10), leased(2, NOW + 10, at=60)).counts(NOW) == LeaseCounts(leased=1)


def test_a_nack_is_remembered_until_the_deadline_of_its_receipt() -> None:
    leases = folded(Transition(1, 1, Step.REQUEUED, 2, 3, NOW + 10), leased(1, NOW + 5, attempt=2, at=4))
    nack = leases.nack_of(1, 1)
    assert nack is not None and nack.step == Step.REQUEUED
    assert not leases.sweep(NOW + 10) and leases.nack_of(1, 1)
    leases.sweep(NOW + 11)
    assert leases.nack_of(1, 1) is None


def test_nothing_is_kept_of_messages_that_are_gone() -> None:
    leases = folded(*(leased(one, NOW + 10) for one in range(100)))
    for one in range(100):
        leases.apply(Transition(one, 1, Step.ACKED, NOW))
    assert not leases.sweep(NOW + 9_999)
    assert leases.sweep(NOW + 10_000) and len(leases) == 0


def test_acknowledged_leases_do_not_accumulate() -> None:
    leases = QueueLeases()
    for one in range(20_000):
        leases.apply(leased(one, NOW + 43_200_000, at=NOW + one))
        leases.apply(Transition(one, 1, Step.ACKED, NOW + one))
        leases.advance(NOW + one)
    assert len(leases) <= 10_001 and len(leases._ends) <= 2 * 10_001 + 1000


def test_overdue_messages_that_the_engine_does_not_have_are_forgotten() -> None:
    leases = folded(leased(1, NOW - 10), leased(2, NOW - 1), leased(3, NOW + 10))
    leases.forget_overdue(NOW - 5)
    assert leases.counts(NOW) == LeaseCounts(leased=1, overdue=1)


steps = st.builds(
    lambda sequence, attempt, step, at, length: Transition(
        sequence,
        attempt,
        step,
        NOW + at * 10 + sequence * 3 + attempt,
        0 if step == Step.ACKED else NOW + at * 10 + length,
        NOW + 5000 if Step.SHORTENED <= step <= Step.DEAD_LETTERED else 0,
    ),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([Step.LEASED, Step.EXTENDED, Step.SHORTENED, Step.RETRIED, Step.REQUEUED, Step.DEAD_LETTERED, Step.ACKED]),
    st.integers(0, 20),
    st.integers(0, 400),
)


@given(st.lists(steps, max_size=30), st.randoms(), st.integers(0, 600))
def test_order_and_repetition_make_no_difference(transitions: list[Transition], random: Random, later: int) -> None:
    now = NOW + 300 + later
    expected = folded(*transitions, now=now)
    shuffled = [*transitions, *transitions[: len(transitions) // 2]]
    random.shuffle(shuffled)
    found = QueueLeases()
    for index, one in enumerate(shuffled):
        found.apply(one)
        if index % 3 == 0:
            found.advance(now - 200 + index)
    found.advance(now)
    assert found.counts(now) == expected.counts(now)
    latest = [max((one for one in transitions if one.sequence == sequence), key=rank, default=None) for sequence in (1, 2, 3)]
    by_hand = LeaseCounts(
        leased=sum(1 for one in latest if one and one.step in LIVE and one.until_ms > now),
        retrying=sum(1 for one in latest if one and one.step in (Step.RETRIED, Step.REQUEUED) and one.until_ms > now),
        overdue=sum(1 for one in latest if one and one.step in LIVE and one.until_ms <= now),
    )
    assert found.counts(now) == by_hand


def rank(transition: Transition) -> tuple[int, ...]:
    return transition.rank


@given(st.lists(steps, max_size=30))
def test_a_snapshot_has_the_same_counts(transitions: list[Transition]) -> None:
    leases = folded(*transitions, now=NOW + 300)
    assert folded(*leases.transitions(), now=NOW + 300).counts(NOW + 300) == leases.counts(NOW + 300)
