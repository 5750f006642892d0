"""HTTP routes about the clients of queues: consumers, publishers, traffic."""

from collections.abc import Iterable, Sequence

from postroad.access.identity_cache import IdentityCache
from postroad.api.clients import (
    QueueConsumer,
    QueueConsumers,
    QueuePublisher,
    QueuePublishers,
    TrafficQuery,
    TrafficReport,
    TrafficRow,
)
from postroad.api.queues import QueueNotFound
from postroad.http.request import Request
from postroad.http.response import Response
from postroad.http.routing import Command, Route
from postroad.kernel.clock import Clock, rfc3339
from postroad.kernel.errors import EngineUnavailable
from postroad.kernel.identity import Caller, Scope
from postroad.queues.consumer_activity import ConsumerActivity, ConsumerReports
from postroad.queues.lifecycle import QueueLifecycle
from postroad.queues.stats import QueueStatsReader
from postroad.telemetry.flow_counters import Flow, FlowCounters

_TAG = "Clients"
_RECENT_MS = 60_000


class ClientRoutes:
    def __init__(
        self,
        lifecycle: QueueLifecycle,
        stats: QueueStatsReader,
        reports: ConsumerReports,
        flows: FlowCounters,
        identities: IdentityCache,
        clock: Clock,
    ) -> None:
        self._lifecycle, self._stats, self._reports = lifecycle, stats, reports
        self._flows, self._identities, self._clock = flows, identities, clock

    def table(self) -> Sequence[Route]:
        one, errors = "/v1/queues/{queue}", (QueueNotFound, EngineUnavailable)
        return [
            Route(
                "GET",
                f"{one}/consumers",
                self.list_consumers,
                Scope.READ,
                "List the keys that consume a queue",
                _TAG,
                response=QueueConsumers,
                errors=errors,
                description="With their last pull and ack, leases, rates and failures: of the last 15 minutes, or with leases.",
                sdk="traffic.consumers",
                cli=Command("queues consumers"),
                allows_admin=True,
            ),
            Route(
                "GET",
                f"{one}/publishers",
                self.list_publishers,
                Scope.READ,
                "List the keys that publish to a queue",
                _TAG,
                response=QueuePublishers,
                errors=errors,
                description="Of the last 15 minutes, the busiest first.",
                sdk="traffic.publishers",
                cli=Command("queues publishers"),
                allows_admin=True,
            ),
            Route(
                "GET",
                "/v1/traffic",
                self.show_traffic,
                Scope.READ,
                "Show which keys and queues cause the traffic",
                _TAG,
                query=TrafficQuery,
                response=TrafficReport,
                description="Rates over ten seconds, the busiest first, with the time since when there is traffic.",
                sdk="traffic.get",
                cli=Command("queues traffic"),
                allows_admin=True,
            ),
        ]

    async def list_consumers(self, request: Request) -> Response:
        record = await self._lifecycle.find(request.caller.tenant, request.parameters["queue"])
        activity = sorted(self._reports.of(record.stream), key=lambda one: (-one.acked_per_second, -one.last_pull_ms, one.key))
        stats = await self._stats.stats(record)
        consumers = [self._consumer(one) for one in activity]
        summary = summary_of(activity, stats.waiting, self._clock())
        return Response(QueueConsumers(consumers=consumers, waiting=stats.waiting, summary=summary))

    def _consumer(self, one: ConsumerActivity) -> QueueConsumer:
        return QueueConsumer(
            key_id=one.key,
            key_name=self._name(one.key),
            last_pull_at=rfc3339(one.last_pull_ms) if one.last_pull_ms else None,
            last_ack_at=rfc3339(one.last_ack_ms) if one.last_ack_ms else None,
            in_flight=one.in_flight,
            overdue=one.overdue,
            pulled_per_second=one.pulled_per_second,
            acked_per_second=one.acked_per_second,
            failed_per_second=one.failed_per_second,
            mean_processing_ms=one.mean_processing_ms,
        )

    async def list_publishers(self, request: Request) -> Response:
        record = await self._lifecycle.find(request.caller.tenant, request.parameters["queue"])
        wanted = f"queue:{record.name}"
        flows = self._flows.of(record.tenant, lambda source, target: target == wanted and source.startswith("key:"))
        publishers = [
            QueuePublisher(
                key_id=(key := flow.source.removeprefix("key:")),
                key_name=self._name(key),
                per_second=flow.per_second,
                since=rfc3339(flow.since_ms),
                last_at=rfc3339(flow.last_ms),
            )
            for flow in sorted(flows, key=lambda flow: (-flow.per_second, -flow.last_ms))
        ]
        return Response(QueuePublishers(publishers=publishers))

    async def show_traffic(self, request: Request) -> Response:
        query: TrafficQuery = request.query
        rows = traffic_of(self._visible(request.caller), query.by)
        published, consumed = sum(one[2] for one in rows), sum(one[3] for one in rows)
        return Response(
            TrafficReport(
                rows=[self._row(one, published + consumed) for one in rows[: query.limit]],
                published_per_second=round(published, 1),
                consumed_per_second=round(consumed, 1),
                total=len(rows),
            )
        )

    def _visible(self, caller: Caller) -> list[Flow]:
        def is_visible(source: str, target: str) -> bool:
            queues = [one.removeprefix("queue:") for one in (source, target) if one.startswith("queue:")]
            keys = [one for one in (source, target) if one.startswith("key:")]
            return len(queues) == len(keys) == 1 and caller.may_use("queue", queues[0])

        return self._flows.of(caller.tenant, is_visible)

    def _row(self, one: "_TrafficSum", all_per_second: float) -> TrafficRow:
        key, queue, published, consumed, failed, since_ms, last_ms = one
        return TrafficRow(
            key_id=key,
            key_name=None if key is None else self._name(key),
            queue=queue,
            published_per_second=round(published, 1),
            consumed_per_second=round(consumed, 1),
            failed_per_second=round(failed, 1),
            share=round((published + consumed) / all_per_second, 3) if all_per_second else 0.0,
            since=rfc3339(since_ms),
            last_at=rfc3339(last_ms),
        )

    def _name(self, key: str) -> str:
        record = self._identities.keys.get(key)
        return "" if record is None else record.name


