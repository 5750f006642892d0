"""Group commit, part 1: which pending writes to a stream are sent together. Pure, no I/O.

With `sync_interval: always` a publish costs one fsync, whereas an atomic batch costs a fixed few milliseconds and then almost
nothing per message. So a few writes are sent singly and pipelined; from `batch_min_pending` on they are sent as one batch, and
writes that arrive during a batch form the next one. Decision 0003 has the measurements.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

import msgspec

_EXPECTED = re.compile(r"Nats-Expected-Last-Subject-Sequence: (\d+)\r\n")
_EXPECTED_SUBJECT = re.compile(r"Nats-Expected-Last-Subject-Sequence-Subject: (\S+)\r\n")
_HEADER_BYTES = 512  # upper bound for the id and the batch headers that are added to each message


class PendingMessage(msgspec.Struct, frozen=True):
    """A message to be stored. `headers` are encoded lines (`protocol.header_lines`); `id` is unique in its stream.

    `precondition_subject`: set if the precondition covers all subjects under this one. The server checks such a precondition
    against the state before the batch, not against earlier messages of the same batch, so a batch must not contain any of them.
    """

    subject: str
    payload: bytes
    id: str
    headers: str = ""
    is_conditional: bool = False
    precondition_subject: str = ""

    @property
    def size(self) -> int:
        header_bytes = len(self.headers) if self.headers.isascii() else len(self.headers.encode())
        return len(self.payload) + header_bytes + len(self.subject) + _HEADER_BYTES


class PublishAck(msgspec.Struct, frozen=True):
    """Position of a stored message. `is_duplicate`: the id was already stored, and the sequence is that of the first message.

    `is_known`: the engine knew the id. That may be due to an earlier attempt of this write that was not answered; then it is not
    certain whether this write stored the message, and `is_duplicate` is false.
    """

    sequence: int
    is_duplicate: bool = False
    is_known: bool = False


@dataclass(frozen=True, slots=True)
class CommitPolicy:
    batch_min_pending: int = 16
    batch_messages_max: int = 1000
    batch_bytes_max: int = 4 * 1024 * 1024
    single_bytes_in_flight_max: int = 256 * 1024  # no further single message is sent from here on
    attempt_seconds: float = 3.0
    deadline_seconds: float = 10.0


class PendingWrite(Protocol):
    """Messages of one caller that are stored together or not at all; nearly always a single one."""

    @property
    def messages(self) -> Sequence[PendingMessage]: ...
    @property
    def size(self) -> int: ...
    @property
    def is_cancelled(self) -> bool: ...


W = TypeVar("W", bound=PendingWrite)


class WriteQueue(Generic[W]):
    """Writes that wait to be sent, in order of arrival."""

    def __init__(self, policy: CommitPolicy) -> None:
        self._policy = policy
        self._writes: deque[W] = deque()
        self._atomic_writes = 0  # writes of several messages

    def __len__(self) -> int:
        return len(self._writes)

    def add(self, write: W) -> None:
        self._writes.append(write)
        self._atomic_writes += len(write.messages) > 1

    @property
    def is_batch_due(self) -> bool:
        """True if enough writes are pending, or one that needs a batch anyway, which the others then share."""
        return self._atomic_writes > 0 or len(self._writes) >= self._policy.batch_min_pending

    def next_single(self) -> W:
        """Remove the oldest write. Only valid while no batch is due."""
        return self._writes.popleft()

    def next_batch(self) -> tuple[list[W], list[W]]:
        """Remove the writes of the next batch; return them, and the cancelled writes that were removed on the way.

        A batch stays within the policy's limits unless a single write exceeds them. It ends before a message whose precondition
        depends on a message of the same batch.
        """
        batch: list[W] = []
        cancelled: list[W] = []
        parents: set[str] = set()  # of the batch's subjects
        messages = size = 0
        while self._writes:
            write = self._writes[0]
            if batch and any(
                message.precondition_subject and message.precondition_subject in parents for message in write.messages
            ):
                break
            if write.is_cancelled:
                cancelled.append(self._remove_first())
                continue
            messages += len(write.messages)
            size += write.size
            if batch and (messages > self._policy.batch_messages_max or size > self._policy.batch_bytes_max):
                break
            batch.append(self._remove_first())
            parents.update([message.subject.rpartition(".")[0] for message in write.messages])
        return batch, cancelled

    def _remove_first(self) -> W:
        write = self._writes.popleft()
        self._atomic_writes -= len(write.messages) > 1
        return write


class SinglesInFlight:
    """Single messages that were sent and are not answered yet.

    Their bytes are bounded too: messages to other streams wait behind them in the socket and on the disk.
    """

    __slots__ = ("_bytes", "_policy", "count")

    def __init__(self, policy: CommitPolicy) -> None:
        self._policy = policy
        self._bytes = 0
        self.count = 0

    @property
    def has_capacity(self) -> bool:
        return self.count < self._policy.batch_min_pending and self._bytes < self._policy.single_bytes_in_flight_max

    def add(self, size: int) -> None:
        self.count += 1
        self._bytes += size

    def remove(self, size: int) -> None:
        self.count -= 1
        self._bytes -= size


def split_conditional(writes: Sequence[W]) -> tuple[list[W], list[W]]:
    """Return the writes with a precondition and those without, each in order.

    A rejected batch does not name the message at fault; those with a precondition are the likely ones.
    """
    conditional = [write for write in writes if any(message.is_conditional for message in write.messages)]
    unconditional = [write for write in writes if not any(message.is_conditional for message in write.messages)]
    return conditional, unconditional


class Precondition(NamedTuple):
    """The last message of `subject` must have this sequence; 0 means that there is none. `<parent>.*` covers several subjects."""

    subject: str
    sequence: int


def preconditions_of(write: PendingWrite) -> list[Precondition]:
    """The preconditions in the headers of a write's messages."""
    found: list[Precondition] = []
    for message in write.messages:
        expected = _EXPECTED.search(message.headers) if message.is_conditional else None
        if expected is not None:
            other = _EXPECTED_SUBJECT.search(message.headers)
            found.append(Precondition(other[1] if other else message.subject, int(expected[1])))
    return found


