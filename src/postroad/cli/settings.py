"""`postroad settings …`: settings of a tenant and the defaults of the platform."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.output import AsJson, Wide, connected, from_json, show, to_json

if TYPE_CHECKING:
    from postroad.client import EffectiveSettings

settings = typer.Typer(
    help="Run-time settings of the tenant, or the platform's defaults. Needs the scope admin.",
    no_args_is_help=True,
)

Platform = Annotated[bool, typer.Option("--platform", help="Use the platform's defaults. Needs a platform key.")]


@settings.command("show")
def show_settings(platform: Platform = False, as_json: AsJson = False, wide: Wide = False) -> None:
    """Show the effective settings, and which of them are chosen or defaults."""
    with connected() as client:
        _show(client.settings.get(platform=platform), as_json, wide)


@settings.command("set")
def set_settings(
    pairs: Annotated[
        list[str], typer.Argument(metavar="NAME=VALUE...", help="Settings, such as `max_queues=500 audit_mode=jobs_only`.")
    ],
    platform: Platform = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Change settings; the others stay unchanged. Takes effect on every gateway in less than a second."""
    chosen = dict(_pair(text) for text in pairs)
    with connected() as client:
        _show(client.settings.update(platform=platform, **chosen), as_json, wide)


@settings.command("unset")
def unset_settings(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Settings to reset.")],
    platform: Platform = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Reset settings to their defaults."""
    fields = [_field_name(name) for name in names]
    with connected() as client:
        _show(client.settings.reset(*fields, platform=platform), as_json, wide)


def _show(found: "EffectiveSettings", as_json: bool, wide: bool) -> None:
    from msgspec.structs import fields

    rows = [
        (field.name, getattr(found.settings, field.name), "chosen" if field.encode_name in found.chosen else "default")
        for field in fields(found.settings)
    ]
    shown: Any = found if as_json else rows
    show(
        shown, as_json, ("name", "value", "source"), lambda row: [row[0], to_json(row[1]).decode().strip('"'), row[2]], wide=wide
    )


def _pair(text: str) -> tuple[str, Any]:
    name, mark, value = text.partition("=")
    if not mark or not value:
        raise typer.BadParameter(f"{text!r} is not a setting of the form NAME=VALUE")
    if value == "null":
        raise typer.BadParameter(f"a setting cannot be null; `postroad settings unset {name}` resets it to the default")
    try:
        return _field_name(name), from_json(value)
    except ValueError:
        return _field_name(name), value


def _field_name(name: str) -> str:
    """The SDK's name of a setting. Accepts dashes and the API's camelCase name. Raises BadParameter."""
    from msgspec.structs import fields

    from postroad.client import TenantSettings

    names = {one.encode_name: one.name for one in fields(TenantSettings)}
    field = names.get(name, name.replace("-", "_"))
    if field not in names.values():
        raise typer.BadParameter(f"unknown setting {name!r}; the settings are {', '.join(names.values())}")
    return field
