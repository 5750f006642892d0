"""The metrics that the documentation names exist."""

import re
from pathlib import Path

from postroad.monitoring.alerts import ALERTS

ROOT = Path(__file__).parents[2]


def known_metrics() -> set[str]:
    """Names in the source: of counters, gauges, histograms and collectors."""
    source = ROOT / "src" / "postroad"
    texts = "\n".join(path.read_text() for path in source.rglob("*.py") if "generated" not in path.parts)
    return set(re.findall(r'"(postroad_[a-z_]+)"', texts))


def test_every_metric_of_the_prometheus_rules_exists() -> None:
    """Requirement 225"""
    named = {name for alert in ALERTS for name in re.findall(r"postroad_[a-z_]+", alert.expression)}
    assert {re.sub(r"_bucket$", "", name) for name in named} - known_metrics() == set()
    assert {alert.severity for alert in ALERTS} <= {"info", "warning", "critical"}
