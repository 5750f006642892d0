"""The audit log: every change of the control plane with its actor. Entries can be appended and read, not changed or deleted.

The engine's administrator can remove entries all the same, by a change of the stream; `audit_verifier.py` detects it.

The entry is stored before the change is made, so every change has one. A change that then fails gets a second entry with the
outcome `failed` and the id of the first.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from postroad.api.governance import AuditEntry
from postroad.governance.counted_entries import CountedEntries
from postroad.governance.platform_reads import PlatformReads
from postroad.governance.refused_attempts import RefusedAttempts
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, stream_info
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.event import PLATFORM
from postroad.kernel.ids import new_id

AUDIT_STREAM = "AUDIT"
CHECKPOINT_SUBJECT = "audit._checkpoint"
_PAGE = 500
_WINDOW_ENTRIES_MAX = 2_000  # a window with more entries is read in halves
_WINDOW_MAX = 4_194_304
_SCANNED_MAX = 20_000
# Changes that release storage or end an access, and the sign-in that precedes them; those of keys are among them because an
# update can disable a key.
_RELEASES = frozenset(
    {"sign_in", "sign_out", "delete", "purge", "revoke", "rotate", "cancel", "pause", "resume", "remove_stream"}
)
_SECRET_FIELDS = frozenset({"secret", "key", "code", "token", "password", "locked", "sha256", "hashes"})


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Conditions that an entry must meet. Times are RFC 3339 in UTC; `action` may end in `*`; the others must be equal."""

    since: str | None = None
    until: str | None = None
    action: str | None = None
    actor: str | None = None
    target: str | None = None
    request_id: str | None = None

    def matches(self, entry: AuditEntry) -> bool:
        return (
            (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at < self.until)
            and (self.action is None or _is_action(self.action, entry.action))
            and (self.actor is None or entry.actor_key_id == self.actor)
            and (self.target is None or entry.target == self.target)
            and (self.request_id is None or entry.request_id == self.request_id)
        )


_TOKENS_INTERVAL_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class FoundEntries:
    """A page of entries, the number of entries read for it, and the sequence before which the search continues."""

    entries: list[AuditEntry]
    scanned: int
    before: int | None


def audit_stream(replicas: int, keep_days: int = 0) -> StreamSpec:
    """The stream of the log. It refuses deletions. The engine drops entries older than `keep_days`; 0 keeps all."""
    options = {
        "allow_atomic": True,
        "num_replicas": replicas,
        "deny_delete": True,
        "deny_purge": True,
        "duplicate_window": 60_000_000_000,
        "max_age": keep_days * 86_400 * 1_000_000_000,
    }
    return StreamSpec(AUDIT_STREAM, ("audit.>",), options)


