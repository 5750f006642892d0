"""Writes the SDK's and the CLI's generated modules (`make generate`). With --check it fails if they are stale."""

import subprocess
import sys
import tempfile
from pathlib import Path

from postroad.codegen import cli, sdk
from postroad.container import described_assembly, parameter_schemas

SOURCE = Path(__file__).parent.parent / "src" / "postroad"


def generated() -> dict[str, str]:
    """Path below `src/postroad` and text of every generated module."""
    assembly = described_assembly()
    files = {}
    namespaces = sdk.namespaces(assembly.routes)
    for namespace, routes in namespaces.items():
        files[f"client/generated/{sdk.module_name(namespace)}.py"] = sdk.namespace_module(namespace, routes)
    new = [one for one in namespaces if "." not in one and _handwritten("client", sdk.module_name(one)) is None]
    files["client/generated/__init__.py"] = sdk.index_module(new)
    files["client/errors.py"] = sdk.errors_module(assembly.errors)
    groups = cli.groups(assembly.routes)
    texts = {name: text for capability in assembly.capabilities for name, text in capability.cli_groups.items()}
    modules = {group: cli.variable(group) for group in groups}
    handwritten = {group: _handwritten("cli", name) for group, name in modules.items()}
    for group, routes in groups.items():
        help_text = texts.get(group, f"{group.capitalize()}.")
        module = cli.group_module(group, routes, handwritten[group], help_text, parameter_schemas(assembly))
        files[f"cli/generated/{modules[group]}.py"] = module
    new = [group for group in groups if handwritten[group] is None]
    files["cli/generated/__init__.py"] = cli.index_module(modules, new)
    return files


def _handwritten(package: str, name: str) -> str | None:
    """The module with hand-written code for this namespace or group, if there is one."""
    return f"postroad.{package}.{name}" if (SOURCE / package / f"{name}.py").exists() else None


def formatted(files: dict[str, str]) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        config = str(SOURCE.parent.parent / "pyproject.toml")
        ruff = [str(Path(sys.executable).with_name("ruff"))]
        subprocess.run([*ruff, "check", "-q", "--fix", "--select", "I,F401", "--config", config, folder], check=True)
        subprocess.run([*ruff, "format", "-q", "--config", config, folder], check=True)
        return {name: (Path(folder) / name).read_text() for name in files}


def main() -> None:
    files = formatted(generated())
    stale = [name for name, text in files.items() if not (SOURCE / name).exists() or (SOURCE / name).read_text() != text]
    folders = ("client/generated", "cli/generated")
    left = [path for folder in folders for path in (SOURCE / folder).glob("*.py") if f"{folder}/{path.name}" not in files]
    if "--check" in sys.argv:
        if stale or left:
            raise SystemExit(f"stale, run `make generate`: {', '.join([*stale, *map(str, left)])}")
        return
    for name in stale:
        (SOURCE / name).parent.mkdir(parents=True, exist_ok=True)
        (SOURCE / name).write_text(files[name])
        print(f"wrote src/postroad/{name}")
    for path in left:
        path.unlink()
        print(f"removed {path.name}")


if __name__ == "__main__":
    main()
