"""`postroad settings …`: settings that change while Postroad runs."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.output import AsJson, Wide, connected, from_json, show, to_json

if TYPE_CHECKING:
    from postroad.client import EffectiveSettings

settings = typer.Typer(
    help="Settings that change while Postroad runs: the tenant's, or the platform's defaults. Needs the scope admin.",
    no_args_is_help=True,
)

Platform = Annotated[bool, typer.Option("--platform", help="The defaults of all tenants; takes a platform key.")]


@settings.command("show")
def show_settings(platform: Platform = False, as_json: AsJson = False, wide: Wide = False) -> None:
    """What holds, and what of it was chosen here."""
    with connected() as client:
        _show(client.settings.get(platform=platform), as_json, wide)


@settings.command("set")
def set_settings(
    pairs: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Such as `max_queues=500 audit_mode=jobs_only`.")],
    platform: Platform = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Choose settings; the others stay. It counts everywhere in under a second."""
    chosen = dict(_pair(text) for text in pairs)
    with connected() as client:
        _show(client.settings.update(platform=platform, **chosen), as_json, wide)


@settings.command("unset")
def unset_settings(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Settings that are to have their default again.")],
    platform: Platform = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Go back to the default."""
    known = [_known(name) for name in names]
    with connected() as client:
        _show(client.settings.reset(*known, platform=platform), as_json, wide)


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
        raise typer.BadParameter(f"a setting is NAME=VALUE, not {text!r}")
    if value == "null":
        raise typer.BadParameter(f"`postroad settings unset {name}` goes back to the default")
    try:
        return _known(name), from_json(value)
    except ValueError:
        return _known(name), value


def _known(name: str) -> str:
    """As the SDK calls it; dashes and the API's own spelling will do."""
    from msgspec.structs import fields

    from postroad.client import TenantSettings

    names = {field.encode_name: field.name for field in fields(TenantSettings)}
    wanted = names.get(name, name.replace("-", "_"))
    if wanted not in names.values():
        raise typer.BadParameter(f"there is no setting {name!r}; there are {', '.join(names.values())}")
    return wanted
