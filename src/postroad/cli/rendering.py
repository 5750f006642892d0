"""What generated commands print, and how they read their options."""

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any

import typer

from postroad.cli.output import from_json, print_json, show, show_once, show_one


def show_list(items: Sequence[Any], as_json: bool, columns: Sequence[str], *, wide: bool) -> None:
    """A table with these attributes, or keys of objects, as columns; every field of the first item if there are none."""
    import msgspec

    if not columns and items and isinstance(items[0], msgspec.Struct):
        columns = items[0].__struct_fields__
    head = [_title(one) for one in columns]
    show(list(items), as_json, head, lambda item: [_value(item, one) for one in columns], wide=wide)


def show_item(item: Any, as_json: bool, *, wide: bool = False) -> None:
    """A line for each field that has a value; fields of nested objects are shown like its own, lists of objects as tables."""
    found = _flat(item)
    lists = {name: value for name, value in found.items() if isinstance(value, list)}
    show_one(item, as_json, wide=wide, **{name: value for name, value in found.items() if name not in lists})
    usage = getattr(item, "usage", None)
    if usage is not None and not as_json:
        typer.echo(f"\n{usage_bar(usage.used, usage.allowed)}")
    for name, items in () if as_json else lists.items():
        typer.echo(f"\n{_title(name)}")
        show_list(items, False, (), wide=wide)


def usage_bar(used: int, allowed: int, width: int = 40) -> str:
    """The use of a limit as a bar: `[#####-----] 50 of 100 (50%)`."""
    filled = min(width, round(width * used / max(1, allowed)))
    return f"[{'#' * filled}{'-' * (width - filled)}] {used} of {allowed} ({used / max(1, allowed):.0%})"


def show_done(item: Any, as_json: bool, text: str) -> None:
    """A sentence, or the response as JSON."""
    if as_json:
        print_json(item)
    else:
        typer.echo(text)


def show_secret(made: Any, as_json: bool, attribute: str) -> None:
    """Print a secret alone on standard output, and what it belongs to on standard error."""
    record = next((value for name, value in _fields(made) if name != attribute and not isinstance(value, str)), None)
    known = "" if record is None else f" {getattr(record, 'id', '')} {getattr(record, 'name', '') or ''}".rstrip()
    show_once(made, as_json, getattr(made, attribute), f"created{known}")


def numbers(text: str | None) -> list[int] | None:
    """Numbers that are separated by commas."""
    try:
        return None if text is None else [int(one) for one in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 1000,5000") from None


def nullable(text: str | None, convert: Callable[[str], Any]) -> Any:
    """An option that can also remove a value: UNSET if it was not given, None for `none`."""
    from msgspec import UNSET

    try:
        return UNSET if text is None else None if text in ("none", "never") else convert(text)
    except ValueError as exc:
        raise typer.BadParameter(f"{text!r}: {exc}") from None


def unset_if_none(value: Any) -> Any:
    """The value of an option; UNSET if it was not given."""
    from msgspec import UNSET

    return UNSET if value is None else value


def json_value(text: str | None, name: str) -> Any:
    """JSON from the option, or from the file that it names; `-` is standard input."""
    if text is None:
        return None
    try:
        return from_json(text if text[:1] in '{["' else sys.stdin.read() if text == "-" else Path(text).read_text())
    except OSError as exc:
        raise typer.BadParameter(f"{name}: {exc}") from exc
    except ValueError as exc:
        raise typer.BadParameter(f"{name} is not JSON: {exc}") from exc


def _flat(item: Any) -> dict[str, object]:
    import msgspec

    found: dict[str, object] = {}
    for field in msgspec.structs.fields(item):
        name, value = field.name, getattr(item, field.name)
        if isinstance(value, msgspec.Struct):
            nested = _flat(value)
            found |= {f"{name}_{one}" if one in found else one: cell for one, cell in nested.items()}
        elif isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
            found[name] = value
        elif name.endswith("_at_ms"):
            found[name.removesuffix("_ms")] = timestamp(value)
        else:  # fields of any type are payloads, which are printed exactly
            found[name] = msgspec.json.encode(value).decode() if field.type is Any else _cell(value)
    return found


def timestamp(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _value(item: Any, column: str) -> str:
    return _cell(item.get(column) if isinstance(item, dict) else attrgetter(column)(item))


def _fields(item: Any) -> list[tuple[str, Any]]:
    return [(name, getattr(item, name)) for name in item.__struct_fields__]


def _title(column: str) -> str:
    return column.rpartition(".")[2].removesuffix("_at").replace("_", " ")


def _cell(value: Any) -> str:
    import msgspec

    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(one, str | int) for one in value):
        return " ".join(map(str, value))
    return msgspec.json.encode(value).decode()
