"""Renders the kustomizations of deploy/kubernetes: the part of Kustomize that they use, and nothing else.

`resources`, `namespace`, `replicas`, and `patches` as JSON patches (`replace`) or as maps that are merged.
"""

import copy
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

Resource = dict[str, Any]
_KNOWN = {"apiVersion", "kind", "namespace", "resources", "replicas", "patches"}
_CLUSTER_WIDE = {"Namespace"}


def render(folder: Path) -> list[Resource]:
    """Raises ValueError for what this renderer does not know."""
    content = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := set(content) - _KNOWN:
        raise ValueError(f"{folder}: unknown fields {unknown}")
    found: list[Resource] = []
    for name in content["resources"]:
        path = folder / name
        found += render(path.resolve()) if path.is_dir() else [one for one in yaml.safe_load_all(path.read_text()) if one]
    for replicas in content.get("replicas", ()):
        [one] = [one for one in found if one["metadata"]["name"] == replicas["name"] and "replicas" in one.get("spec", {})]
        one["spec"]["replicas"] = replicas["count"]
    for patch in content.get("patches", ()):
        _patch(found, patch)
    if "namespace" in content:
        for one in found:
            if one["kind"] not in _CLUSTER_WIDE:
                one["metadata"]["namespace"] = content["namespace"]
    return found


def _patch(found: list[Resource], patch: dict[str, Any]) -> None:
    change = yaml.safe_load(patch["patch"])
    target = patch.get("target") or {"kind": change["kind"], "name": change["metadata"]["name"]}
    matching = [one for one in found if one["kind"] == target["kind"] and one["metadata"]["name"] == target["name"]]
    if len(matching) != 1:
        raise ValueError(f"{target} matches {len(matching)} resources")
    if isinstance(change, dict):
        _merge(matching[0], change)
        return
    for operation in change:
        if operation["op"] != "replace":
            raise ValueError(f"unknown operation {operation['op']!r}")
        _replace(matching[0], operation["path"], operation["value"])


def _merge(into: dict[str, Any], change: dict[str, Any]) -> None:
    for name, value in change.items():
        if isinstance(value, dict) and isinstance(into.get(name), dict):
            _merge(into[name], value)
        else:
            into[name] = copy.deepcopy(value)


def _replace(one: Any, path: str, value: object) -> None:
    """Raises KeyError or IndexError if there is nothing to replace, as Kustomize fails, too."""
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]
    for part in parents:
        one = one[int(part)] if isinstance(one, list) else one[part]
    index = int(last) if isinstance(one, list) else last
    if isinstance(one, dict) and index not in one:
        raise KeyError(path)
    one[index] = copy.deepcopy(value)
