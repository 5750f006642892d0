"""The state of one group of an ordered queue, and its transitions. Pure.

A record says which messages of the group were delivered and are not settled (`open`). Every other message up to the sequence
`last` is settled; every message after it was never delivered. So the record grows with the messages that are held, not with the
group. A process applies a transition to the version that it read and writes the result on condition that it is still the latest.

The group is held as long as one of its leases lasts. Then nothing of it is delivered; afterwards the open messages come first, in
the order of their sequences, and one that is not due yet holds up all that follow.
"""

from collections.abc import Iterable, Sequence
from enum import IntEnum, StrEnum
from typing import NamedTuple

import msgspec

from postroad.queues.lease_states import LIVE, Step

RECEIVE_WINDOW_MS = 300_000  # how long a `receiveId` returns the same messages


class OpenMessage(msgspec.Struct, frozen=True, array_like=True):
    """A message that was delivered and is not settled. `until_ms`: the end of its lease, or the time of its next delivery.

    `step` is LEASED, or RETRIED, REQUEUED or PROMOTED after a nack. `receive` names the pull that leased it, of
    `receive_count` messages in all groups, if the pull had a `receiveId`.
    """

    sequence: int
    attempt: int
    first_ms: int
    leased_ms: int
    until_ms: int
    step: int = Step.LEASED
    receive: str = ""
    receive_count: int = 0

    def is_held(self, now_ms: int) -> bool:
        return self.step in LIVE and now_ms <= self.until_ms

    def is_due(self, now_ms: int) -> bool:
        """True if it can be delivered as far as this message is concerned."""
        return now_ms > self.until_ms if self.step in LIVE else now_ms >= self.until_ms


class GroupState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Format 1 of a group's record, on `….s.<hash>`. `kept`: settled messages that were still stored when it was written."""

    v: int = 1
    last: int = 0
    kept: int = 0
    open: tuple[OpenMessage, ...] = ()

    def find(self, sequence: int) -> OpenMessage | None:
        return next((one for one in self.open if one.sequence == sequence), None)

    def is_settled(self, sequence: int) -> bool:
        return sequence <= self.last and self.find(sequence) is None

    def held_until(self, now_ms: int) -> int:
        """The latest end of the leases that last; 0 if the group is free."""
        return max((one.until_ms for one in self.open if one.is_held(now_ms)), default=0)

    @property
    def first_unsettled(self) -> int:
        """No message before this sequence is needed any more."""
        return self.open[0].sequence if self.open else self.last + 1


encode_state = msgspec.json.Encoder().encode
decode_state = msgspec.json.Decoder(GroupState).decode
EMPTY = GroupState()


# Delivery


class Deliverable(NamedTuple):
    """Sequences that can be leased now, in order. `blocked_until_ms`: when the next one is due, 0 if there is none."""

    sequences: list[int]
    blocked_until_ms: int


def deliverable(state: GroupState, new: Sequence[tuple[int, int]], now_ms: int, count: int) -> Deliverable:
    """The messages to deliver next. `new`: sequence and due time of the messages after `state.last`, in order."""
    held_until = state.held_until(now_ms)
    if held_until:
        return Deliverable([], held_until + 1)
    found: list[int] = []
    for one in state.open:
        if len(found) >= count:
            return Deliverable(found, 0)
        if not one.is_due(now_ms):
            return Deliverable(found, one.until_ms)
        found.append(one.sequence)
    for sequence, due_ms in new:
        if len(found) >= count:
            break
        if sequence <= state.last:
            continue
        if due_ms > now_ms:
            return Deliverable(found, due_ms)
        found.append(sequence)
    return Deliverable(found, 0)


def lease(
    state: GroupState, sequences: Sequence[int], now_ms: int, until_ms: int, receive: str = "", receive_count: int = 0
) -> tuple[GroupState, list[OpenMessage]]:
    """Lease what `deliverable` returned for this state."""
    known = {one.sequence: one for one in state.open}
    leased = []
    for sequence in sequences:
        before = known.get(sequence)
        attempt, first_ms = (before.attempt + 1, before.first_ms or now_ms) if before else (1, now_ms)
        leased.append(OpenMessage(sequence, attempt, first_ms, now_ms, until_ms, Step.LEASED, receive, receive_count))
    known |= {one.sequence: one for one in leased}
    last = max(state.last, sequences[-1]) if sequences else state.last
    return _with_open(state, known.values(), last=last), leased


def settle(state: GroupState, sequences: Iterable[int], *, last: int = 0) -> GroupState:
    """Settle messages: open ones, or new ones up to `last`, all of which are settled or open then."""
    gone = set(sequences)
    return _with_open(state, [one for one in state.open if one.sequence not in gone], last=max(state.last, last), kept=len(gone))


def drop(state: GroupState, sequences: Iterable[int]) -> GroupState:
    """Forget open messages that are not stored any more."""
    gone = set(sequences)
    return _with_open(state, [one for one in state.open if one.sequence not in gone])


def _with_open(state: GroupState, messages: Iterable[OpenMessage], *, last: int | None = None, kept: int = 0) -> GroupState:
    ordered = tuple(sorted(messages, key=lambda one: one.sequence))
    return GroupState(last=state.last if last is None else last, kept=state.kept + kept, open=ordered)


def _replaced(state: GroupState, changed: OpenMessage) -> GroupState:
    return _with_open(state, [changed if one.sequence == changed.sequence else one for one in state.open])


