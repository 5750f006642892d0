"""The model finds what it is there to find: a check that cannot fail checks nothing."""

import itertools
from collections.abc import Callable

import pytest

from tests.chaos.deployment import CUTS, Clustered, Fault, plan
from tests.chaos.model import Answers, Message, QueueModel, StreamModel, reader_violations
from tests.chaos.partitions import Partitioned, Prober

A0, A1, A2, B0 = ("a", 0), ("a", 1), ("a", 2), ("b", 0)


def _queue() -> QueueModel:
    """Three messages: delivered and acked, delivered twice before its ack, and one whose answer never came."""
    queue = QueueModel()
    for number in (1, 2, 3):
        queue.sent(number, has_key=True)
    queue.stored(1)
    queue.stored(2)
    for number, times in ((1, 1), (2, 2)):
        for _ in range(times):
            queue.delivered(number, f"id-{number}", set(queue.acked))
        queue.settled(f"id-{number}")
    return queue


def test_a_queue_that_kept_its_promises() -> None:
    queue = _queue()
    assert queue.violations() == []
    queue.delivered(3, "id-3", set(queue.acked))
    assert queue.violations() == [], "what was in doubt may be there"


@pytest.mark.parametrize(
    ("break_it", "word"),
    [
        (lambda queue: queue.stored(4), "never delivered"),
        (lambda queue: queue.delivered(5, "id-5", set()), "nobody sent"),
        (lambda queue: queue.delivered(1, "id-other", set()), "stored twice"),
        (lambda queue: queue.delivered(1, "id-1", set(queue.acked)), "came back"),
    ],
)
def test_what_breaks_a_queues_promises_is_told(break_it: Callable[[QueueModel], None], word: str) -> None:
    queue = _queue()
    break_it(queue)
    assert [word in violation for violation in queue.violations()] == [True]


def _stream() -> StreamModel:
    """Two appends of a numbered writer were acknowledged and a third was sent; one of a plain writer was acknowledged."""
    stream = StreamModel("s")
    for message, end in ((A0, "1"), (A1, "2")):
        stream.sent(message)
        stream.stored(message, end, is_numbered=True)
    stream.sent(A2)
    stream.sent(B0)
    stream.stored(B0, "3", is_numbered=False)
    return stream


@pytest.mark.parametrize("content", [[A0, A1, B0], [A0, A1, B0, A2]])
def test_a_stream_that_kept_its_promises(content: list[Message]) -> None:
    assert _stream().violations(content) == []


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ([A0, B0], "missing [1]"),
        ([A0, A1], "missing: ('b', 0)"),
        ([A1, A0, B0], "appended 2 in order"),
        ([A0, A1, A1, B0], "there twice"),
        ([A0, A1, B0, ("b", 1)], "nobody made"),
        ([A0, B0, A1], "was said to end at"),
    ],
)
def test_what_breaks_a_streams_promises_is_told(content: list[Message], word: str) -> None:
    assert any(word in violation for violation in _stream().violations(content))


def test_who_does_not_read_what_was_acknowledged_is_told() -> None:
    stream = _stream()
    stream.stale.append(A1)
    assert ["not read" in violation for violation in stream.violations([A0, A1, B0])] == [True]


@pytest.mark.parametrize("seen", [[1, 2], [1, 2, 2, 3], [1, 3], [2, 1, 3], [1, 2, 3, 3]])
def test_a_reader_that_saw_something_else_is_told(seen: list[int]) -> None:
    assert reader_violations("reader", seen, [1, 2, 3])
    assert not reader_violations("reader", [1, 2, 3], [1, 2, 3])


CLEAR = {"content-type": "application/problem+json", "retry-after": "1"}


@pytest.mark.parametrize(
    ("status", "headers", "problem", "is_clear"),
    [
        (503, CLEAR, {"code": "engine-unavailable", "status": 503}, True),
        (200, {}, {}, True),
        (503, {"content-type": "application/problem+json"}, {"code": "engine-unavailable", "status": 503}, False),
        (503, {"retry-after": "1"}, {}, False),
        (502, CLEAR, {"code": "engine-refused", "status": 502}, False),
    ],
)
def test_an_answer_is_expected_and_clear(
    status: int, headers: dict[str, str], problem: dict[str, object], is_clear: bool
) -> None:
    answers = Answers(frozenset({503}))
    answers.record_response("POST /x", status, headers, problem)
    assert (answers.violations() == []) is is_clear


def test_a_plan_comes_from_its_seed_alone_and_leaves_nobody_out() -> None:
    def faults(seed: int) -> list[Fault]:
        return list(itertools.islice(plan(seed, Clustered.victims), 100))

    assert faults(7) == faults(7) != faults(8)
    assert {victim for fault in faults(7) for victim in fault.victims} == set(Clustered.victims)
    assert {fault.what for fault in faults(7)} == {"kill", "pause", "restart"}


def test_a_plan_with_partitions_has_all_kinds_of_them_and_one_server_each() -> None:
    faults = list(itertools.islice(plan(7, Partitioned.victims, Partitioned.whats), 200))
    cuts = [fault for fault in faults if fault.what in CUTS]
    assert {fault.what for fault in cuts} == set(CUTS)
    assert {fault.victims for fault in cuts} == {("n1",), ("n2",), ("n3",)}
    assert {fault.what for fault in faults} == {"kill", "pause", "restart", *CUTS}


def test_the_time_without_a_successful_probe_is_measured_to_both_ends() -> None:
    prober = Prober(None, {}, [1.0, 2.0, 7.0, 8.0])  # type: ignore[arg-type]
    assert prober.longest_gap(0.5, 8.5) == 5.0
    assert prober.longest_gap(3.0, 12.0) == 4.0
    assert prober.longest_gap(9.0, 20.0) == 11.0
