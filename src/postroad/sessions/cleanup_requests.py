"""Requests to clean up sessions. The pipeline sends them from the events it has seen; the stored state decides."""

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
        self._worker = DurableWorker(connection, cleanup_stream(1, stream, subject), _CONSUMER, _session_of)

    async def consume(self) -> None:
        """Run until cancelled."""
        await self._worker.consume(self._clean_up)

    async def _clean_up(self, request: tuple[str, str]) -> None:
        tenant, session = request
        has_store = await self._streams.store.exists(tenant)
        if not has_store and tenant not in self._tenants():
            _drop("unknown_tenant", tenant=tenant)
            return
        # Without a store there are no sessions, and a look-up would create it.
        outcome = (await self._sessions.end_if_expired(tenant, session))[0] if has_store else CleanupOutcome.GONE
        metrics.cleanups.labels(outcome.value).inc()


def _session_of(payload: bytes) -> tuple[str, str] | None:
    """Tenant and session of a request; None if it is invalid."""
    try:
        request = _decode(payload)
        return tenant_id(request.tenant), session_id(request.session)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, InvalidParameter) as problem:
        _drop("unreadable", problem=str(problem)[:200])
        return None


def _drop(reason: str, **more: str) -> None:
    log.warning("cleanup_dropped", reason=reason, **more)
    metrics.cleanups.labels("invalid").inc()
