"""The metrics that the documentation names exist."""

import re
from pathlib import Path

import pytest

from postroad.monitoring.alerts import ALERTS

ROOT = Path(__file__).parents[2]


def known_metrics() -> set[str]:
    """Names in the source: of counters, gauges, histograms and collectors."""
    source = ROOT / "src" / "postroad"
    texts = "\n".join(path.read_text() for path in source.rglob("*.py") if "generated" not in path.parts)
    return set(re.findall(r'"(postroad_[a-z_]+)"', texts))


def documented_metrics(page: str) -> set[str]:
    """Names in the tables of a page. `…_x` after `postroad_a_b_c` in the same row stands for `postroad_a_x`."""
    found: set[str] = set()
    for row in re.findall(r"^\|.*\|$", (ROOT / "docs" / page).read_text(), re.MULTILINE):
        full = re.findall(r"`(postroad_[a-z_]+)", row)
        found |= set(full)
        found |= {f"{'_'.join(full[0].split('_')[:2])}_{rest}" for rest in re.findall(r"`…_([a-z_]+)`", row) if full}
    return found


@pytest.mark.parametrize(("page", "count"), [("commands.md", 15), ("telemetry.md", 15)])
def test_every_metric_of_a_page_exists(page: str, count: int) -> None:
    """Requirements 70, 84, 142: with the names of the protocol beside ours."""
    named = documented_metrics(page)
    assert len(named) >= count and named - known_metrics() == set()


NAMES_OF_THE_PROTOCOL = {
    *(f"Snavio.Cache.Usage.{phase}" for phase in ("Fresh", "Stale", "Expired")),
    *(
        f"Snavio.Cache.{cache}.{name}"
        for cache in ("ACL", "Routing", "HMAC")
        for name in ("Usage.Stale", "RefreshDuration", "StaleWindowSeconds")
    ),
    "Snavio.Cache.SnapshotLoadFailure",
    *(f"Snavio.Snapshot.{name}" for name in ("Generated", "SizeBytes", "WriteDuration")),
    *(f"Snavio.Dedup.{name}" for name in ("StrictModeUsage", "DuplicatesPrevented", "Escalations", "SlowPathLatency")),
}


def test_every_metric_of_the_protocol_has_its_name_beside_ours() -> None:
    """Requirements 64, 70, 78, 84, 142"""
    rows = re.findall(r"^\| `postroad_.*\|$", (ROOT / "docs" / "commands.md").read_text(), re.MULTILINE)
    found: set[str] = set()
    for name in re.findall(r"`(Snavio\.[^`]+)`", "\n".join(rows)):
        before, _, rest = name.partition("{")
        inner, _, after = rest.partition("}")
        found |= {f"{before}{one}{after}" for one in inner.split(",")}
    assert found == NAMES_OF_THE_PROTOCOL


def test_every_metric_of_the_prometheus_rules_exists() -> None:
    """Requirement 225"""
    named = {name for alert in ALERTS for name in re.findall(r"postroad_[a-z_]+", alert.expression)}
    assert {re.sub(r"_bucket$", "", name) for name in named} - known_metrics() == set()
    assert {alert.severity for alert in ALERTS} <= {"info", "warning", "critical"}
