"""Which messages a batch reads, and in how many tasks."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from postroad.pipeline.batch_plan import plan_tasks, unread
from spark_jetstream.api import StreamInfo
from spark_jetstream.plan import SequenceRange


def stream(name: str, first: int, last: int, size: int = 1_000) -> StreamInfo:
    count = last - first + 1
    return StreamInfo(name, f"{name}-created", first, last, count, True, "limits", count * size)


def test_what_is_not_in_the_lake_is_read() -> None:
    infos = {"JOBS": stream("JOBS", 1, 10), "TELEMETRY": stream("TELEMETRY", 5, 8), "AUDIT": stream("AUDIT", 1, 0)}
    assert unread(infos, lambda *_: 0) == {"JOBS": SequenceRange(1, 10), "TELEMETRY": SequenceRange(5, 8)}
    done = {("JOBS", "JOBS-created"): 10, ("TELEMETRY", "TELEMETRY-created"): 6}
    assert unread(infos, lambda *key: done.get(key, 0)) == {"TELEMETRY": SequenceRange(7, 8)}


def test_messages_that_retention_removed_are_skipped() -> None:
    assert unread({"JOBS": stream("JOBS", 50, 60)}, lambda *_: 20) == {"JOBS": SequenceRange(50, 60)}


def test_a_stream_that_ends_before_the_position_is_read_again() -> None:
    assert unread({"JOBS": stream("JOBS", 1, 5)}, lambda *_: 20) == {"JOBS": SequenceRange(1, 5)}


def test_a_small_batch_is_one_task() -> None:
    infos = {"JOBS": stream("JOBS", 1, 20), "TELEMETRY": stream("TELEMETRY", 1, 7), "AUDIT": stream("AUDIT", 1, 1)}
    [task] = plan_tasks(unread(infos, lambda *_: 0), infos, 20_000, cores=2)
    assert [(one.stream, one.created, one.first, one.last) for one in task] == [
        ("JOBS", "JOBS-created", 1, 20),
        ("TELEMETRY", "TELEMETRY-created", 1, 7),
        ("AUDIT", "AUDIT-created", 1, 1),
    ]


@given(st.integers(1, 100_000), st.integers(1, 100_000), st.integers(1, 2_000_000), st.integers(1, 30_000), st.integers(1, 16))
def test_each_message_is_read_once_by_tasks_of_a_bounded_size(
    jobs: int, telemetry: int, size: int, messages_max: int, cores: int
) -> None:
    infos = {"JOBS": stream("JOBS", 1, jobs, size), "TELEMETRY": stream("TELEMETRY", 11, 10 + telemetry)}
    tasks = plan_tasks(unread(infos, lambda *_: 0), infos, messages_max, cores)
    for name, first, count in (("JOBS", 1, jobs), ("TELEMETRY", 11, telemetry)):
        ranges = [one for task in tasks for one in task if one.stream == name]
        assert (ranges[0].first, ranges[-1].last) == (first, first + min(count, messages_max) - 1)
        assert all(earlier.last + 1 == later.first for earlier, later in pairwise(ranges))
    for task in tasks:
        messages = sum(one.last - one.first + 1 for one in task)
        data = sum((one.last - one.first + 1) * (size if one.stream == "JOBS" else 1_000) for one in task)
        assert messages == 1 or data <= 8 * 1024 * 1024


def test_a_backlog_is_spread_over_all_cores() -> None:
    infos = {"JOBS": stream("JOBS", 1, 20_000, 1_000)}
    assert len(plan_tasks(unread(infos, lambda *_: 0), infos, 20_000, cores=8)) >= 8
