"""Generates the CLI's ordinary commands: one function per route that names a command, on top of the SDK."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from types import UnionType
from typing import Any, Literal, get_args, get_origin

import msgspec

from postroad.codegen.parameters import Imports, Parameter, contains, is_paged, merge_roots, page_size_of, parameters_of
from postroad.codegen.sdk import docstring
from postroad.http.routing import Command, Route


def groups(routes: Iterable[Route]) -> dict[str, list[Route]]:
    """Routes by the command group that their command belongs to; `` for commands of the root."""
    found: dict[str, list[Route]] = {}
    for route in merge_roots(one for one in routes if one.cli is not None):
        if not route.sdk:
            raise TypeError(f"a command needs an SDK method: {route.method} {route.path}")
        found.setdefault(_command(route).name.rpartition(" ")[0], []).append(route)
    return found


def variable(group: str) -> str:
    return group.replace(" ", "_").replace("-", "_") or "root"


def group_module(
    group: str,
    routes: Sequence[Route],
    handwritten: str | None,
    help_text: str,
    schemas: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """`handwritten` is the module that defines the group, if it has commands of its own. `schemas` describe path parameters."""
    imports = Imports()
    imports.add("typing", "Annotated")
    imports.add("postroad.cli.output", "AsJson", "connected")
    functions = [_function(group, route, imports, schemas or {}) for route in routes]
    name = variable(group)
    if handwritten is not None:
        imports.add(handwritten, name)
        declaration = []
    else:
        declaration = [f"{name} = typer.Typer(help={help_text!r}, no_args_is_help=True)".replace("'", '"'), "", ""]
    standard, ours = (
        [line for line in imports.lines() if not line.startswith("from postroad")],
        [line for line in imports.lines() if line.startswith("from postroad")],
    )
    return "\n".join(
        [
            f'"""Commands of `postroad {group}`. Generated from the route table by `make generate`; do not edit."""',
            "",
            *(line for line in standard if line),
            "",
            "import typer",
            "",
            *ours,
            "",
            "",
            *declaration,
            "\n\n\n".join(functions),
            "",
        ]
    )


def _function(group: str, route: Route, imports: Imports, schemas: Mapping[str, Mapping[str, Any]]) -> str:
    command = _command(route)
    word = command.name.rpartition(" ")[2]
    parameters = [_described(one, schemas) for one in _parameters(route)]
    arguments = [_argument(one, command, imports) for one in parameters if one.required]
    arguments += [_option(one, command, imports) for one in parameters if not one.required]
    if is_paged(route) and page_size_of(route):
        arguments.append(f'limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = {command.limit}')
    if command.confirm:
        imports.add("postroad.cli.output", "Yes", "confirm")
        arguments.append("yes: Yes = False")
    if route.response is not None:
        arguments.append("as_json: AsJson = False")
        if is_paged(route) or not (command.shown_once or command.done):
            imports.add("postroad.cli.output", "Wide")
            arguments.append("wide: Wide = False")
    else:
        imports.add("postroad.cli.output", "AsJson")
    name = f"{word}_{variable(group)}".replace("-", "_")
    lines = [
        f'@{variable(group)}.command("{word}")',
        f"def {name}({', '.join(arguments)}) -> None:",
        f'    """{_docstring(route)}"""',
        f"    with connected({'anonymous=True' if command.anonymous else ''}) as client:",
        *(f"        {line}" for line in _statements(route, command, parameters, imports)),
    ]
    return "\n".join(lines)


def _command(route: Route) -> Command:
    if route.cli is None:
        raise TypeError("the route has no command")
    return route.cli


def _described(one: Parameter, schemas: Mapping[str, Mapping[str, Any]]) -> Parameter:
    """The parameter with the description of its resource kind, if that has one."""
    declared = schemas.get(one.name, {}).get("description") if one.part == "path" and one.required else None
    return dataclasses.replace(one, description=declared) if declared else one


def _docstring(route: Route) -> str:
    return docstring(f"{route.summary}.", route.description)


def _statements(route: Route, command: Command, parameters: Sequence[Parameter], imports: Imports) -> list[str]:
    lines = []
    if command.confirm:
        lines.append(f"confirm(f{command.confirm!r}, yes)".replace("'", '"'))
    call = f"client.{route.sdk}({_call_arguments(route, parameters, imports)})"
    if is_paged(route):
        imports.add("postroad.cli.rendering", "show_list")
        if page_size_of(route):
            imports.add("itertools", "islice")
            call = f"islice({call}, limit)"
        return [*lines, f"show_list(list({call}), as_json, {_columns(command.columns)}, wide=wide)"]
    if command.shown_once:
        imports.add("postroad.cli.rendering", "show_secret")
        return [*lines, f'show_secret({call}, as_json, "{command.shown_once}")']
    if route.response is not None and command.done:
        imports.add("postroad.cli.rendering", "show_done")
        return [*lines, f"show_done({call}, as_json, f{command.done!r})".replace("'", '"')]
    if route.response is not None:
        imports.add("postroad.cli.rendering", "show_item")
        return [*lines, f"show_item({call}, as_json, wide=wide)"]
    return [*lines, call, f"typer.echo(f{command.done or 'done'!r})".replace("'", '"')]


def _columns(columns: Sequence[str]) -> str:
    return "(" + ", ".join(f'"{one}"' for one in columns) + ("," if len(columns) == 1 else "") + ")"


def _call_arguments(route: Route, parameters: Sequence[Parameter], imports: Imports) -> str:
    positional = [_converted(one, imports) for one in parameters if one.required and one.part != "query"]
    keywords = [f"{one.name}={_converted(one, imports)}" for one in parameters if not one.required or one.part == "query"]
    if is_paged(route) and page_size_of(route):
        keywords.append("page_size=min(limit, 1000)")
    return ", ".join([*positional, *keywords])


def _argument(one: Parameter, command: Command, imports: Imports) -> str:
    kind = _cli_type(one, imports)
    if _is_list(one) and one.name in dict(command.options):  # several words are clearer as options than as arguments
        return f'{one.name}: Annotated[{kind}, typer.Option("--{_flag(one, command)}", {_help(one)})]'
    return f"{one.name}: Annotated[{kind}, typer.Argument({_help(one)})]"


def _option(one: Parameter, command: Command, imports: Imports) -> str:
    flag = _flag(one, command)
    kind = _cli_type(one, imports)
    described = ", ".join(filter(None, [f'"--{flag}/--no-{flag}"' if _is_switch(one) else f'"--{flag}"', _help(one)]))
    if one.type is bool and not _is_switch(one):
        return f"{one.name}: Annotated[bool, typer.Option({described})] = False"
    return f"{one.name}: Annotated[{kind} | None, typer.Option({described})] = None"


def _is_switch(one: Parameter) -> bool:
    """True if leaving the option out differs from saying no."""
    return one.type is bool and one.default is not False


def _flag(one: Parameter, command: Command) -> str:
    if one.name in dict(command.options):
        return dict(command.options)[one.name]
    if one.wire in ("from", "to") and contains(one.type, datetime):  # Python reserves `from`
        return one.wire
    name = one.name.removesuffix("_seconds") if _is_duration(one) else one.name
    if _is_list(one) and get_args(one.type)[0] is not int:
        name = name.removesuffix("s")
    return name.replace("_", "-").strip("-")


def _help(one: Parameter) -> str:
    text = one.description.replace('"', "'")
    if _is_duration(one):
        text = f"{text} Such as `90s`, `12h`, `7d`.".strip()
    elif contains(one.type, datetime):
        text = f"{text} A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`.".strip()
    if one.nullable:
        text = f"{text} `none` removes it.".strip()
    return f'help="{text}"' if text else ""


def _is_duration(one: Parameter) -> bool:
    """True for spans that people type as `30d`; other settings keep their unit in the name."""
    return one.type is int and one.name.endswith(("_in_seconds", "grace_seconds"))


def _parameters(route: Route) -> list[Parameter]:
    """The parameters of a command. What may be one text or several is an option that can be repeated."""
    return [
        dataclasses.replace(one, type=tuple[str, ...]) if get_origin(one.type) is UnionType and _is_text_or_texts(one) else one
        for one in parameters_of(route)
    ]


def _is_text_or_texts(one: Parameter) -> bool:
    return {get_origin(kind) or kind for kind in get_args(one.type)} in ({str, tuple}, {str, list})


def _is_list(one: Parameter) -> bool:
    return get_origin(one.type) in (list, tuple)


def _cli_type(one: Parameter, imports: Imports) -> str:
    """The type that typer parses: texts for what is converted afterwards."""
    kind: Any = one.type
    if _is_list(one):
        item = get_args(kind)[0]
        if isinstance(item, type) and issubclass(item, Enum):  # typer takes no list of literals
            return f"list[{imports.name_of(item)}]"
        return "str" if item is int else f"list[{_cli_name(item, imports)}]"
    if _is_duration(one) or (one.nullable and kind is not bool):  # also `none`
        return "str"
    return _cli_name(kind, imports)


def _cli_name(kind: Any, imports: Imports) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum):
        imports.add("typing", "Literal")
        return _literal([member.value for member in kind])
    if get_origin(kind) is Literal:
        imports.add("typing", "Literal")
        values = get_args(kind)
        return "int" if all(isinstance(value, int) for value in values) else _literal(values)
    return kind.__name__ if kind in (str, int, float, bool) else "str"


def _literal(values: Sequence[object]) -> str:
    return "Literal[" + ", ".join(f'"{value}"' for value in values) + "]"


def _converted(one: Parameter, imports: Imports) -> str:
    kind: Any = one.type
    if one.nullable:
        return _converted_nullable(one, imports)
    if _is_list(one) and get_args(kind)[0] is int:
        imports.add("postroad.cli.rendering", "numbers")
        return f"numbers({one.name})"
    if _is_list(one) and isinstance(get_args(kind)[0], type) and issubclass(get_args(kind)[0], msgspec.Struct):
        imports.add("postroad.cli.rendering", "json_value")
        return f'[json_value(text, "{one.name}") for text in {one.name} or ()] or None'
    if _is_duration(one):
        imports.add("postroad.cli.times", "seconds")
        return f"seconds({one.name})"
    if contains(kind, datetime):
        direction = "ago" if one.part == "query" else "from_now"
        imports.add("postroad.cli.times", direction)
        return f"{direction}({one.name}) if {one.name} else None"
    if _cli_type(one, imports) == "str" and kind is not str:
        imports.add("postroad.cli.rendering", "json_value")
        return f'json_value({one.name}, "{one.name}")'
    return one.name


def _converted_nullable(one: Parameter, imports: Imports) -> str:
    """UNSET if the option was not given, None if it is `none`."""
    kind: Any = one.type
    if kind is bool or _is_list(one):
        imports.add("postroad.cli.rendering", "unset_if_none")
        return f"unset_if_none({one.name})"
    imports.add("postroad.cli.rendering", "nullable")
    if _is_duration(one) or contains(kind, datetime):
        convert = "seconds" if _is_duration(one) else "ago" if one.part == "query" else "from_now"
        imports.add("postroad.cli.times", convert)
    elif kind in (int, float) or (get_origin(kind) is Literal and all(isinstance(value, int) for value in get_args(kind))):
        convert = "float" if kind is float else "int"
    elif kind is str or get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        convert = "str"
    else:
        imports.add("postroad.cli.rendering", "json_value")
        convert = f'lambda text: json_value(text, "{one.name}")'
    return f"nullable({one.name}, {convert})"


def index_module(modules: Iterable[str], new: Mapping[str, str]) -> str:
    """`modules`: the generated modules; `new`: help text of the groups that only the generated module defines."""
    names = "\n".join(f'    "{group}": "{text}",' for group, text in new.items())
    return "\n".join(
        [
            '"""Generated commands. Generated from the route table by `make generate`; do not edit."""',
            "",
            f"MODULES = frozenset({sorted(modules)})".replace("'", '"'),
            "",
            "GROUPS: dict[str, str] = {",
            names,
            "}",
            "",
        ]
    )
