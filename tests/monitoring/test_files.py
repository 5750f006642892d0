"""The alert rules and dashboards: complete, up to date, and about metrics that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from postroad.monitoring.alerts import ALERTS, Alert
from postroad.monitoring.dashboards import DASHBOARDS
from postroad.monitoring.rendering import files, rules
from tests.alerts.test_documented_metrics import known_metrics
from tests.architecture.source import ROOT

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is missing: sh scripts/setup-prometheus")


def test_the_files_are_up_to_date() -> None:
    for name, text in files().items():
        assert (ROOT / "deploy" / name).read_text() == text, "run `make dashboards`"


def test_every_metric_of_panels_and_alerts_exists() -> None:
    queries = [panel.query for one in DASHBOARDS for panel in one.panels] + [alert.expression for alert in ALERTS]
    queries += [variable.query for one in DASHBOARDS for variable in one.variables]
    named = {re.sub(r"_bucket$", "", name) for query in queries for name in re.findall(r"postroad_[a-z_]+", query)}
    assert len(named) > 40 and named - known_metrics() == set()


def test_alerts_are_named_once_and_say_what_happens() -> None:
    names = [alert.name for alert in ALERTS]
    assert len(names) == len(set(names)) and all(name.startswith("Postroad") for name in names)
    assert all(alert.summary.endswith(".") or ": " in alert.summary or alert.summary.endswith("?") for alert in ALERTS)
    assert {alert.group for alert in ALERTS} == {"queues", "engine", "commands", "telemetry", "pipeline"}


def test_dashboards_are_what_grafana_reads() -> None:
    found = {path.stem: json.loads(path.read_text()) for path in (ROOT / "deploy" / "grafana").glob("*.json")}
    assert set(found) == {"overview", "queue", "engine", "rabbitmq", "pipeline", "tenant"}
    for content in found.values():
        panels = content["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels) and content["uid"].startswith("postroad-")
        assert all(panel["targets"][0]["expr"] and panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
        cells = [
            (x, y)
            for place in (panel["gridPos"] for panel in panels)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ]
        assert len(set(cells)) == len(cells), "two panels overlap"
        used = set(re.findall(r"\$(\w+)", json.dumps(panels))) - {"source", "__rate_interval"}
        assert used <= {variable["name"] for variable in content["templating"]["list"]}


@pytest.mark.engine
@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", str(ROOT / "deploy" / "prometheus" / "rules.yml")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


@pytest.mark.engine
@needs_promtool
def test_every_alert_fires_on_its_example_and_not_without(tmp_path: Path) -> None:
    groups = yaml.safe_load(rules())["groups"]
    by_name = {rule["alert"]: rule for group in groups for rule in group["rules"]}
    tests = []
    for alert in ALERTS:  # a file each: a test evaluates all rules of its file
        (tmp_path / f"{alert.name}.rules.yml").write_text(
            yaml.safe_dump({"groups": [{"name": "one", "rules": [by_name[alert.name]]}]})
        )
        content = {"rule_files": [f"{alert.name}.rules.yml"], "evaluation_interval": "1m", "tests": cases(alert)}
        tests.append(tmp_path / f"{alert.name}.test.yml")
        tests[-1].write_text(yaml.safe_dump(content))
    done = subprocess.run(["promtool", "test", "rules", *map(str, tests)], capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


def cases(alert: Alert) -> list[dict[str, object]]:
    fires_without = alert.name == "PostroadQueueMetricsMissing"  # because nothing is reported
    firing = f'count(ALERTS{{alertname="{alert.name}",alertstate="firing"}}) or vector(0)'
    example = [{"series": name, "values": values} for name, values in alert.example.items()]
    return [
        {
            "name": name,
            "interval": "1m",
            "input_series": series,
            "promql_expr_test": [{"expr": firing, "eval_time": "40m", "exp_samples": [{"labels": "{}", "value": expected}]}],
        }
        for name, series, expected in (
            ("with its example", example, 1),
            ("without", [{"series": "unrelated", "values": "1x60"}], int(fires_without)),
        )
    ]
