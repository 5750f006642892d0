"""The files that Prometheus and Grafana read."""

import json
from collections.abc import Mapping
from typing import Any

import yaml  # type: ignore[import-untyped]

from postroad.monitoring.alerts import ALERTS
from postroad.monitoring.dashboards import DASHBOARDS, Dashboard, Panel, Variable

_WRITTEN = "# Written by `make dashboards` from src/postroad/monitoring.\n"
_SOURCE = {"type": "prometheus", "uid": "${source}"}
_WIDTH, _HEIGHT, _STAT_WIDTH, _STAT_HEIGHT = 12, 8, 4, 4


def files() -> Mapping[str, str]:
    """The content of each file, by its path in `deploy/`."""
    rendered = {f"grafana/{one.name}.json": dashboard(one) for one in DASHBOARDS}
    return {**rendered, "prometheus/rules.yml": rules()}


def rules() -> str:
    groups: dict[str, list[dict[str, Any]]] = {}
    for alert in ALERTS:
        rule: dict[str, Any] = {"alert": alert.name, "expr": alert.expression}
        if alert.lasts:
            rule["for"] = alert.lasts
        rule |= {"labels": {"severity": alert.severity}, "annotations": {"summary": alert.summary}}
        groups.setdefault(alert.group, []).append(rule)
    content = {"groups": [{"name": f"postroad-{name}", "rules": listed} for name, listed in groups.items()]}
    text: str = yaml.safe_dump(content, sort_keys=False, width=160, allow_unicode=True)
    return _WRITTEN + text


def dashboard(one: Dashboard) -> str:
    content = {
        "uid": f"postroad-{one.name}",
        "title": one.title,
        "tags": ["postroad"],
        "schemaVersion": 39,
        "timezone": "browser",
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source(), *(_variable(variable) for variable in one.variables)]},
        "panels": _panels(one.panels),
    }
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _source() -> dict[str, Any]:
    return {"name": "source", "type": "datasource", "query": "prometheus", "label": "Source", "current": {}, "hide": 0}


def _variable(one: Variable) -> dict[str, Any]:
    return {
        "name": one.name,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": one.query, "refId": one.name},
        "definition": one.query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(panels: tuple[Panel, ...]) -> list[dict[str, Any]]:
    """Numbers in rows of six, the others in rows of two."""
    placed, x, y, row = [], 0, 0, 0
    for number, panel in enumerate(sorted(panels, key=lambda one: one.kind != "stat"), 1):
        width, height = (_STAT_WIDTH, _STAT_HEIGHT) if panel.kind == "stat" else (_WIDTH, _HEIGHT)
        if x + width > 24 or (row and height != row):
            x, y = 0, y + row
        row = height
        placed.append(_panel(number, panel, {"x": x, "y": y, "w": width, "h": height}))
        x += width
    return placed


def _panel(number: int, panel: Panel, place: Mapping[str, int]) -> dict[str, Any]:
    is_table = panel.kind == "table"
    target: dict[str, object] = {
        "refId": "A",
        "datasource": _SOURCE,
        "expr": panel.query,
        "legendFormat": panel.legend or "__auto",
    }
    if is_table:
        target |= {"format": "table", "instant": True}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        **({"description": panel.text} if panel.text else {}),
        "datasource": _SOURCE,
        "gridPos": dict(place),
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "targets": [target],
    }
