"""Which writes go together. Runs on nothing: no engine, no event loop."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from postroad.jetstream.batching import CommitPolicy, PendingMessage, PublishAck, WriteQueue, assign_sequences, split_conditional


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