# Repeated pulls


def received(state: GroupState, receive: str, now_ms: int) -> list[OpenMessage]:
    """The messages that the pull with this `receiveId` leased and still has, as long as it may be repeated."""
    return [
        one for one in state.open if one.receive == receive and one.step in LIVE and now_ms - one.leased_ms <= RECEIVE_WINDOW_MS
    ]


def renew(state: GroupState, sequences: Iterable[int], until_ms: int) -> GroupState:
    """Renew the leases of a repeated pull. The time of the lease stays: the pull cannot be repeated for ever."""
    wanted = set(sequences)
    return _with_open(
        state,
        [msgspec.structs.replace(one, until_ms=until_ms) if one.sequence in wanted else one for one in state.open],
    )


# Operations with a receipt


class OperationStatus(StrEnum):
    DONE = "done"  # the operation has its effect, now or because it was made before
    EXPIRED = "expired"  # the lease has ended
    SETTLED = "settled"  # the message was settled before
    RETURNED = "returned"  # the lease was ended by a nack with another action


class OperationResult(msgspec.Struct, frozen=True, array_like=True):
    """`until_ms`: the end of the lease, or the time of the next delivery. `step`: that of the message, if it was returned."""

    status: OperationStatus
    until_ms: int = 0
    step: int = 0


class Action(IntEnum):
    """What to do with one delivery. UNDO: the lease reached no consumer, and is no attempt. PROMOTE makes a returned message due,
    whatever its attempt; REMOVE settles a message that is taken out of the queue. CHECK only verifies the lease."""

    ACK = 0
    RETRY = 1
    REQUEUE = 2
    EXTEND = 3
    UNDO = 4
    PROMOTE = 5
    REMOVE = 6
    CHECK = 7


_RETURNS = {Action.RETRY: Step.RETRIED, Action.REQUEUE: Step.REQUEUED}


class Operation(msgspec.Struct, frozen=True, array_like=True):
    """An operation on one delivery. `until_ms`: the new end of the lease, or the time of the next delivery."""

    group: str
    sequence: int
    attempt: int
    action: Action
    until_ms: int = 0


def apply(state: GroupState, operation: Operation, now_ms: int) -> tuple[GroupState, OperationResult]:
    """The state after an operation. It is the same object if nothing changes."""
    known, action = state.find(operation.sequence), operation.action
    if action == Action.REMOVE and (known is not None or operation.sequence > state.last):
        # The record is written in any case: a dispatcher that has read the message before must not deliver it later.
        changed = msgspec.structs.replace(state) if known is None else settle(state, [known.sequence])
        return changed, OperationResult(OperationStatus.DONE)
    if known is None:
        return state, OperationResult(OperationStatus.SETTLED)
    if action == Action.PROMOTE:
        return _promote(state, known, now_ms)
    if known.attempt != operation.attempt:
        return state, OperationResult(OperationStatus.EXPIRED, known.leased_ms)
    if known.step not in LIVE:
        is_same = known.step == _RETURNS.get(action)
        return state, OperationResult(OperationStatus.DONE if is_same else OperationStatus.RETURNED, known.until_ms, known.step)
    if not known.is_held(now_ms):
        return state, OperationResult(OperationStatus.EXPIRED, known.until_ms)
    return _apply_to_held(state, known, operation, now_ms)


def _apply_to_held(
    state: GroupState, known: OpenMessage, operation: Operation, now_ms: int
) -> tuple[GroupState, OperationResult]:
    action, until_ms = operation.action, operation.until_ms
    if action == Action.ACK:
        return settle(state, [known.sequence]), OperationResult(OperationStatus.DONE)
    if action == Action.CHECK:
        return state, OperationResult(OperationStatus.DONE, known.until_ms)
    if action == Action.EXTEND:
        return _replaced(state, msgspec.structs.replace(known, until_ms=until_ms)), OperationResult(
            OperationStatus.DONE, until_ms
        )
    if action == Action.UNDO:
        undone = msgspec.structs.replace(known, attempt=known.attempt - 1, until_ms=now_ms, step=Step.REQUEUED, receive="")
        return _replaced(state, undone), OperationResult(OperationStatus.DONE)
    step = _RETURNS[action]
    returned = msgspec.structs.replace(known, until_ms=until_ms, step=step)
    return _replaced(state, returned), OperationResult(OperationStatus.DONE, until_ms, step)


def _promote(state: GroupState, known: OpenMessage, now_ms: int) -> tuple[GroupState, OperationResult]:
    if known.step in LIVE or known.until_ms <= now_ms:
        return state, OperationResult(OperationStatus.DONE, known.until_ms, known.step)
    due = msgspec.structs.replace(known, until_ms=now_ms, step=Step.PROMOTED)
    return _replaced(state, due), OperationResult(OperationStatus.DONE, now_ms, Step.PROMOTED)


# Counts


class GroupCounts(NamedTuple):
    """Open messages by state. `due`: of those returned, the ones that can be delivered; `overdue`: their lease ended."""

    leased: int
    retrying: int
    due: int
    overdue: int


def counts(state: GroupState, now_ms: int) -> GroupCounts:
    leased = retrying = due = overdue = 0
    for one in state.open:
        if one.step in LIVE:
            is_held = one.is_held(now_ms)
            leased += is_held
            overdue += not is_held
        elif one.until_ms > now_ms:
            retrying += 1
        else:
            due += 1
    return GroupCounts(leased, retrying, due, overdue)
