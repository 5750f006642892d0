"""Imports that no package may have, new ones included: what the layers of import-linter do not say."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions

import pytest

from tests.architecture.source import ROOT, modules

pytestmark = pytest.mark.xdist_group("source")  # which is parsed once per process


@cache
def imports() -> tuple[tuple[str, str], ...]:
    """Every import in the source: module path below `src/postroad`, and the imported module."""
    return tuple(_imports())


def _imports() -> Iterator[tuple[str, str]]:
    for module in modules():
        for node in ast.walk(module.tree):
            match node:
                case ast.Import(names=names):
                    yield from ((module.path, one.name) for one in names)
                case ast.ImportFrom(module=str(name)):
                    yield module.path, name


def importers_of(*packages: str) -> set[str]:
    """First folder of every module that imports one of these packages."""
    return {path.partition("/")[0] for path, name in imports() if name.split(".")[0] in packages}


def test_nothing_imports_nats_py() -> None:
    assert importers_of("nats") == set()


def test_only_the_pipeline_imports_spark() -> None:
    assert importers_of("pyspark", "pyarrow", "pandas") == {"pipeline"}


def test_the_sdk_shares_only_the_kernel_and_the_api_with_the_server() -> None:
    allowed = ("postroad.api", "postroad.client", "postroad.kernel")
    found = [
        (path, name)
        for path, name in imports()
        if path.startswith("client/") and name.startswith("postroad.") and not name.startswith(allowed)
    ]
    assert found == []


def test_the_api_and_the_contracts_depend_on_the_kernel_only() -> None:
    allowed = ("postroad.api", "postroad.contracts", "postroad.kernel")
    found = [
        (path, name)
        for path, name in imports()
        if path.startswith(("api/", "contracts/")) and name.startswith("postroad") and not name.startswith(allowed)
    ]
    assert found == []


def test_event_types_and_settings_load_without_the_service() -> None:
    """The pipeline and the settings import these modules of every capability."""
    light = [
        (path, name)
        for path, name in imports()
        if path.endswith(("/events.py", "/settings.py")) and not path.startswith(("pipeline/", "cli/", "client/"))
    ]
    found = [
        (path, name)
        for path, name in light
        if name.startswith("postroad") and not name.startswith(("postroad.kernel", "postroad.api"))
    ]
    assert light and found == []


def test_packages_that_are_imported_are_installed_to_run_postroad() -> None:
    """`make run` installs `requirements.lock` alone, tests have the packages of development too."""
    locked = set(re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    ours = {"postroad", "spark_jetstream"}
    imported = {name.split(".")[0] for _, name in imports()} - ours - set(sys.stdlib_module_names)
    providers = packages_distributions()
    missing = [name for name in imported if not locked & {_normalized(one) for one in providers.get(name, ())}]
    assert len(imported) > 10 and missing == []


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
