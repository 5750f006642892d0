"""Requests to end sessions that are over. The pipeline makes them of what it has seen; what is stored here decides."""

from collections.abc import Callable

import msgspec
import structlog

from postroad.contracts.session_cleanups import SESSION_CLEANUPS
from postroad.jetstream.connection import Connection
from postroad.jetstream.durable_worker import DurableWorker, work_stream
from postroad.jetstream.management import StreamSpec
from postroad.kernel.errors import InvalidParameter
from postroad.kernel.names import tenant_id
from postroad.sessions import metrics
from postroad.sessions.lifecycle import CleanupOutcome
from postroad.sessions.rules import session_id
from postroad.sessions.service import Sessions
from postroad.streams.service import Streams

STREAM, SUBJECT, _CONSUMER = SESSION_CLEANUPS.stream, SESSION_CLEANUPS.prefix, "cleanup"

log = structlog.get_logger("postroad.sessions")


_decode = msgspec.json.Decoder(SESSION_CLEANUPS.body).decode


def cleanup_stream(replicas: int, stream: str = STREAM, subject: str = SUBJECT) -> StreamSpec:
    return work_stream(stream, subject, replicas)


class CleanupRequests:
    def __init__(
        self,
        connection: Connection,
        sessions: Sessions,
        streams: Streams,
        tenants: Callable[[], list[str]],
        stream: str = STREAM,
        subject: str = SUBJECT,
    ) -> None:
        self._sessions, self._streams, self._tenants = sessions, streams, tenants
        self._work = DurableWorker(connection, cleanup_stream(1, stream, subject), _CONSUMER, _asked)

    async def consume(self) -> None:
        """Until cancelled."""
        await self._work.consume(self._clean)

    async def _clean(self, asked: tuple[str, str]) -> None:
        tenant, session = asked
        has_store = await self._streams.store.exists(tenant)
        if not has_store and tenant not in self._tenants():
            _drop("unknown_tenant", tenant=tenant)
            return
        # To look for a session of one who never had any would be to make the store.
        fate = (await self._sessions.end_if_over(tenant, session))[0] if has_store else CleanupOutcome.GONE
        metrics.cleanups.labels(fate.value).inc()


def _asked(payload: bytes) -> tuple[str, str] | None:
    """The tenant and the session; None if it is no such request."""
    try:
        asked = _decode(payload)
        return tenant_id(asked.tenant), session_id(asked.session)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, InvalidParameter) as problem:
        _drop("unreadable", problem=str(problem)[:200])
        return None


def _drop(why: str, **more: str) -> None:
    log.warning("cleanup_dropped", why=why, **more)
    metrics.cleanups.labels("invalid").inc()