def is_judgeable(subject: str) -> bool:
    """False for patterns other than `<parent>.*`, which `last_sequences` does not understand."""
    return not set(subject.removesuffix(".*")) & {"*", ">"}


def last_sequences(subjects: Iterable[str], stored: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The last sequence of each subject of preconditions, from the last sequences of the subjects stored under them."""
    last = dict.fromkeys(subjects, 0)
    for subject, sequence in stored:
        for name in (subject, _siblings(subject)):
            if last.get(name, sequence) < sequence:
                last[name] = sequence
    return last


def _siblings(subject: str) -> str:
    return subject.rpartition(".")[0] + ".*"


@dataclass(frozen=True, slots=True)
class Resolution(Generic[W]):
    """What becomes of the writes of a batch that was rejected because a precondition failed.

    `stale`: a precondition does not hold. `sendable`: all hold, also in one batch. `deferred`: a sendable write before it changes
    the subject of its precondition, so it can be judged only after that one.
    """

    stale: list[W]
    sendable: list[W]
    deferred: list[W]


def resolve_conflict(writes: Sequence[W], last: Mapping[str, int]) -> Resolution[W]:
    """Judge the writes of a rejected batch, in order, by the last sequences of their preconditions' subjects.

    The outcome is that of sending the writes one after the other: of two with the same precondition the first succeeds.
    """
    stale: list[W] = []
    sendable: list[W] = []
    deferred: list[W] = []
    changed: set[str] = set()
    for write in writes:
        preconditions = preconditions_of(write)
        if any(last[subject] != sequence for subject, sequence in preconditions):
            stale.append(write)
        elif any(subject in changed for subject, _ in preconditions):
            deferred.append(write)
        else:
            sendable.append(write)
            for message in write.messages:
                changed.add(message.subject)
                changed.add(_siblings(message.subject))
    return Resolution(stale, sendable, deferred)


def assign_sequences(writes: Sequence[W], last_sequence: int) -> list[Sequence[PublishAck]]:
    """Positions of a stored batch, per write. A batch is stored without gaps, so its last sequence determines all others."""
    next_sequence = last_sequence - sum(len(write.messages) for write in writes) + 1
    acks: list[Sequence[PublishAck]] = []
    for write in writes:
        acks.append(tuple([PublishAck(next_sequence + index) for index in range(len(write.messages))]))
        next_sequence += len(write.messages)
    return acks
