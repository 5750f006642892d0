"""A command group that imports a command when it is used: help, completion and other commands do not wait for it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer.main
from typer._click import Command, Context, HelpFormatter
from typer._click.shell_completion import CompletionItem
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class Entry:
    """`attribute` of the first of `modules` is a `Typer` or a function; the other modules add commands to it.

    `help` repeats the first paragraph of its help text.
    """

    name: str
    panel: str
    help: str
    modules: tuple[str, ...]
    attribute: str

    def load(self) -> Command:
        loaded = [import_module(module) for module in self.modules]
        found: Any = getattr(loaded[0], self.attribute)
        if not isinstance(found, typer.Typer):
            app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            app.command(self.name)(found)
            return typer.main.get_command(app)
        command = typer.main.get_group(found)
        command.name = self.name
        return command

    def summary(self) -> Command:
        """A command with the name and the help text only."""
        return TyperCommand(self.name, help=self.help, rich_help_panel=self.panel)


class LazyGroup(TyperGroup):
    """A subclass sets `entries`. `commands` has the summaries of those that are not loaded."""

    entries: ClassVar[Mapping[str, Entry]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: entry.summary() for name, entry in self.entries.items()}
        self._loaded: dict[str, Command] = {}

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        if cmd_name not in self._loaded and cmd_name in self.entries:
            self._loaded[cmd_name] = self.entries[cmd_name].load()
        return self._loaded.get(cmd_name)

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        overview = TyperGroup(name=self.name, commands=dict(self.commands), params=self.params, help=self.help)
        overview.format_help(ctx, formatter)

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.commands if name.startswith(incomplete)]
        return [
            *(CompletionItem(name, help=self.entries[name].help) for name in names),
            *Command.shell_complete(self, ctx, incomplete),
        ]


def lazy_group(listed: Iterable[Entry]) -> type[LazyGroup]:
    return type("LazyGroup", (LazyGroup,), {"entries": {entry.name: entry for entry in listed}})
