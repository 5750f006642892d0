"""`postroad profiles …`: named servers and keys."""

import sys
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, exit_on_error, show
from postroad.cli.profiles import (
    DEFAULT_URL,
    Profile,
    ProfileError,
    environment_key,
    environment_url,
    is_readable_by_others,
    profile_names,
    profiles_path,
    read_profiles,
    write_profiles,
)

profiles = typer.Typer(
    help="Named servers and keys, stored in a file that only you can read.",
    epilog="`postroad --profile NAME …` uses a profile once; POSTROAD_PROFILE or `profiles use` sets the default.",
    no_args_is_help=True,
)


Name = Annotated[str, typer.Argument(help="The profile's name.", autocompletion=profile_names)]


@profiles.command("list")
def list_profiles(as_json: AsJson = False, wide: Wide = False) -> None:
    """List profiles. Only the beginning of each key is shown."""
    with exit_on_error():
        found = read_profiles()
        if is_readable_by_others(profiles_path()):
            typer.echo(f"postroad: other users can read {profiles_path()}; run: chmod 600 {profiles_path()}", err=True)
        rows = [
            {"name": name, "current": name == found.current, "url": one.url, "key": one.masked_key, "tenant": one.tenant}
            for name, one in found.by_name.items()
        ]
        head = ("", "name", "url", "key", "tenant")
        show(
            rows,
            as_json,
            head,
            lambda row: ["*" if row["current"] else "", row["name"], row["url"], row["key"], row["tenant"] or ""],
            wide=wide,
        )


@profiles.command("add")
def add_profile(
    name: Annotated[str, typer.Argument(help="The profile's name.")],
    url: Annotated[
        str | None, typer.Option(help=f"The server. (env: POSTROAD_URL, default {DEFAULT_URL})", show_default=False)
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="The tenant that a platform key acts for.")] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(help="Read the key from this file: a key alone, or var/credentials.toml.", dir_okay=False, exists=True),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(help="Certificates to verify the server with (PEM).", dir_okay=False, exists=True, resolve_path=True),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Take the platform key from var/credentials.toml.")] = False,
    use: Annotated[bool, typer.Option("--use", help="Make it the default profile. The first profile always is.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing profile of this name.")] = False,
) -> None:
    """Add a profile. The key is read from --key-file, POSTROAD_KEY, a pipe or a prompt, never from an argument."""
    with exit_on_error():
        known = read_profiles()
        if name in known.by_name and not replace:
            raise ProfileError(f"the profile {name!r} exists; --replace replaces it")
        key = _key(key_file, admin=admin)
        added = Profile(url or environment_url() or DEFAULT_URL, key, tenant, str(ca_file) if ca_file else None)
        changed = known.with_profile(name, added, is_current=use)
        write_profiles(changed)
        typer.echo(f"added {name}: {added.masked_key} at {added.url}" + (", the default" if changed.current == name else ""))


@profiles.command("use")
def use_profile(name: Name) -> None:
    """Set the default profile."""
    with exit_on_error():
        write_profiles(read_profiles().with_default(name))
        typer.echo(f"{name} is the default profile")


@profiles.command("remove")
def remove_profile(name: Name, yes: Yes = False) -> None:
    """Remove a profile. Its key stays valid; `postroad keys delete` revokes a key."""
    with exit_on_error():
        rest = read_profiles().without(name)
        confirm(f"Remove the profile {name}?", yes)
        write_profiles(rest)
        typer.echo(f"removed {name}")


def _key(key_file: Path | None, *, admin: bool) -> str:
    if key_file is not None:
        return _key_in(key_file, "admin_key" if admin else "tenant_key")
    if admin:
        raise ProfileError("--admin needs --key-file var/credentials.toml")
    found = environment_key()
    if found is not None:
        return found
    if _is_terminal():
        return str(typer.prompt("Key", hide_input=True, err=True)).strip()
    return sys.stdin.readline().strip()


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _key_in(key_file: Path, name: str) -> str:
    try:
        text = key_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ProfileError(f"{key_file} cannot be read") from exc
    if text.startswith("pr_"):
        return text
    try:
        return str(tomllib.loads(text)[name])
    except (tomllib.TOMLDecodeError, KeyError) as exc:
        raise ProfileError(f"{key_file} contains neither a key alone nor {name}") from exc
