"""The groups of an ordered queue that a dispatcher knows: which can deliver now, and when to look at the others again. Pure.

The index holds groups, not messages. A group that may have a message to deliver is ready; one that is held, or whose next message
is not due, has a time at which it is looked at again. `place` decides which, after every change of a group.
"""

import heapq
from collections import deque
from typing import Any

from postroad.queues.group_sequences import GroupSequences
from postroad.queues.group_state import GroupState

KEPT_MAX = 64  # settled messages of a group that are stored before they are removed


class Group:
    """`state` is None until the record was read; `record_sequence` is then the record's sequence, 0 if there is none.

    `newest` is the sequence of the newest message if `is_newest_exact`, else an upper bound. `count` is the number of messages
    that were never delivered, as far as it is known; until `is_counted`, of all that are stored. `is_busy`: a task reads or
    writes the group. `blocked_until_ms`: the next message is not due before. `forget_at_ms`: when the record of an empty group is
    gone. `must_clean`: settled messages are removed soon, however few. `ahead`: messages that were read and not delivered yet,
    without gaps (`group_turns.py`); forgotten with the state.
    """

    __slots__ = (
        "ahead",
        "blocked_until_ms",
        "check_at_ms",
        "count",
        "forget_at_ms",
        "is_busy",
        "is_counted",
        "is_newest_exact",
        "is_ready",
        "must_clean",
        "newest",
        "operations",
        "record_sequence",
        "state",
        "token",
    )

    def __init__(self, token: str) -> None:
        self.token = token
        self.state: GroupState | None = None
        self.record_sequence = 0
        self.newest = 0
        self.is_newest_exact = False
        self.count = 0
        self.is_busy = False
        self.is_counted = False
        self.is_ready = False
        self.must_clean = False
        self.operations: list[Any] = []
        self.blocked_until_ms = 0
        self.check_at_ms = 0
        self.forget_at_ms = 0
        self.ahead: Any = None

    @property
    def is_empty(self) -> bool:
        """True if every message is settled."""
        return self.state is not None and not self.state.open and self.newest <= self.state.last


class GroupIndex:
    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.sequences = GroupSequences()
        self.new_count = 0  # messages that were never delivered, of all groups
        self.open_groups: dict[str, Group] = {}  # with delivered messages that are not settled
        self._ready: deque[Group] = deque()
        self._checks: list[tuple[int, str]] = []  # a heap
        self.unclean: dict[str, Group] = {}  # that may have settled messages to remove, or a record that is not needed

    def group(self, token: str) -> Group:
        """The group, which is added if it is not known."""
        found = self.groups.get(token)
        if found is None:
            found = self.groups[token] = Group(token)
        return found

    def forget(self, group: Group) -> None:
        self.set_count(group, 0)
        group.is_ready = False
        self.groups.pop(group.token, None)
        self.sequences.remove(group.token)
        self.open_groups.pop(group.token, None)
        self.unclean.pop(group.token, None)

    def clear(self) -> None:
        """Forget all groups but those that a task works on."""
        self.sequences.clear()
        for group in list(self.groups.values()):
            if not group.is_busy:
                self.forget(group)

    def set_count(self, group: Group, count: int) -> None:
        count = max(0, count)
        self.new_count += count - group.count
        group.count = count

    def set_state(self, group: Group, state: GroupState | None, record_sequence: int) -> None:
        group.state, group.record_sequence, group.blocked_until_ms, group.forget_at_ms = state, record_sequence, 0, 0
        if state is None:
            group.ahead = None
        else:
            self.sequences.passed(group.token, state.last)
        if state is not None and state.open:
            self.open_groups[group.token] = group
        else:
            self.open_groups.pop(group.token, None)
        if state is not None and (state.kept > KEPT_MAX or not state.open):
            self.unclean[group.token] = group

    def stored(self, token: str, sequence: int, previous: int) -> Group:
        """Note a new message of a group, which follows the one with the sequence `previous`."""
        group = self.group(token)
        self.sequences.noticed(token, sequence, previous)
        if sequence > group.newest:  # else it was counted by a scan
            group.newest, group.is_newest_exact = sequence, True
            self.set_count(group, group.count + 1)
        return group

    def place(self, group: Group, now_ms: int) -> None:
        """Make the group ready, or look at it again later."""
        if group.is_busy or group.is_ready:
            return
        at = self._check_at(group, now_ms)
        if at is None:
            group.is_ready = True
            self._ready.append(group)
        elif at:
            self._check(group, at)

    def put_back(self, group: Group) -> None:
        """Make a group ready before the others."""
        if not group.is_ready:
            group.is_ready = True
            self._ready.appendleft(group)

    def _check_at(self, group: Group, now_ms: int) -> int | None:
        """When to look at the group again: None for now, 0 for never."""
        state = group.state
        if state is None:
            return None
        if group.blocked_until_ms > now_ms:
            return group.blocked_until_ms
        held_until = state.held_until(now_ms)
        if held_until:
            return held_until + 1
        if state.open:
            first = state.open[0]
            return None if first.is_due(now_ms) else first.until_ms
        if group.newest > state.last:
            return None
        return group.forget_at_ms

    def _check(self, group: Group, at_ms: int) -> None:
        if group.check_at_ms != at_ms:
            group.check_at_ms = at_ms
            heapq.heappush(self._checks, (at_ms, group.token))

    def advance(self, now_ms: int) -> None:
        """Look at the groups again whose time has come."""
        while self._checks and self._checks[0][0] <= now_ms:
            at_ms, token = heapq.heappop(self._checks)
            group = self.groups.get(token)
            if group is None or group.check_at_ms != at_ms:
                continue
            group.check_at_ms = 0
            if group.is_empty and group.forget_at_ms and group.forget_at_ms <= now_ms and not group.is_busy:
                self.forget(group)
            else:
                self.place(group, now_ms)

    @property
    def next_check_ms(self) -> int | None:
        return self._checks[0][0] if self._checks else None

    @property
    def has_ready(self) -> bool:
        while self._ready and not self._is_current(self._ready[0]):
            self._ready.popleft()
        return bool(self._ready)

    def _is_current(self, group: Group) -> bool:
        return group.is_ready and self.groups.get(group.token) is group

    def take(self, count: int, per_group: int) -> list[Group]:
        """Ready groups with about `count` messages, in turn; they are busy then."""
        taken: list[Group] = []
        expected = 0
        while expected < count and self.has_ready:
            group = self._ready.popleft()
            group.is_ready, group.is_busy = False, True
            taken.append(group)
            open_count = len(group.state.open) if group.state is not None else 0
            expected += max(1, min(group.count + open_count, per_group))
        return taken
