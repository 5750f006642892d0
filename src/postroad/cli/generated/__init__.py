"""Generated commands. Generated from the route table by `make generate`; do not edit."""

import typer

from postroad.cli.generated import tasks

MODULES = (tasks,)

GROUPS: dict[str, typer.Typer] = {}
