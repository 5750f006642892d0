"""Independence: the package imports the standard library, its declared dependencies and itself, nothing else."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def imported(module: Path) -> Iterator[str]:
    """Top-level names of all imports, also of those inside functions."""
    for node in ast.walk(ast.parse(module.read_text(), str(module))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").partition(".")[0]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", requirement)[0].lower() for requirement in requirements}


def test_the_package_imports_only_its_declared_dependencies() -> None:
    modules = list((ROOT / "src").rglob("*.py"))
    assert len(modules) > 10
    allowed = names(PROJECT["dependencies"]) | {"spark_jetstream"} | sys.stdlib_module_names

    assert {(module.name, name) for module in modules for name in imported(module) if name not in allowed} == set()


def test_tests_and_examples_do_not_import_postroad() -> None:
    modules = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    assert len(modules) > 10

    assert [module.name for module in modules if "postroad" in imported(module)] == []
    assert "postroad" not in names([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]])
