"""Checkpoints of the audit log, and the damage that they reveal. Pure: no I/O, no clock.

Writers of several workers append to the log concurrently, so no entry can carry the hash of the one before it without a
compare-and-set per write. Instead one process appends a checkpoint from time to time: the hash of the segment since the previous
checkpoint, chained to that one. The newest is also stored elsewhere, signed, so that the end of the log cannot be cut off.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from postroad.api.governance import AuditFinding
from postroad.kernel.clock import rfc3339

DAY_MS = 86_400_000
FINDING_DAYS = 30  # a finding is reported for so long; the entry about it stays in the log
_MARKS_MAX = 400
_TRIMMING_OPTIONS = ("max_msgs", "max_bytes", "max_msgs_per_subject", "max_age")


class Checkpoint(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The state of the log up to the sequence `last`.

    `segment` is the hash of the entries from `first` to `last`, `previous` the hash of the previous checkpoint; empty if the
    chain begins here. `stream_first` is the log's first sequence at this time. `marks` are pairs of a sequence and a time, about
    a day apart: later entries than the sequence are newer than the time. `findings` are those of the last days.
    """

    v: int = 1
    number: int
    at_ms: int
    first: int
    last: int
    entries: int
    segment: str
    previous: str = ""
    stream_created: str
    stream_first: int
    marks: tuple[tuple[int, int], ...] = ()
    findings: tuple[AuditFinding, ...] = ()

    @property
    def hash(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()


@dataclass(frozen=True, slots=True)
class LogState:
    """The stream of the log: its state, its configuration, and the options that it should have. `keep_days` is the retention; 0
    keeps all entries."""

    created: str
    first: int
    last: int
    config: Mapping[str, Any]
    expected: Mapping[str, Any]
    keep_days: int


class SegmentHash:
    """The hash of consecutive entries, each with its sequence and subject."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self.entries = 0

    def add(self, sequence: int, subject: str, payload: bytes) -> None:
        self.entries += 1
        for part in (sequence.to_bytes(8, "big"), subject.encode(), payload):
            self._hash.update(len(part).to_bytes(4, "big") + part)

    def hex(self) -> str:
        return self._hash.hexdigest()


def state_findings(head: Checkpoint, log: LogState, now_ms: int) -> list[AuditFinding]:
    """Damage that shows in the state of the log, without reading it."""
    at = rfc3339(now_ms)
    found = [
        AuditFinding(kind="reconfigured", at=at, detail=f"the stream has {option}={value}, which removes entries")
        for option, value in _trimming(log)
    ]
    if log.created != head.stream_created:
        detail = f"the stream was created at {log.created or 'no time'}, not at {head.stream_created}: it was deleted"
        return [*found, AuditFinding(kind="recreated", at=at, detail=detail)]
    if log.last < head.last:
        detail = f"the log ends at {log.last}; it had entries up to {head.last} at {rfc3339(head.at_ms)}"
        found.append(AuditFinding(kind="truncated", at=at, detail=detail))
    kept_from = _kept_from(head, log, now_ms)
    if log.first > kept_from:
        detail = f"the log begins at {log.first}; the retention keeps entries from {kept_from}"
        found.append(AuditFinding(kind="removed", at=at, detail=detail))
    return found


def _trimming(log: LogState) -> list[tuple[str, int]]:
    """Options of the stream that remove entries and are not as expected."""
    found = [(option, int(log.config.get(option) or 0)) for option in _TRIMMING_OPTIONS]
    return [(option, value) for option, value in found if value > 0 and value != log.expected.get(option)]


def _kept_from(head: Checkpoint, log: LogState, now_ms: int) -> int:
    """The latest sequence that the log may begin with."""
    if not log.keep_days:
        return head.stream_first
    expired_ms = now_ms - log.keep_days * DAY_MS
    kept = [sequence for sequence, at_ms in (*head.marks, (head.last, head.at_ms)) if at_ms > expired_ms]
    return min(kept, default=log.last) + 1


def linked(
    head: Checkpoint, stored: Iterable[Checkpoint], log_first: int, now_ms: int
) -> tuple[list[Checkpoint], list[AuditFinding]]:
    """The stored checkpoints that the head is chained to, oldest first, and the finding if one is missing.

    A checkpoint is stored behind the segment that it covers, so it may be missing only if the log begins later.
    """
    by_hash = {one.hash: one for one in stored}
    wanted, chain = head.hash, list[Checkpoint]()
    while wanted:
        found = by_hash.get(wanted)
        if found is None:
            stored_from = chain[-1].first if chain else head.last + 1
            if log_first > stored_from:
                break
            detail = f"the checkpoint {wanted[:16]} is missing, which is behind the sequence {stored_from - 1}"
            return chain[::-1], [AuditFinding(kind="altered", at=rfc3339(now_ms), detail=detail)]
        chain.append(found)
        wanted = found.previous
    return chain[::-1], []


def next_checkpoint(
    head: Checkpoint | None, log: LogState, first: int, segment: SegmentHash, now_ms: int, found: Sequence[AuditFinding]
) -> Checkpoint:
    """The checkpoint of a segment that begins at `first`. Damage begins a new chain."""
    recent = rfc3339(now_ms - FINDING_DAYS * DAY_MS)
    kept = [one for one in (head.findings if head else ()) if one.at >= recent]
    is_continued = head is not None and not found
    marks = head.marks if head is not None and is_continued else ()
    if not marks or now_ms - marks[-1][1] >= DAY_MS:
        marks = (*marks, (log.last, now_ms))[-_MARKS_MAX:]
    return Checkpoint(
        number=head.number + 1 if head else 1,
        at_ms=now_ms,
        first=first,
        last=log.last,
        entries=segment.entries,
        segment=segment.hex(),
        previous=head.hash if head is not None and is_continued else "",
        stream_created=log.created,
        stream_first=log.first,
        marks=marks,
        findings=(*kept, *found),
    )
