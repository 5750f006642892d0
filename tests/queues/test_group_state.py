"""The transitions of a group: a model of publishes, pulls, acks, nacks, extensions and time keeps its promises."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from postroad.queues.group_state import (
    EMPTY,
    RECEIVE_WINDOW_MS,
    Action,
    GroupState,
    Operation,
    OperationStatus,
    apply,
    counts,
    decode_state,
    deliverable,
    drop,
    encode_state,
    lease,
    received,
    renew,
    settle,
)

LEASE_MS = 100


def held(*sequences: int, now: int = 1000, until: int = 1100) -> GroupState:
    new = [(sequence, 0) for sequence in sequences]
    state, _ = lease(EMPTY, deliverable(EMPTY, new, now, len(new)).sequences, now, until)
    return state


def operation(sequence: int, step: Action, attempt: int = 1, until: int = 0) -> Operation:
    return Operation("g", sequence, attempt, step, until)


def test_a_held_group_delivers_nothing_until_its_last_lease_ends() -> None:
    state = held(3, 5)
    assert deliverable(state, [(7, 0)], 1100, 10) == ([], 1101)
    extended, _ = apply(state, operation(5, Action.EXTEND, until=1500), 1050)
    assert deliverable(extended, [(7, 0)], 1101, 10) == ([], 1501)
    assert deliverable(extended, [(7, 0)], 1501, 10) == ([3, 5, 7], 0)


def test_a_returned_message_precedes_later_ones_and_its_delay_blocks_the_group() -> None:
    state, result = apply(held(3), operation(3, Action.RETRY, until=1500), 1050)
    assert result.status is OperationStatus.DONE
    assert deliverable(state, [(7, 0)], 1051, 10) == ([], 1500)
    assert deliverable(state, [(7, 0)], 1500, 10) == ([3, 7], 0)


def test_held_messages_are_acknowledged_in_any_order() -> None:
    state = held(3, 5, 7)
    for sequence in (5, 7, 3):
        state, result = apply(state, operation(sequence, Action.ACK), 1050)
        assert result.status is OperationStatus.DONE and state.is_settled(sequence)
    assert (state.open, state.last, state.kept, state.first_unsettled) == ((), 7, 3, 8)


def test_an_operation_with_a_receipt_of_an_ended_lease_changes_nothing() -> None:
    state = held(3)
    for step in (Action.ACK, Action.RETRY, Action.REQUEUE, Action.EXTEND):
        assert apply(state, operation(3, step), 1101)[1].status is OperationStatus.EXPIRED
    again, _ = lease(state, [3], 1101, 1200)
    assert again.find(3).attempt == 2 and again.find(3).first_ms == 1000  # type: ignore[union-attr]
    unchanged, result = apply(again, operation(3, Action.ACK), 1150)
    assert unchanged is again and result.status is OperationStatus.EXPIRED
    assert apply(settle(again, [3]), operation(3, Action.ACK, 2), 1150)[1].status is OperationStatus.SETTLED


def test_the_same_nack_may_be_repeated_and_another_operation_is_refused() -> None:
    state, _ = apply(held(3), operation(3, Action.RETRY, until=1500), 1050)
    assert apply(state, operation(3, Action.RETRY, until=9999), 1060) == (
        state,
        apply(state, operation(3, Action.RETRY), 1060)[1],
    )
    assert apply(state, operation(3, Action.RETRY), 1060)[1].status is OperationStatus.DONE
    assert apply(state, operation(3, Action.ACK), 1060)[1].status is OperationStatus.RETURNED
    promoted, _ = apply(state, operation(3, Action.PROMOTE, attempt=0), 1070)
    assert deliverable(promoted, [], 1070, 1).sequences == [3]


def test_an_undone_lease_is_not_an_attempt() -> None:
    state, _ = apply(held(3), operation(3, Action.UNDO), 1050)
    again, [message] = lease(state, deliverable(state, [], 1050, 1).sequences, 1050, 1200)
    assert message.attempt == 1 and again.last == 3


def test_a_repeated_pull_returns_its_messages_for_five_minutes() -> None:
    state, _ = lease(EMPTY, [3, 5], 1000, 1100, "r", 2)
    assert [one.sequence for one in received(state, "r", 1500)] == [3, 5]
    assert received(state, "other", 1050) == []
    renewed = renew(state, [3, 5], 1600)
    assert renewed.held_until(1500) == 1600
    assert received(renewed, "r", 1001 + RECEIVE_WINDOW_MS) == []
    assert [one.sequence for one in received(apply(renewed, operation(3, Action.ACK), 1500)[0], "r", 1500)] == [5]


def test_the_record_is_stored_compactly_and_counted() -> None:
    state, _ = apply(held(3, 5, 7), operation(5, Action.RETRY, until=2000), 1050)
    assert decode_state(encode_state(state)) == state
    assert counts(state, 1050) == (2, 1, 0, 0)
    assert counts(state, 1101) == (0, 1, 0, 2)
    assert counts(state, 2000) == (0, 0, 1, 2)
    assert drop(state, [3]).open[0].sequence == 5


class GroupModel(RuleBasedStateMachine):
    """Consumers of one group, with receipts that stay around after their leases. The model holds what each promise is about."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.next_sequence = 1000, 1
        self.state = EMPTY
        self.stored: list[tuple[int, int]] = []  # sequence, due
        self.settled: set[int] = set()
        self.receipts: list[tuple[int, int, int]] = []  # sequence, attempt, consumer
        self.holders: dict[int, tuple[int, int, int]] = {}  # sequence: consumer, attempt, until
        self.consumers = 0

    @rule(count=st.integers(1, 4), delay=st.sampled_from([0, 0, 50]))
    def publish(self, count: int, delay: int) -> None:
        for _ in range(count):
            due = max(self.now + delay, self.stored[-1][1] if self.stored else 0)
            self.stored.append((self.next_sequence, due))
            self.next_sequence += 3

    @rule(count=st.integers(1, 5))
    def pull(self, count: int) -> None:
        new = [one for one in self.stored if one[0] > self.state.last]
        found = deliverable(self.state, new, self.now, count)
        live = {
            sequence for sequence, (_, _, until) in self.holders.items() if until >= self.now and sequence not in self.settled
        }
        if found.sequences:
            assert not live, "two consumers hold the group"
            unsettled = [sequence for sequence, _ in self.stored if sequence not in self.settled]
            assert found.sequences == unsettled[: len(found.sequences)], "delivery does not follow the order"
        elif not live and not found.blocked_until_ms:
            assert all(sequence in self.settled for sequence, _ in self.stored), "a message is lost"
        self.consumers += 1
        self.state, leased = lease(self.state, found.sequences, self.now, self.now + LEASE_MS)
        for one in leased:
            self.receipts.append((one.sequence, one.attempt, self.consumers))
            self.holders[one.sequence] = (self.consumers, one.attempt, one.until_ms)

    @precondition(lambda self: self.receipts)
    @rule(
        data=st.data(),
        step=st.sampled_from([Action.ACK, Action.ACK, Action.RETRY, Action.REQUEUE, Action.EXTEND]),
        ms=st.integers(0, 200),
    )
    def operate(self, data: st.DataObject, step: Action, ms: int) -> None:
        sequence, attempt, consumer = data.draw(st.sampled_from(self.receipts))
        holder = self.holders.get(sequence)
        holds = holder is not None and holder[:2] == (consumer, attempt) and holder[2] >= self.now
        before = self.state
        self.state, result = apply(before, Operation("g", sequence, attempt, step, self.now + ms), self.now)
        if not holds:
            assert self.state is before, "a receipt without a lease changed the group"
            return
        assert result.status is OperationStatus.DONE
        if step == Action.EXTEND:
            self.holders[sequence] = (consumer, attempt, self.now + ms)
            return
        del self.holders[sequence]
        if step == Action.ACK:
            self.settled.add(sequence)

    @precondition(lambda self: self.state.open and not self.state.held_until(self.now))
    @rule()
    def dead_letter(self) -> None:
        sequence = self.state.open[0].sequence
        self.state = settle(self.state, [sequence])
        self.settled.add(sequence)
        self.holders.pop(sequence, None)

    @rule(ms=st.integers(1, 150))
    def wait(self, ms: int) -> None:
        self.now += ms

    @rule()
    def restart(self) -> None:
        self.state = decode_state(encode_state(self.state))

    @invariant()
    def nothing_settled_returns(self) -> None:
        assert all(self.state.is_settled(sequence) for sequence in self.settled)
        unsettled = {sequence for sequence, _ in self.stored} - self.settled
        assert not any(self.state.is_settled(sequence) for sequence in unsettled)
        assert [one.sequence for one in self.state.open] == sorted(one.sequence for one in self.state.open)


TestGroupModel = GroupModel.TestCase
TestGroupModel.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