class Audit:
    def __init__(self, connection: Connection, committers: Committers, clock: Clock) -> None:
        self._connection, self._clock = connection, clock
        self._committer, self._storage = committers.of(AUDIT_STREAM), committers.storage
        self.refused_attempts = RefusedAttempts(self._record_refused)
        self.platform_reads = PlatformReads(self._record_platform_use)
        self.issued_tokens = CountedEntries(
            self._record_tokens, interval_seconds=_TOKENS_INTERVAL_SECONDS, others="other resources"
        )

    async def record(
        self,
        context: RequestContext,
        action: str,
        target: str,
        *,
        tenant: str | None = None,
        before: object = None,
        after: object = None,
        outcome: str = "ok",
        of: str | None = None,
    ) -> str:
        """Append an entry; return its id once it is durable. Raises EngineFull (`StorageBudgets.check_change`)."""
        caller = context.caller
        self._storage.check_change(is_platform=caller.is_platform, is_release=_is_release(action))
        entry = AuditEntry(
            v=1,
            id=new_id(),
            at=rfc3339(self._clock()),
            tenant=tenant or caller.tenant,
            action=action,
            target=target,
            outcome=outcome,
            of=of,
            actor_key_id=caller.key_id,
            actor_is_platform=caller.is_platform,
            actor_subject=caller.subject,
            request_id=context.request_id,
            address=context.address,
            before=_masked(before),
            after=_masked(after),
        )
        await self._committer.append(PendingMessage(f"audit.{entry.tenant}", msgspec.json.encode(entry), entry.id))
        return entry.id

    async def _record_refused(self, context: RequestContext, operation: str, attempts: int) -> None:
        await self.record(context, "access.refused", operation, outcome="refused", after={"attempts": attempts})

    async def _record_platform_use(self, context: RequestContext, operation: str) -> None:
        await self.record(context, "platform.use", operation)

    async def _record_tokens(self, context: RequestContext, resource: str, count: int) -> None:
        await self.record(context, "token.create", resource, after={"issued": count})

    async def record_platform_use(self, context: RequestContext, method: str, operation: str) -> None:
        """Record that a platform key acts for a tenant: each change, and reads once per interval."""
        if method in ("GET", "HEAD"):
            await self.platform_reads.record(context, operation)
        else:
            await self._record_platform_use(context, operation)

    async def record_checkpoint(self, number: int, checkpoint: dict[str, Any]) -> None:
        entry = AuditEntry(
            v=1,
            id=new_id(),
            at=rfc3339(self._clock()),
            tenant=PLATFORM,
            action="audit.checkpoint",
            target=str(number),
            actor_key_id="",
            request_id="",
            after=checkpoint,
        )
        await self._committer.append(PendingMessage(CHECKPOINT_SUBJECT, msgspec.json.encode(entry), entry.id))

    @asynccontextmanager
    async def change(
        self,
        context: RequestContext,
        action: str,
        target: str,
        *,
        tenant: str | None = None,
        before: object = None,
        after: object = None,
    ) -> AsyncIterator[None]:
        """Record a change before the block makes it; if the block fails, record the failure, too."""
        first = await self.record(context, action, target, tenant=tenant, before=before, after=after)
        try:
            yield
        except Exception:
            await self.record(context, action, target, tenant=tenant, outcome="failed", of=first)
            raise

    async def page(self, tenant: str | None, wanted: AuditFilter, *, limit: int, before: int | None) -> FoundEntries:
        """Newest first, until `limit` entries are found, the beginning is reached, or the scan limit is reached.

        The log is read backwards in windows of sequences. Windows grow where a tenant has few entries, so the cost depends on
        the tenant's entries and not on those of other tenants.
        """
        info = await stream_info(self._connection, AUDIT_STREAM)
        top = info.state.last_seq if info else 0
        if before is not None:
            top = min(top, before - 1)
        first = max(1, info.state.first_seq) if info else 1
        entries: list[AuditEntry] = []
        scanned, width = 0, _PAGE
        while top >= first and scanned < _SCANNED_MAX:
            bottom = max(first, top - width + 1)
            found = await self._window(tenant, bottom, top)
            if found is None:
                width //= 2
                continue
            for sequence, entry in reversed(found):
                scanned += 1
                if wanted.since is not None and entry.at < wanted.since:
                    return FoundEntries(entries, scanned, None)
                if wanted.matches(entry):
                    entries.append(entry)
                    if len(entries) == limit:
                        return FoundEntries(entries, scanned, sequence if sequence > first else None)
            top = bottom - 1
            if len(found) < _PAGE // 2:
                width = min(width * 4, _WINDOW_MAX)
        return FoundEntries(entries, scanned, top + 1 if top >= first else None)

    async def _window(self, tenant: str | None, bottom: int, top: int) -> list[tuple[int, AuditEntry]] | None:
        """The entries from `bottom` to `top`, None if they are too many for one window."""
        subject = f"audit.{tenant}" if tenant else "audit.>"
        found: list[tuple[int, AuditEntry]] = []
        position = bottom
        while position <= top:
            page = await stream_reader.read(self._connection, AUDIT_STREAM, subject, position, _PAGE)
            for stored in page.entries:
                if stored.sequence > top:
                    return found
                if stored.subject != CHECKPOINT_SUBJECT:
                    found.append((stored.sequence, _decode(stored.payload)))
            if len(found) > _WINDOW_ENTRIES_MAX and top - bottom >= _PAGE:
                return None
            if page.is_end:
                break
            position = page.next_sequence
        return found


_decode = msgspec.json.Decoder(AuditEntry).decode


def _is_action(wanted: str, action: str) -> bool:
    return action.startswith(wanted[:-1]) if wanted.endswith("*") else action == wanted


def _is_release(action: str) -> bool:
    return action.rpartition(".")[2] in _RELEASES or action == "key.change"


def _masked(resource: object) -> dict[str, Any] | None:
    """The API representation of a resource, with fields that have the name of a secret masked."""
    if resource is None:
        return None
    shown: dict[str, Any] = msgspec.to_builtins(resource)
    return {name: "***" if name.lower() in _SECRET_FIELDS and value else value for name, value in shown.items()}
