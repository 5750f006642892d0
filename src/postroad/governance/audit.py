"""The audit log: every change of the control plane, who made it, and what it changed. It can be added to and read, nothing else.

The entry is stored before the change is made, so no change can be without one; a change that then fails has a second entry,
with the outcome `failed` and the first one's id.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committers, PendingMessage
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import StreamSpec, stream_info
from postroad.kernel.clock import Clock, Timestamp, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.ids import new_id

AUDIT_STREAM = "AUDIT"
PLATFORM = "_platform"  # stands where a tenant's id stands, for what concerns the installation
_PAGE = 500
_DENSE = 2_000  # entries that one window may have; a window with more is read in halves
_WINDOW_MAX = 4_194_304
_SCANNED_MAX = 20_000
_MASKED = frozenset({"secret", "key", "code", "token", "password", "locked", "sha256", "hashes"})


class AuditEntry(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=True):
    """Format 1, on `audit.<tenant>`. `before` and `after` are what the API shows of the thing, with secrets masked."""

    v: int
    id: str
    at: Timestamp
    tenant: str
    action: str
    target: str
    outcome: str = "ok"
    of: str | None = None
    actor_key_id: str
    actor_is_platform: bool = False
    actor_subject: str | None = None
    request_id: str
    address: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Times are RFC 3339 in UTC, `action` may end in `*`, the others are equal."""

    since: str | None = None
    until: str | None = None
    action: str | None = None
    actor: str | None = None
    target: str | None = None
    request_id: str | None = None

    def takes(self, entry: AuditEntry) -> bool:
        return (
            (self.since is None or entry.at >= self.since)
            and (self.until is None or entry.at < self.until)
            and (self.action is None or _is_action(self.action, entry.action))
            and (self.actor is None or entry.actor_key_id == self.actor)
            and (self.target is None or entry.target == self.target)
            and (self.request_id is None or entry.request_id == self.request_id)
        )


class AuditPage(msgspec.Struct, frozen=True):
    entries: list[AuditEntry]
    next_cursor: str | None
    scanned: int


def audit_stream(replicas: int, keep_days: int = 0) -> StreamSpec:
    """Nobody can delete from it, not even we. `keep_days` lets the engine drop what is older; 0 keeps everything."""
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
        self._committer = committers.of(AUDIT_STREAM)

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
        """Return the entry's id once it is durable."""
        caller = context.caller
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
            before=_shown(before),
            after=_shown(after),
        )
        await self._committer.append(PendingMessage(f"audit.{entry.tenant}", msgspec.json.encode(entry), entry.id))
        return entry.id

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
        """The block makes the change; it is on record before it begins, and if it fails that is on record too."""
        first = await self.record(context, action, target, tenant=tenant, before=before, after=after)
        try:
            yield
        except Exception:
            await self.record(context, action, target, tenant=tenant, outcome="failed", of=first)
            raise

    async def page(self, tenant: str | None, wanted: AuditFilter, *, limit: int, before: int | None) -> AuditPage:
        """Newest first, until there are `limit` entries, the beginning is reached, or enough was scanned.

        The log is read in windows of sequences from its end. Where a tenant's entries are few the windows grow, so that the
        cost goes by the entries and not by what other tenants have written between them.
        """
        info = await stream_info(self._connection, AUDIT_STREAM)
        top = info.state.last_seq if info else 0
        if before is not None:
            top = min(top, before - 1)
        bottom_most = max(1, info.state.first_seq) if info else 1
        entries: list[AuditEntry] = []
        scanned, width = 0, _PAGE
        while top >= bottom_most and scanned < _SCANNED_MAX:
            bottom = max(bottom_most, top - width + 1)
            found = await self._window(tenant, bottom, top)
            if found is None:
                width //= 2
                continue
            for sequence, entry in reversed(found):
                scanned += 1
                if wanted.since is not None and entry.at < wanted.since:
                    return AuditPage(entries, None, scanned)
                if wanted.takes(entry):
                    entries.append(entry)
                    if len(entries) == limit:
                        return AuditPage(entries, str(sequence) if sequence > bottom_most else None, scanned)
            top = bottom - 1
            if len(found) < _PAGE // 2:
                width = min(width * 4, _WINDOW_MAX)
        return AuditPage(entries, str(top + 1) if top >= bottom_most else None, scanned)

    async def _window(self, tenant: str | None, bottom: int, top: int) -> list[tuple[int, AuditEntry]] | None:
        """The entries from `bottom` to `top`, None if there are too many to hold."""
        subject = f"audit.{tenant}" if tenant else "audit.>"
        found: list[tuple[int, AuditEntry]] = []
        position = bottom
        while position <= top:
            page = await stream_reader.read(self._connection, AUDIT_STREAM, subject, position, _PAGE)
            for stored in page.entries:
                if stored.sequence > top:
                    return found
                found.append((stored.sequence, _decode(stored.payload)))
            if len(found) > _DENSE and top - bottom >= _PAGE:
                return None
            if page.is_end:
                break
            position = page.next_sequence
        return found


_decode = msgspec.json.Decoder(AuditEntry).decode


def _is_action(wanted: str, action: str) -> bool:
    return action.startswith(wanted[:-1]) if wanted.endswith("*") else action == wanted


def _shown(thing: object) -> dict[str, Any] | None:
    """As the API shows it, except that what is called like a secret is masked, whoever forgot to leave it out."""
    if thing is None:
        return None
    shown: dict[str, Any] = msgspec.to_builtins(thing)
    return {name: "***" if name.lower() in _MASKED and value else value for name, value in shown.items()}