_TrafficSum = tuple[str | None, str | None, float, float, float, int, int]


def traffic_of(flows: Iterable[Flow], by: str) -> list[_TrafficSum]:
    """Flows between keys and queues, added up by key, queue or both, the busiest first."""
    sums: dict[tuple[str | None, str | None], list[float]] = {}
    for flow in flows:
        is_publish = flow.source.startswith("key:")
        key, queue = (flow.source, flow.target) if is_publish else (flow.target, flow.source)
        group = (
            key.removeprefix("key:") if "key" in by.split(",") else None,
            queue.removeprefix("queue:") if "queue" in by.split(",") else None,
        )
        known = sums.setdefault(group, [0.0, 0.0, 0.0, flow.since_ms, flow.last_ms])
        known[0 if is_publish else 1] += flow.per_second
        known[2] += flow.failed_per_second
        known[3], known[4] = min(known[3], flow.since_ms), max(known[4], flow.last_ms)
    rows = [(*group, one[0], one[1], one[2], int(one[3]), int(one[4])) for group, one in sums.items()]
    return sorted(rows, key=lambda row: (-(row[2] + row[3]), row[0] or "", row[1] or ""))


def summary_of(consumers: Sequence[ConsumerActivity], waiting: int, now_ms: int) -> str:
    """One sentence: whether the consumers are alive."""
    if not consumers and not waiting:
        return "No consumer has pulled in the last 15 minutes."
    count = "1 consumer" if len(consumers) == 1 else f"{len(consumers)} consumers"
    last_pull, last_ack = (max((of(one) for one in consumers), default=0) for of in (_pull, _ack))
    overdue = sum(one.overdue for one in consumers)
    late = f"; {overdue} {'lease is' if overdue == 1 else 'leases are'} overdue" if overdue else ""
    if not waiting and now_ms - last_pull > _RECENT_MS:
        since = f"for {_duration(now_ms - last_pull)}" if last_pull else "in the last 15 minutes"
        return f"{count}, none has pulled {since}{late}."
    in_flight = sum(one.in_flight for one in consumers)
    if in_flight and now_ms - last_ack > _RECENT_MS:
        since = f"for {_duration(now_ms - last_ack)}" if last_ack else "yet"
        return f"{count}, none has acknowledged {since}{late}."
    return f"{count}, {in_flight} messages in flight{late}."


def _pull(one: ConsumerActivity) -> int:
    return one.last_pull_ms


def _ack(one: ConsumerActivity) -> int:
    return one.last_ack_ms


def _duration(ms: int) -> str:
    seconds = ms // 1000
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
