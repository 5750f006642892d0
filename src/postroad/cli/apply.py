"""`postroad apply`, `postroad diff`, `postroad export`: resources declared in files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import Yes, confirm, connected

if TYPE_CHECKING:
    from postroad.client import Postroad
    from postroad.declarations.application import Plan

DRIFT = 6  # exit code of `postroad diff`

Files = Annotated[
    list[Path],
    typer.Option("--file", "-f", help="File or directory with resources: TOML, JSON or YAML. Can be repeated.", exists=True),
]
Name = Annotated[
    str | None,
    typer.Option("--name", help="Name under which created resources are recorded; default: `name` of the files, or `default`."),
]
Prune = Annotated[
    bool, typer.Option("--prune", help="Also delete what an earlier apply of the same name created, if no file has it now.")
]


def apply(
    file: Annotated[
        list[Path] | None,
        typer.Option("--file", "-f", help="File or directory with resources: TOML, JSON or YAML. Can be repeated.", exists=True),
    ] = None,
    name: Name = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the differences.")] = False,
    prune: Prune = False,
    secrets: Annotated[
        Path | None,
        typer.Option("--secrets", help="Append the texts of new keys and secrets to this file instead of standard output."),
    ] = None,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of the files, for editors, and exit.")] = False,
    yes: Yes = False,
) -> None:
    """Make the resources of the tenant those of files; show the differences first. Repeating it changes nothing.

    What no file has is left alone, unless `--prune` and an earlier apply of the same name created it. After an error, run it
    again: it continues with what is missing.
    """
    if schema:
        _print_schema()
        return
    if not file:
        raise typer.BadParameter("name the files with --file")
    with connected() as client:
        from postroad.declarations.application import execute

        made = _plan(client, file, name, prune=prune)
        _show(made)
        if made.changes and not dry_run:
            confirm(f"Make {len(made.changes)} changes?", yes, err=True)
            done: list[object] = []
            try:
                execute(client, made, done.append, lambda resource, text: _hand_out(secrets, resource, text))
            except BaseException:
                typer.echo(f"made {len(done)} of {len(made.changes)} changes; run it again to continue", err=True)
                raise
            typer.echo(f"made {len(done)} changes")


def diff(file: Files, name: Name = None, prune: Prune = False) -> None:
    """Show how the server differs from files. The exit code is 6 if it does, 0 if not."""
    with connected() as client:
        made = _plan(client, file, name, prune=prune)
        _show(made)
    if made.changes:
        raise typer.Exit(DRIFT)


def export(
    tenants: Annotated[bool, typer.Option("--tenants", help="Also the tenants themselves. Needs a platform key.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of YAML.")] = False,
) -> None:
    """Print the resources of the tenant as a file for `postroad apply`.

    Texts of keys, secrets and values of headers are not in it.
    """
    with connected() as client:
        import json

        import yaml  # type: ignore[import-untyped]

        from postroad.declarations.application import export as read_all
        from postroad.declarations.documents import written

        found = written(read_all(client, tenants=tenants))
        as_yaml = yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=120)
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False) if as_json else as_yaml, nl=as_json)


def _plan(client: "Postroad", files: list[Path], name: str | None, *, prune: bool) -> "Plan":
    from postroad.declarations.application import DEFAULT_NAME, make_plan
    from postroad.declarations.documents import read_documents

    document = read_documents(files, client.keys.whoami().tenant)
    return make_plan(client, name or document.name or DEFAULT_NAME, document.resources, prune=prune)


def _show(made: "Plan") -> None:
    for change in made.changes:
        typer.echo(str(change))
    if not made.changes:
        typer.echo("no differences")


def _hand_out(file: Path | None, resource: str, text: str) -> None:
    """Write a text that the server does not show again. A file is for its owner only."""
    if file is None:
        typer.echo(f"{resource} {text}")
        return
    import os

    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as out:
        out.write(f"{resource} {text}\n")
        out.flush()
        os.fsync(out.fileno())


def _print_schema() -> None:
    import json

    from postroad.declarations.documents import json_schema

    typer.echo(json.dumps(json_schema(), indent=2))
