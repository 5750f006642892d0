"""The queries of all panels and alerts, as Prometheus gets them."""

from postroad.monitoring.alerts import ALERTS
from postroad.monitoring.dashboards import DASHBOARDS


def queries() -> list[str]:
    """With all tenants and queues chosen. An alert's is its value, without the condition."""
    panels = [panel.query for dashboard in DASHBOARDS for panel in dashboard.panels]
    return [_with_choices(query) for query in (*panels, *(alert.value for alert in ALERTS))]


def _with_choices(query: str) -> str:
    return query.replace("$__rate_interval", "1m").replace("$tenant", ".*").replace("$queue", ".*")
