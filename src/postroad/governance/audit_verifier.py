"""Tamper evidence of the audit log: appends checkpoints, and compares the log with them.

A checkpoint is an entry on `audit._checkpoint`, so it is stored, retained and exported like the others. The newest one is also in
the bucket `postroad_audit`, signed with a key of the platform secret, which the engine does not have.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec
import structlog

from postroad.api.governance import AuditCheckpoint, AuditEntry, AuditFinding, AuditVerification
from postroad.crypto.signing import SignatureInvalid, Signer
from postroad.governance import metrics
from postroad.governance.audit import AUDIT_STREAM, CHECKPOINT_SUBJECT, Audit, audit_stream
from postroad.governance.rules import Checkpoint, LogState, SegmentHash, linked, next_checkpoint, state_findings
from postroad.jetstream import stream_reader
from postroad.jetstream.bucket import Bucket
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.stream_reader import Entry
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import Conflict, EngineUnavailable

AUDIT_BUCKET = "postroad_audit"
_HEAD = "head"
_OWNER = b"audit"
_PAGE = 500
_CATCH_UP_ATTEMPTS, _CATCH_UP_SECONDS = 20, 0.25

log = structlog.get_logger("postroad.audit")

_decode_checkpoint = msgspec.json.Decoder(Checkpoint).decode
_decode_entry = msgspec.json.Decoder(AuditEntry).decode


class AuditVerifier:
    """`report` is called for each new finding, by the process that appends checkpoints."""

    def __init__(
        self,
        connection: Connection,
        audit: Audit,
        bucket: Bucket,
        signer: Signer,
        clock: Clock,
        keep_days: int,
        report: Callable[[AuditFinding], None],
    ) -> None:
        self._connection, self._audit, self._bucket, self._signer = connection, audit, bucket, signer
        self._clock, self._keep_days, self._report = clock, keep_days, report
        self._is_compared = False

    async def extend(self) -> None:
        """Check the log and append a checkpoint if it has new entries. For one process at a time; the first call compares all
        entries. Raises EngineUnavailable."""
        head, revision, found = await self._head()
        state = await self._state(head.last if head else 0)
        if head is not None:
            found += state_findings(head, state, self._clock())
            if not self._is_compared:
                found += (await self._compare(head, state))[0]
            found = [one for one in found if not _is_known(one, head)]
        for finding in found:
            log.error("audit_log_damaged", kind=finding.kind, detail=finding.detail)
            metrics.audit_damaged.labels(finding.kind).inc()
            self._report(finding)
        first = head.last + 1 if head is not None and not found else state.first
        segment, is_empty = await self._segment(first, state.last)
        if head is None or found or not is_empty:
            checkpoint = next_checkpoint(head, state, first, segment, self._clock(), found)
            await self._audit.record_checkpoint(checkpoint.number, msgspec.to_builtins(checkpoint))
            await self._store_head(checkpoint, revision)
        elif not self._is_compared:
            await self._store_head(head, revision)  # signed with the newest platform secret
        self._is_compared = True

    async def _store_head(self, checkpoint: Checkpoint, revision: int) -> None:
        """Raises EngineUnavailable if another process has stored one."""
        signed = self._signer.sign(_OWNER, msgspec.json.encode(checkpoint)).encode()
        try:
            await (self._bucket.update(_HEAD, signed, revision) if revision else self._bucket.create(_HEAD, signed))
        except Conflict as exc:
            raise EngineUnavailable("another process appended a checkpoint of the audit log") from exc
        log.info("audit_checkpoint", number=checkpoint.number, sequence=checkpoint.last, hash=checkpoint.hash)

    async def verify(self) -> AuditVerification:
        """Compare all entries with the checkpoints. Raises EngineUnavailable."""
        head, _, found = await self._head()
        state = await self._state(head.last if head else 0)
        verified = 0
        if head is not None:
            found += state_findings(head, state, self._clock())
            differing, verified = await self._compare(head, state)
            found += differing
            found = [*head.findings, *(one for one in found if not _is_known(one, head))]
        shown = None
        if head is not None:
            shown = AuditCheckpoint(number=head.number, at=rfc3339(head.at_ms), sequence=head.last, hash=head.hash)
        total = state.last - state.first + 1
        return AuditVerification(
            intact=not found, verified=verified, unverified=max(0, total - verified), checkpoint=shown, findings=found
        )

    async def _head(self) -> tuple[Checkpoint | None, int, list[AuditFinding]]:
        """The newest checkpoint and its revision in the bucket; the finding if it is missing or not signed."""
        stored = await self._bucket.get(_HEAD)
        detail = None
        if stored is not None and stored.value is not None:
            try:
                return _decode_checkpoint(self._signer.verify(_OWNER, stored.value.decode())), stored.revision, []
            except (SignatureInvalid, msgspec.DecodeError, UnicodeDecodeError):
                detail = "the newest checkpoint is not signed with a platform secret of this installation"
        elif await stream_reader.last(self._connection, AUDIT_STREAM, CHECKPOINT_SUBJECT) is not None:
            detail = f"the newest checkpoint is missing in the bucket {AUDIT_BUCKET}"
        found = [AuditFinding(kind="altered", at=rfc3339(self._clock()), detail=detail)] if detail else []
        return None, stored.revision if stored else 0, found

    async def _state(self, known_last: int) -> LogState:
        """The state of the log. A server that has just become the leader of the stream may need a moment to apply its last
        entries: it has the time to show the sequence `known_last`."""
        info = await stream_info(self._connection, AUDIT_STREAM)
        for _ in range(_CATCH_UP_ATTEMPTS if self._connection.settings.has_replicas else 0):
            if info is None or info.state.last_seq >= known_last:
                break
            await asyncio.sleep(_CATCH_UP_SECONDS)
            info = await stream_info(self._connection, AUDIT_STREAM)
        if info is None:
            return LogState("", 1, 0, {}, {}, self._keep_days)
        expected, first = audit_stream(1, self._keep_days).options, max(1, info.state.first_seq)
        return LogState(info.created, first, info.state.last_seq, info.config, expected, self._keep_days)

    async def _segment(self, first: int, last: int) -> tuple[SegmentHash, bool]:
        """The hash of the entries from `first` to `last`, and whether they are checkpoints only."""
        segment, is_empty = SegmentHash(), True
        async for entry in self._entries(first, last):
            segment.add(entry.sequence, entry.subject, entry.payload)
            is_empty = is_empty and entry.subject == CHECKPOINT_SUBJECT
        return segment, is_empty

    async def _compare(self, head: Checkpoint, state: LogState) -> tuple[list[AuditFinding], int]:
        """Compare the entries with the checkpoints of the head's chain; return findings and the number of entries compared."""
        now = self._clock()
        chain, found = linked(head, await self._checkpoints(), state.first, now)
        verified = 0
        for one in chain:
            if one.first < state.first or state.created != one.stream_created:
                continue
            segment, _ = await self._segment(one.first, one.last)
            if (segment.entries, segment.hex()) == (one.entries, one.segment):
                verified += segment.entries
                continue
            detail = f"the entries from {one.first} to {one.last} differ from checkpoint {one.number}, which has {one.entries}"
            found.append(AuditFinding(kind="altered", at=rfc3339(now), detail=detail))
        return found, verified

    async def _checkpoints(self) -> list[Checkpoint]:
        """The stored checkpoints; entries that are none are left out, so that they do not hide the damage."""
        newest = await stream_reader.last(self._connection, AUDIT_STREAM, CHECKPOINT_SUBJECT)
        found: list[Checkpoint] = []
        async for entry in self._entries(1, newest.sequence if newest else 0, CHECKPOINT_SUBJECT):
            with contextlib.suppress(msgspec.ValidationError, msgspec.DecodeError):
                found.append(msgspec.convert(_decode_entry(entry.payload).after, Checkpoint))
        return found

    async def _entries(self, first: int, last: int, subject: str = "audit.>") -> AsyncIterator[Entry]:
        position = first
        while position <= last:
            page = await stream_reader.read_to(self._connection, AUDIT_STREAM, subject, position, last, _PAGE)
            for entry in page.entries:
                if entry.sequence > last:
                    return
                yield entry
            if page.is_end:
                return
            position = page.next_sequence


def _is_known(finding: AuditFinding, head: Checkpoint) -> bool:
    return any((one.kind, one.detail) == (finding.kind, finding.detail) for one in head.findings)
