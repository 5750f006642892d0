"""Sequences of the next messages of each group, so that the engine need not search for them. Pure.

The engine finds the next message of a subject by walking from the last one, message by message: a long way where the messages of
a group are far apart. A message whose sequence is known costs the same anywhere. The notice of a new message names the message of
its group before it, so a lost notice shows. Messages from before the notices are found by one walk through the stream.

What is kept about a group is complete or it is not used: a message that is missing from it would never be delivered. A sequence
whose message is gone costs a search, like one that is not kept.
"""

from array import array
from bisect import bisect_left
from typing import NamedTuple

KEPT_SEQUENCES_MAX = 1_000_000  # of all groups, 8 bytes each
_FAR = 512  # messages between two of a group: a walk of this length costs as much as a read
_SEARCH_MIN = 8  # messages of a group that a search must find to cost less than as many reads


class NextMessages(NamedTuple):
    """Sequences of the first messages of a group after one. `is_all`: it has no others."""

    sequences: list[int]
    is_all: bool


class _Kept:
    """The messages of a group after the sequence `after`, up to `last`, are those in `sequences`, less the ones that are gone."""

    __slots__ = ("after", "last", "sequences")

    def __init__(self, after: int) -> None:
        self.after = self.last = after
        self.sequences = array("Q")


class GroupSequences:
    def __init__(self) -> None:
        self.kept = 0  # sequences, of all groups
        self.heard = 0  # the newest sequence of which a notice arrived during the walk
        self.walk = 0  # number of the walk under way, 0 if there is none
        self._walks = 0
        self._walked_to = 0  # all messages up to it were seen by a walk
        self._groups: dict[str, _Kept] = {}

    def clear(self) -> None:
        """Forget all, also the walk: notices of messages may have been lost, or the messages are gone."""
        self._groups.clear()
        self.kept = self.heard = self.walk = self._walked_to = 0

    # What is stored

    def begin_walk(self) -> int:
        """A walk from the beginning of the stream follows; it sees the messages of notices, too. Returns its number."""
        self.clear()
        self._walks += 1
        self.walk = self._walks
        return self.walk

    def walked(self, token: str, sequence: int) -> None:
        """A message that the walk has seen."""
        group = self._groups.get(token)
        if group is None:
            group = self._groups[token] = _Kept(0)
        if sequence > group.last:
            self._append(group, sequence)

    def end_walk(self, position: int) -> None:
        """The walk has seen all messages up to a position; later ones are known from notices."""
        self.walk, self._walked_to = 0, position

    def noticed(self, token: str, sequence: int, previous: int) -> None:
        """A new message. `previous`: the newest one of the group that was stored then, 0 if there was none."""
        if self.walk:
            self.heard = max(self.heard, sequence)
            return
        group = self._groups.get(token)
        if group is None:
            group = _Kept(previous)
        elif sequence <= group.last:
            if group.sequences and sequence > group.sequences[0] and not _contains(group.sequences, sequence):
                self.forget(token)  # not the stream that it was
            return
        elif previous > group.last:  # a notice is missing
            if group.sequences:
                return  # what comes before it is still complete
            group = _Kept(previous)
        if self.kept < KEPT_SEQUENCES_MAX:
            self._groups[token] = group
            self._append(group, sequence)

    def ended(self, token: str, sequence: int) -> None:
        """An empty message has replaced all messages of the group."""
        group = self._groups.get(token)
        if group is not None and sequence > group.last:
            self._drop(group)
            group.after, group.last = 0, sequence

    # What is needed

    def passed(self, token: str, last: int) -> None:
        """No message of the group up to the sequence `last` will be read again as a new one."""
        group = self._groups.get(token)
        if group is None or not group.sequences or group.sequences[0] > last:
            return
        count = bisect_left(group.sequences, last + 1)
        del group.sequences[:count]
        self.kept -= count

    def next_of(self, token: str, last: int, count: int, newest: int) -> NextMessages | None:
        """The next messages after `last`, if they are known and so few or far apart that each is better read for itself.

        `newest`: no message of the group is known to be newer.
        """
        group = self._groups.get(token)
        if group is None or group.after > last:
            return None
        self.passed(token, last)
        sequences = group.sequences
        seen = min(len(sequences), max(count + 1, _SEARCH_MIN))
        if not seen or (seen >= _SEARCH_MIN and sequences[seen - 1] - sequences[0] < (seen - 1) * _FAR):
            return None
        is_all = len(sequences) <= count and not self.walk and newest <= max(group.last, self._walked_to)
        return NextMessages(sequences[:count].tolist(), is_all)

    def forget(self, token: str) -> None:
        """Keep nothing of the group any more, because its messages are gone or not those that were expected."""
        group = self._groups.get(token)
        if group is not None:
            self._drop(group)
            group.after = group.last

    def remove(self, token: str) -> None:
        """The group is empty and not known any more."""
        group = self._groups.pop(token, None)
        if group is not None:
            self._drop(group)

    def _append(self, group: _Kept, sequence: int) -> None:
        group.sequences.append(sequence)
        group.last = sequence
        self.kept += 1

    def _drop(self, group: _Kept) -> None:
        self.kept -= len(group.sequences)
        del group.sequences[:]


def _contains(sequences: "array[int]", sequence: int) -> bool:
    at = bisect_left(sequences, sequence)
    return at < len(sequences) and sequences[at] == sequence
