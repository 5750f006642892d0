"""Verdicts of the fairness auditor: checked against the registry, then applied as bans. One process, the leader, reads them."""

from datetime import datetime

import msgspec
import structlog

from postroad.api.command_limits import BanKind
from postroad.commands import metrics
from postroad.commands.bans import Bans
from postroad.commands.events import AbuseDetected, SourceFlagged
from postroad.commands.limit_records import BanRecord, ban_key, ban_of
from postroad.commands.records import RouteRecord, ServiceRecord, route_key, service_key
from postroad.commands.verdict_rules import VerdictPolicy, is_readable, names_of, refusal
from postroad.contracts.verdicts import FAIRNESS_VERDICTS, FairnessVerdict
from postroad.governance.audit import Audit
from postroad.jetstream.connection import Connection
from postroad.jetstream.durable_worker import DurableWorker, work_stream
from postroad.jetstream.management import StreamSpec
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.context import RequestContext
from postroad.kernel.identity import Caller
from postroad.telemetry.outbox import Outbox

STREAM, SUBJECT, _CONSUMER = FAIRNESS_VERDICTS.stream, FAIRNESS_VERDICTS.prefix, "verdicts"
AUDITOR = "auditor"
_KIND: BanKind = "warm"

log = structlog.get_logger("postroad.commands")

_decode = msgspec.json.Decoder(FairnessVerdict).decode


def verdict_stream(replicas: int) -> StreamSpec:
    return work_stream(STREAM, SUBJECT, replicas)


class Verdicts:
    """`services` and `routes` are read from the engine for each verdict, which are few."""

    def __init__(
        self,
        connection: Connection,
        services: ReplicatedTable[ServiceRecord],
        routes: ReplicatedTable[RouteRecord],
        bans: Bans,
        outbox: Outbox,
        audit: Audit,
        clock: Clock,
        policy: VerdictPolicy,
    ) -> None:
        self._services, self._routes, self._bans = services, routes, bans
        self._outbox, self._audit, self._clock, self._policy = outbox, audit, clock, policy
        self._worker = DurableWorker(connection, verdict_stream(1), _CONSUMER, _read)

    async def consume(self) -> None:
        """Run until cancelled."""
        await self._worker.consume(self.apply)

    async def apply(self, verdict: FairnessVerdict) -> str:
        """Ban the source if the verdict holds, and report it. May be repeated: the events of a verdict have its id.

        Returns the result: `banned`, `shadow`, `in-force`, or why it was dropped. Raises EngineUnavailable.
        """
        if self._policy.mode == "off":
            return _count("off", verdict)
        tenant, service = names_of(verdict.source) or ("", "")
        has_source = await self._services.fetch(service_key(tenant, service)) is not None
        routes = [await self._routes.fetch(route_key(*(names_of(one.target) or ("", "")), one.command)) for one in verdict.routes]
        now = self._clock()
        fault = refusal(verdict, has_source=has_source, routes=routes, now_ms=now, policy=self._policy)
        if fault is not None:
            return _count(fault, verdict)
        verdict_id = FAIRNESS_VERDICTS.message_id_of(source=verdict.source, minute=_text(verdict.minute))
        if self._policy.mode == "shadow":
            await self._report(verdict, f"{verdict_id}:shadow", "shadow")
            return _count("shadow", verdict)
        until_ms = _millis(verdict.ban_until)
        known = await self._bans.table.fetch(ban_key(verdict.source, _KIND, None))
        if _is_in_force(known, verdict_id, now, until_ms):
            return _count("in-force", verdict)
        return await self._ban(verdict, verdict_id, known, until_ms)

    async def _ban(self, verdict: FairnessVerdict, verdict_id: str, known: BanRecord | None, until_ms: int) -> str:
        """A verdict that was applied before, by a leader that died then, is only reported."""
        if known is None or verdict_id not in known.reason:
            seconds = max(1, -(-(until_ms - self._clock()) // 1000))
            reason = f"dominated routes that others use ({verdict_id})"
            context = RequestContext(Caller(verdict.tenant, AUDITOR, frozenset()))
            async with self._audit.change(context, "registry.ban.create", verdict.source, after={"verdict": verdict_id}):
                known = await self._bans.impose(verdict.source, _KIND, seconds=seconds, reason=reason, creator=AUDITOR)
        await self._outbox.commit(
            None,
            AbuseDetected(
                event_id=verdict_id,
                tenant=verdict.tenant,
                source=verdict.source,
                affected_targets=_targets(verdict),
                total_violations=verdict.violations,
                ban_applied_until=ban_of(known).expires_at,
            ),
        )
        await self._report(verdict, f"{verdict_id}:banned", "banned")
        return _count("banned", verdict)

    async def _report(self, verdict: FairnessVerdict, event_id: str, result: str) -> None:
        await self._outbox.commit(
            None,
            SourceFlagged(
                event_id=event_id,
                tenant=verdict.tenant,
                source=verdict.source,
                minute=_text(verdict.minute),
                affected_targets=_targets(verdict),
                share=max(one.share for one in verdict.routes),
                violations=verdict.violations,
                result=result,
            ),
        )


def _is_in_force(known: BanRecord | None, verdict_id: str, now: int, until_ms: int) -> bool:
    """True if the source has a ban that makes this verdict superfluous: one of the auditor, or one that lasts as long."""
    if known is None or not known.is_active(now) or verdict_id in known.reason:
        return False
    return known.creator == AUDITOR or known.expires_at_ms >= until_ms


def _targets(verdict: FairnessVerdict) -> list[str]:
    return sorted({one.target for one in verdict.routes})


def _millis(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def _text(at: datetime) -> str:
    return rfc3339(_millis(at))


def _count(result: str, verdict: FairnessVerdict) -> str:
    metrics.verdict(result).inc()
    log.info("verdict", result=result, source=verdict.source, minute=_text(verdict.minute))
    return result


def _read(payload: bytes) -> FairnessVerdict | None:
    """None if it is invalid, or not about a source of its tenant."""
    try:
        verdict = _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        log.warning("verdict_unreadable", problem=str(problem)[:200])
        metrics.verdict("unreadable").inc()
        return None
    if not is_readable(verdict):
        log.warning("verdict_unreadable", problem="names", source=verdict.source[:100])
        metrics.verdict("foreign").inc()
        return None
    return verdict
