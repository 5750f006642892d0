"""What clients asked for and were told, and what must hold of that afterwards, whatever was killed meanwhile.

Pure: clients tell it what they did, the check at the end tells it what is there, and it says what was broken.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = tuple[str, int]  # who wrote it, and which of theirs it is


@dataclass(slots=True)
class QueueModel:
    """One queue. Every message's payload is a number of its own."""

    acknowledged: set[int] = field(default_factory=set)
    keyed: set[int] = field(default_factory=set)  # published with a key: must not be there under two ids
    in_doubt: set[int] = field(default_factory=set)  # sent, and never answered with a yes
    ids: dict[int, set[str]] = field(default_factory=dict)  # under which each was delivered
    acked: set[str] = field(default_factory=set)
    came_back: list[str] = field(default_factory=list)

    def sent(self, number: int, *, has_key: bool) -> None:
        self.in_doubt.add(number)
        if has_key:
            self.keyed.add(number)

    def stored(self, number: int) -> None:
        self.in_doubt.discard(number)
        self.acknowledged.add(number)

    def delivered(self, number: int, message_id: str, acked_before: set[str]) -> None:
        """`acked_before`: those whose ack had been answered when this delivery was asked for."""
        self.ids.setdefault(number, set()).add(message_id)
        if message_id in acked_before:
            self.came_back.append(message_id)

    def settled(self, message_id: str) -> None:
        self.acked.add(message_id)

    def violations(self) -> list[str]:
        """Once the queue is empty."""
        found = []
        if lost := self.acknowledged - self.ids.keys():
            found.append(f"queue: {len(lost)} acknowledged messages were never delivered: {_some(lost)}")
        if unknown := self.ids.keys() - self.acknowledged - self.in_doubt:
            found.append(f"queue: {len(unknown)} messages were delivered that nobody sent: {_some(unknown)}")
        if twice := [number for number in self.keyed if len(self.ids.get(number, ())) > 1]:
            found.append(f"queue: {len(twice)} messages with an idempotency key were stored twice: {_some(twice)}")
        if self.came_back:
            found.append(f"queue: {len(self.came_back)} messages came back after their ack was answered: {_some(self.came_back)}")
        return found


@dataclass(slots=True)
class StreamModel:
    """One stream. Numbered writers repeat an append until it is answered; plain ones send each once."""

    name: str
    numbered: dict[str, int] = field(default_factory=dict)  # how many of each writer's were acknowledged: 0, 1, 2 …
    plain: set[Message] = field(default_factory=set)
    in_doubt: set[Message] = field(default_factory=set)
    ends: dict[Message, str] = field(default_factory=dict)  # the offset behind it, as its answer said
    refusals: list[str] = field(default_factory=list)  # of appends that had to be taken
    stale: list[Message] = field(default_factory=list)  # acknowledged, and then not found by who read up to the end

    def sent(self, message: Message) -> None:
        self.in_doubt.add(message)

    def stored(self, message: Message, end: str | None, *, is_numbered: bool) -> None:
        self.in_doubt.discard(message)
        if is_numbered:
            self.numbered[message[0]] = message[1] + 1
        else:
            self.plain.add(message)
        if end is not None:
            self.ends[message] = end

    def violations(self, content: Sequence[Message]) -> list[str]:
        """`content`: all that is in the stream, in order."""
        found = [f"{self.name}: {refusal}" for refusal in self.refusals]
        if self.stale:
            found.append(f"{self.name}: {len(self.stale)} were acknowledged and then not read: {_some(self.stale)}")
        there = Counter(content)
        if twice := [message for message, count in there.items() if count > 1]:
            found.append(f"{self.name}: {len(twice)} appends are there twice: {_some(twice)}")
        for writer, count in self.numbered.items():
            numbers = [number for who, number in content if who == writer]
            # One more may be there whose answer its writer never heard.
            if numbers[:count] != list(range(count)) or numbers[count:] not in ([], [count]):
                missing = sorted(set(range(count)) - set(numbers))
                found.append(f"{self.name}: {writer} appended {count} in order; missing {missing[:10]}, there {numbers[-10:]}")
        if lost := self.plain - there.keys():
            found.append(f"{self.name}: {len(lost)} acknowledged appends are missing: {_some(lost)}")
        known = self.plain | self.in_doubt | {(writer, n) for writer, count in self.numbered.items() for n in range(count)}
        if unknown := there.keys() - known:
            found.append(f"{self.name}: {len(unknown)} appends that nobody made: {_some(unknown)}")
        return found + self._misplaced(content)

    def _misplaced(self, content: Sequence[Message]) -> list[str]:
        """Offsets grow with the place in the stream, so those that were answered must be in its order."""
        ends = [(message, self.ends[message]) for message in content if message in self.ends]
        for (before, end), (message, following) in itertools.pairwise(ends):
            if not end < following:
                return [f"{self.name}: {message} was said to end at {following}, but follows {before}, which ends at {end}"]
        return []


def reader_violations(who: str, seen: Sequence[Any], content: Sequence[Any]) -> list[str]:
    """A reader that resumed wherever it was cut off has seen each append once and in order."""
    if list(seen) == list(content):
        return []
    place = next((at for at, (one, other) in enumerate(zip(seen, content, strict=False)) if one != other), None)
    if place is None:
        return [f"{who} has seen {len(seen)} of {len(content)} appends, and then no more"]
    return [f"{who} saw {seen[place]} where {content[place]} is, at {place} of {len(content)}"]


def _some(things: Iterable[Any]) -> str:
    return ", ".join(str(thing) for thing in sorted(things)[:10])


@dataclass(slots=True)
class Answers:
    """What was answered to all calls together. A no must be one of the expected, and say clearly what it is."""

    expected: frozenset[int]
    counted: Counter[str] = field(default_factory=Counter)
    unclear: list[str] = field(default_factory=list)
    unanswered: Counter[str] = field(default_factory=Counter)  # connections that failed, by how

    def record_response(self, what: str, status: int, headers: dict[str, str], problem: dict[str, Any]) -> None:
        if status < 400:
            return
        code = problem.get("code", "?")
        self.counted[f"{status} {code}"] += 1
        is_clear = headers.get("content-type") == "application/problem+json" and problem.get("status") == status
        if status in (502, 503, 507) and "retry-after" not in headers:
            is_clear = False
        if status not in self.expected or not is_clear:
            self.unclear.append(f"{what} was answered {status} {code}: {problem.get('detail', '')} {headers}")

    def violations(self) -> list[str]:
        return [f"{len(self.unclear)} answers that nobody may get, such as: {self.unclear[0]}"] if self.unclear else []
