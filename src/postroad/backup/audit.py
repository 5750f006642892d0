"""Audit entries of backups: the operator makes them with access to the engine, not with a key."""

from postroad.backup.manifest import Manifest
from postroad.governance.audit import Audit
from postroad.jetstream.commit import CommitPolicy, Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.jetstream.write_buffer_limit import WriteBufferLimit
from postroad.kernel.clock import now_ms
from postroad.kernel.context import RequestContext
from postroad.kernel.event import PLATFORM
from postroad.kernel.identity import Caller

_BUFFER_BYTES = 1024 * 1024


async def record_backup(connection: Connection, action: str, manifest: Manifest, tenant: str | None = None) -> None:
    """Append an entry, unless the engine has no audit log yet."""
    if await stream_info(connection, "AUDIT") is None:
        return
    audit = Audit(connection, Committers(connection, CommitPolicy(), WriteBufferLimit(_BUFFER_BYTES)), now_ms)
    operator = RequestContext(Caller(PLATFORM, "", frozenset(), is_platform=True, name="operator"))
    summary = {"createdAt": manifest.created_at, "streams": len(manifest.streams), "messages": manifest.messages}
    await audit.record(operator, action, manifest.id, tenant=tenant, after=summary)
