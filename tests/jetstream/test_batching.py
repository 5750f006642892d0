"""Which writes go together. Runs on nothing: no engine, no event loop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.jetstream.batching import (
    CommitPolicy,
    PendingMessage,
    Precondition,
    PublishAck,
    WriteQueue,
    assign_sequences,
    is_judgeable,
    last_sequences,
    preconditions_of,
    resolve_conflict,
    split_conditional,
)


@dataclass
class Write:
    messages: Sequence[PendingMessage]
    is_cancelled: bool = False

    @property
    def size(self) -> int:
        return sum(message.size for message in self.messages)


def message(subject: str = "s.a", payload: bytes = b"x", *, precondition_subject: str = "") -> PendingMessage:
    is_conditional = bool(precondition_subject)
    return PendingMessage(subject, payload, "id", is_conditional=is_conditional, precondition_subject=precondition_subject)


def write(count: int = 1) -> Write:
    return Write([message() for _ in range(count)])


def queue_of(writes: Sequence[Write], policy: CommitPolicy | None = None) -> WriteQueue[Write]:
    queue: WriteQueue[Write] = WriteQueue(policy or CommitPolicy())
    for one in writes:
        queue.add(one)
    return queue


def test_a_batch_is_due_from_the_minimum_of_pending_writes_on() -> None:
    queue = queue_of([write() for _ in range(3)], CommitPolicy(batch_min_pending=4))
    assert not queue.is_batch_due
    queue.add(write())
    assert queue.is_batch_due


def test_single_writes_are_removed_in_order_of_arrival() -> None:
    writes = [write() for _ in range(3)]
    queue = queue_of(writes)
    removed = [queue.next_single() for _ in range(3)]
    assert all(one is other for one, other in zip(removed, writes, strict=True)) and len(queue) == 0


def test_a_write_of_several_messages_makes_a_batch_due_that_others_share() -> None:
    writes = [write(), write(2), write()]
    queue = queue_of(writes)
    assert queue.is_batch_due
    assert queue.next_batch() == (writes, [])
    queue.add(write())
    assert not queue.is_batch_due


def test_a_batch_stays_within_the_limit_on_messages() -> None:
    writes = [write(3), write(3), write(3), write()]
    queue = queue_of(writes, CommitPolicy(batch_messages_max=7))
    assert queue.next_batch() == (writes[:2], [])
    assert queue.next_batch() == (writes[2:], [])


def test_a_batch_stays_within_the_limit_on_bytes() -> None:
    writes = [write() for _ in range(4)]
    queue = queue_of(writes, CommitPolicy(batch_min_pending=1, batch_bytes_max=3 * writes[0].size))
    assert [len(queue.next_batch()[0]) for _ in range(2)] == [3, 1]


def test_a_write_over_the_limits_forms_a_batch_of_its_own() -> None:
    writes = [write(10), write()]
    queue = queue_of(writes, CommitPolicy(batch_messages_max=5))
    assert queue.next_batch() == (writes[:1], [])
    assert len(queue) == 1


def test_cancelled_writes_are_removed_and_do_not_count() -> None:
    writes = [Write([message()] * 5, is_cancelled=True), write(2), Write([message()], is_cancelled=True), write(2)]
    queue = queue_of(writes, CommitPolicy(batch_messages_max=4))
    assert queue.next_batch() == ([writes[1], writes[3]], [writes[0], writes[2]])
    assert len(queue) == 0 and not queue.is_batch_due


def test_a_batch_of_only_cancelled_writes_is_empty() -> None:
    queue = queue_of([Write([message(), message()], is_cancelled=True)])
    assert queue.next_batch()[0] == [] and len(queue) == 0


def test_a_batch_ends_before_a_precondition_on_its_own_messages() -> None:
    first, unrelated = Write([message("s.orders.d")]), Write([message("s.users.d", precondition_subject="s.users")])
    dependent = Write([message("s.orders.d", precondition_subject="s.orders")])
    queue = queue_of([first, unrelated, dependent], CommitPolicy(batch_min_pending=1))
    assert queue.next_batch() == ([first, unrelated], [])
    assert queue.next_batch() == ([dependent], [])


def test_a_precondition_within_one_write_does_not_split_it() -> None:
    both = Write([message("s.orders.d"), message("s.orders.m", precondition_subject="s.orders")])
    assert queue_of([both]).next_batch() == ([both], [])


def test_writes_with_a_precondition_are_separated_from_the_others() -> None:
    plain, conditional = write(), Write([message(), message(precondition_subject="s")])
    assert split_conditional([plain, conditional, plain]) == ([conditional], [plain, plain])


def test_the_last_sequence_of_a_batch_gives_all_positions() -> None:
    acks = assign_sequences([write(2), write(), write(3)], 15)
    assert acks == [
        (PublishAck(10), PublishAck(11)),
        (PublishAck(12),),
        (PublishAck(13), PublishAck(14), PublishAck(15)),
    ]


writes_of_any_kind = st.lists(
    st.builds(
        Write,
        st.lists(
            st.builds(
                message, st.sampled_from(["s.a.d", "s.b.d", "t"]), precondition_subject=st.sampled_from(["", "s.a", "s.b"])
            ),
            min_size=1,
            max_size=4,
        ),
        st.booleans(),
    ),
    max_size=30,
)


@given(writes_of_any_kind, st.integers(1, 6), st.integers(1, 4000))
def test_every_write_is_removed_once_and_in_order_for_any_limits(writes: list[Write], messages_max: int, bytes_max: int) -> None:
    policy = CommitPolicy(batch_min_pending=1, batch_messages_max=messages_max, batch_bytes_max=bytes_max)
    queue = queue_of(writes, policy)
    sent: list[Write] = []
    cancelled: list[Write] = []
    while queue.is_batch_due:
        batch, dropped = queue.next_batch()
        assert batch or dropped
        assert len(batch) == 1 or sum(len(one.messages) for one in batch) <= messages_max or not batch
        assert len(batch) == 1 or sum(one.size for one in batch) <= bytes_max
        sent += batch
        cancelled += dropped
    assert len(queue) == 0
    assert [id(one) for one in sent] == [id(one) for one in writes if not one.is_cancelled]
    assert [id(one) for one in cancelled] == [id(one) for one in writes if one.is_cancelled]


# Rejected batches

SUBJECTS = ["s.a.d", "s.a.m", "s.b.d", "t"]


def conditional(subject: str, sequence: int, *, other: str = "") -> PendingMessage:
    headers = f"Nats-Expected-Last-Subject-Sequence: {sequence}\r\n"
    if other:
        headers += f"Nats-Expected-Last-Subject-Sequence-Subject: {other}\r\n"
    return PendingMessage(subject, b"x", "id", f"Nats-TTL: 5s\r\n{headers}", is_conditional=True)


def test_preconditions_are_read_from_the_headers() -> None:
    both = Write([message("t"), conditional("s.a.d", 7), conditional("s.b.d", 0, other="s.b.*")])
    assert preconditions_of(both) == [Precondition("s.a.d", 7), Precondition("s.b.*", 0)]


@pytest.mark.parametrize(
    ("subject", "expected"), [("s.a", True), ("s.a.*", True), ("s.*.a", False), ("s.>", False), (">", False), ("s.*.*", False)]
)
def test_only_patterns_of_one_level_can_be_judged(subject: str, expected: bool) -> None:
    assert is_judgeable(subject) is expected


def test_the_last_sequence_of_a_pattern_is_the_highest_under_it() -> None:
    stored = [("s.a.d", 3), ("s.a.m", 9), ("t", 5)]
    assert last_sequences(["s.a.*", "s.a.d", "s.b.*", "t"], stored) == {"s.a.*": 9, "s.a.d": 3, "s.b.*": 0, "t": 5}


def test_of_two_writes_with_the_same_precondition_the_second_waits_for_the_first() -> None:
    first, second, stale, plain = (
        Write([conditional("t", 4)]),
        Write([conditional("t", 4)]),
        Write([conditional("t", 3)]),
        write(),
    )
    resolution = resolve_conflict([first, second, stale, plain], {"t": 4})
    assert (resolution.stale, resolution.sendable, resolution.deferred) == ([stale], [first, plain], [second])


def test_writes_that_share_a_precondition_and_do_not_change_its_subject_go_together() -> None:
    writes = [Write([conditional("s.a.d", 4, other="s.a.m")]) for _ in range(3)]
    assert resolve_conflict(writes, {"s.a.m": 4}).sendable == writes


class Engine:
    """A model of the server: the last sequence per subject, and batches that are stored as a whole or rejected."""

    def __init__(self, last: Mapping[str, int]) -> None:
        self.last = dict(last)
        self.sequence = 100  # no caller knows a sequence before it is given out

    def last_of(self, subject: str) -> int:
        under = subject.removesuffix("*")
        return max((last for name, last in self.last.items() if name == subject or (under != subject and name.startswith(under))))

    def store(self, batch: Sequence[Write]) -> bool:
        """An exact subject that the batch has changed fails the precondition; a pattern is compared with the state before it."""
        changed: set[str] = set()
        for one in batch:
            for each in one.messages:
                for subject, sequence in preconditions_of(Write([each])):
                    if self.last_of(subject) != sequence or subject in changed:
                        return False
                changed.add(each.subject)
        for one in batch:
            for each in one.messages:
                self.sequence += 1
                self.last[each.subject] = self.sequence
        return True


any_message = st.one_of(
    st.builds(message, st.sampled_from(SUBJECTS)),
    st.builds(
        conditional, st.sampled_from(SUBJECTS), st.integers(0, 4), other=st.sampled_from(["", "s.a.*", "s.b.*", "s.a.m", "t"])
    ),
)
any_write = st.builds(Write, st.lists(any_message, min_size=1, max_size=2))


@given(st.lists(any_write, max_size=12), st.lists(st.integers(0, 4), min_size=4, max_size=4))
def test_resolving_a_conflict_gives_each_write_the_outcome_of_sending_it_alone_and_in_order(
    writes: list[Write], stored: list[int]
) -> None:
    last = dict(zip(SUBJECTS, stored, strict=True))
    alone = Engine(last)
    expected = {id(one): alone.store([one]) for one in writes}
    engine = Engine(last)
    outcomes: dict[int, bool] = {}
    pending = list(writes)
    while pending:
        subjects = {one.subject for write in pending for one in preconditions_of(write)}
        resolution = resolve_conflict(pending, last_sequences(subjects, engine.last.items()))
        assert resolution.stale or resolution.sendable
        outcomes |= {id(one): False for one in resolution.stale}
        if engine.store(resolution.sendable):
            outcomes |= {id(one): True for one in resolution.sendable}
        else:  # a write that cannot succeed on its own either: the committer sends them one by one
            outcomes |= {id(one): engine.store([one]) for one in resolution.sendable}
        pending = resolution.deferred
    assert outcomes == expected


@given(
    st.lists(st.builds(lambda one: Write([one]), any_message), max_size=12), st.lists(st.integers(0, 4), min_size=4, max_size=4)
)
def test_single_messages_that_can_be_sent_are_accepted_as_one_batch(writes: list[Write], stored: list[int]) -> None:
    engine = Engine(dict(zip(SUBJECTS, stored, strict=True)))
    subjects = {one.subject for write in writes for one in preconditions_of(write)}
    assert engine.store(resolve_conflict(writes, last_sequences(subjects, engine.last.items())).sendable)
