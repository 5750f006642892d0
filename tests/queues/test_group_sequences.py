"""What a dispatcher keeps of the sequences of messages is complete, or it is not used."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postroad.queues import group_sequences
from postroad.queues.group_sequences import GroupSequences

FAR = 1000  # between two messages


def known(sequences: GroupSequences, last: int, count: int = 9, newest: int = 0) -> list[int] | None:
    found = sequences.next_of("g", last, count, newest)
    return None if found is None else found.sequences


def noticed(*numbers: int) -> GroupSequences:
    sequences = GroupSequences()
    for previous, number in zip((0, *numbers), numbers, strict=False):
        sequences.noticed("g", number * FAR, previous * FAR)
    return sequences


def test_the_next_messages_of_a_group_are_those_of_the_notices() -> None:
    sequences = noticed(1, 2, 3)
    assert known(sequences, 0, 2) == [1000, 2000]
    assert known(sequences, 1000) == [2000, 3000]
    assert sequences.kept == 2  # the first was delivered
    sequences.noticed("g", 3000, 2000)
    assert known(sequences, 2000) == [3000]
    assert known(sequences, 3000) is None


def test_many_messages_that_are_close_to_each_other_are_not_read_one_by_one() -> None:
    sequences = GroupSequences()
    for number in range(1, 20):
        sequences.noticed("g", number, number - 1)
    assert known(sequences, 0) is None
    assert known(sequences, 11, 1) is None  # a search finds eight of them
    assert known(sequences, 12, 1) == [13]


def test_messages_behind_a_lost_notice_are_searched_until_notices_follow_what_was_delivered() -> None:
    sequences = noticed(1, 2)
    sequences.noticed("g", 4000, 3000)  # that of 3,000 was lost
    assert known(sequences, 0) == [1000, 2000]
    assert known(sequences, 2000) is None
    sequences.noticed("g", 5000, 4000)
    assert known(sequences, 2000) is None and known(sequences, 3000) is None
    assert known(sequences, 4000) == [5000]


def test_all_are_known_unless_a_newer_message_is() -> None:
    sequences = noticed(1, 2)
    for count, newest, is_all in ((2, 2000, True), (1, 2000, False), (2, 2001, False)):
        found = sequences.next_of("g", 0, count, newest)
        assert found is not None and found.is_all is is_all


def test_the_messages_after_the_end_of_a_group_follow_it() -> None:
    sequences = noticed(1)
    sequences.ended("g", 1500)
    sequences.noticed("g", 3000, 1500)
    assert known(sequences, 1000) == [3000]


def test_removed_messages_are_no_gap() -> None:
    sequences = noticed(1, 2, 3)
    sequences.noticed("g", 4000, 1000)  # the others were removed
    assert known(sequences, 0) == [1000, 2000, 3000, 4000]


def test_what_was_not_as_expected_is_not_tried_again() -> None:
    sequences = noticed(1, 2)
    sequences.forget("g")
    assert known(sequences, 0) is None
    sequences.noticed("g", 3000, 2000)
    assert known(sequences, 1000) is None
    assert known(sequences, 2000) == [3000]


def test_a_sequence_that_was_skipped_before_means_another_stream() -> None:
    """An engine that lost its newest messages gives their sequences to others."""
    sequences = noticed(1, 5)
    sequences.noticed("g", 3000, 1000)
    assert known(sequences, 1000) is None


def test_a_walk_finds_a_backlog_and_notices_follow_it() -> None:
    sequences = noticed(3)  # of before
    number = sequences.begin_walk()
    assert known(sequences, 0) is None
    for sequence in (1000, 2000):
        sequences.walked("g", sequence)
    sequences.noticed("g", 3000, 2000)
    assert (known(sequences, 0), sequences.heard) == ([1000, 2000], 3000)
    found = sequences.next_of("g", 0, 5, 2000)
    assert found is not None and not found.is_all  # the walk may find more
    sequences.walked("g", 3000)
    assert sequences.walk == number
    sequences.end_walk(9000)
    found = sequences.next_of("g", 0, 5, 8000)
    assert found is not None and found.is_all
    sequences.noticed("g", 10_000, 3000)
    assert known(sequences, 0) == [1000, 2000, 3000, 10_000]


def test_no_more_than_the_limit_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_sequences, "KEPT_SEQUENCES_MAX", 2)
    sequences = noticed(1, 2, 3)
    assert (known(sequences, 0), sequences.kept) == ([1000, 2000], 2)
    assert known(sequences, 1000) == [2000]
    sequences.noticed("g", 4000, 3000)
    assert known(sequences, 2000) is None
    sequences.noticed("g", 5000, 4000)
    assert known(sequences, 4000) == [5000]


@dataclass
class Stream:
    """Messages of groups, of which notices may be lost, and a dispatcher that reads them."""

    sequences: GroupSequences = field(default_factory=GroupSequences)
    stored: dict[str, list[int]] = field(default_factory=lambda: {"a": [], "b": []})
    newest: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})  # as the index knows it
    delivered: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})
    end: int = 0
    walked: int = 0

    def publish(self, group: str, number: int) -> None:
        self.end += FAR
        previous = max(self.stored[group], default=0)
        self.stored[group].append(self.end)
        if number:  # else the notice is lost
            self.newest[group] = self.end
            self.sequences.noticed(group, self.end, previous)

    def deliver(self, group: str, number: int) -> None:
        found = self.sequences.next_of(group, self.delivered[group], number + 1, self.newest[group])
        waiting = [one for one in self.stored[group] if one > self.delivered[group]]
        if found is None:
            found_sequences = waiting[: number + 1]  # a search
        else:
            assert [one for one in waiting if one <= found.sequences[-1]] == [one for one in found.sequences if one in waiting]
            if found.is_all:
                assert not [one for one in waiting if found.sequences[-1] < one <= self.newest[group]]
            if set(found.sequences) - set(waiting):
                self.sequences.forget(group)
            found_sequences = [one for one in found.sequences if one in waiting]
        if found_sequences:
            self.delivered[group] = found_sequences[-1]
            self.sequences.passed(group, found_sequences[-1])

    def remove(self, group: str, number: int) -> None:
        if self.stored[group]:
            del self.stored[group][number % len(self.stored[group])]

    def finish(self, group: str, _number: int) -> None:
        """All messages are settled and replaced by an empty one."""
        if self.stored[group] and self.delivered[group] >= self.stored[group][-1]:
            self.end += FAR
            self.stored[group].clear()
            self.sequences.ended(group, self.end)

    def begin_walk(self, _group: str, _number: int) -> None:
        self.sequences.begin_walk()
        self.walked = 0

    def walk(self, _group: str, number: int) -> None:
        left = sorted((one, group) for group, stored in self.stored.items() for one in stored if one > self.walked)
        if self.sequences.walk:
            for one, group in left[: number + 1]:
                self.sequences.walked(group, one)
                self.walked = one
            if len(left) <= number + 1:
                self.sequences.end_walk(self.end)
                self.newest = {group: max(newest, self.end) for group, newest in self.newest.items()}

    def purge(self, _group: str, _number: int) -> None:
        for stored in self.stored.values():
            stored.clear()
        self.sequences.clear()

    def leave(self, group: str, _number: int) -> None:
        if not [one for one in self.stored[group] if one > self.delivered[group]]:
            self.sequences.remove(group)


STEPS = (*["publish"] * 3, *["deliver", "walk"] * 2, "remove", "finish", "begin_walk", "purge", "leave")


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.sampled_from("ab"), st.integers(0, 3)), min_size=20, max_size=60))
def test_no_message_is_left_out(steps: list[tuple[str, str, int]]) -> None:
    stream = Stream()
    for step, group, number in steps:
        getattr(stream, step)(group, number)
        assert stream.sequences.kept == sum(len(one.sequences) for one in stream.sequences._groups.values())
