"""Gauges of route health for Prometheus. Every process follows the records, so each can be scraped for all routes."""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from postroad.commands.records import RouteRecord
from postroad.jetstream.replicated_table import ReplicatedTable
from postroad.route_health.records import RouteHealthRecord

_SERIES_MAX = 200


class RouteHealthGauges(Collector):
    """The number of routes by status and by problem, and one series for each of the first unhealthy routes."""

    def __init__(self, routes: ReplicatedTable[RouteRecord], health: ReplicatedTable[RouteHealthRecord]) -> None:
        self._routes, self._health = routes, health

    def collect(self) -> Iterator[GaugeMetricFamily]:
        statuses: Counter[str] = Counter({"healthy": 0, "unhealthy": 0, "unknown": 0})
        problems: Counter[str] = Counter()
        unhealthy = GaugeMetricFamily(
            "postroad_route_unhealthy", "Unhealthy command routes, at most 200 of them.", labels=["target", "command", "queue"]
        )
        count = 0
        for key in self._routes.keys_under():
            route, record = self._routes.get(key), self._health.get(key)
            if route is None:
                continue
            statuses[record.status if record is not None else "unknown"] += 1
            if record is None or record.status != "unhealthy":
                continue
            problems.update(record.problems)
            if count < _SERIES_MAX:
                unhealthy.add_metric([route.target, route.command, route.queue], 1)
                count += 1
        by_status = GaugeMetricFamily("postroad_routes", "Command routes by health.", labels=["status"])
        for status, number in statuses.items():
            by_status.add_metric([status], number)
        by_problem = GaugeMetricFamily("postroad_route_problems", "Unhealthy command routes by problem.", labels=["problem"])
        for problem, number in problems.items():
            by_problem.add_metric([problem], number)
        yield from (by_status, by_problem, unhealthy)
