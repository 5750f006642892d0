"""`postroad profiles …`: servers and keys by a name of your own."""

import sys
import tomllib
from pathlib import Path
from typing import Annotated

import typer

from postroad.cli.output import AsJson, Yes, confirm, exit_on_error, show
from postroad.cli.profiles import (
    DEFAULT_URL,
    Profile,
    ProfileFault,
    environment_key,
    environment_url,
    is_seen_by_others,
    profiles_path,
    read_profiles,
    write_profiles,
)

profiles = typer.Typer(
    help="Servers and keys by a name of your own, in a file that only you may read.",
    epilog="`postroad --profile NAME …` uses one, POSTROAD_PROFILE or `profiles use` makes one the default.",
    no_args_is_help=True,
)


def profile_names() -> list[str]:
    """For the shell's completion, which shows no faults."""
    try:
        return sorted(read_profiles().by_name)
    except ProfileFault:
        return []


Name = Annotated[str, typer.Argument(help="The profile's name.", autocompletion=profile_names)]


@profiles.command("list")
def list_profiles(as_json: AsJson = False) -> None:
    """All profiles; of a key, only its beginning."""
    with exit_on_error():
        found = read_profiles()
        if is_seen_by_others(profiles_path()):
            typer.echo(f"postroad: others can read {profiles_path()}: chmod 600 it", err=True)
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
        )


@profiles.command("add")
def add_profile(
    name: Annotated[str, typer.Argument(help="The profile's name.")],
    url: Annotated[
        str | None, typer.Option(help=f"The server. (env: POSTROAD_URL, default {DEFAULT_URL})", show_default=False)
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="The tenant that a platform key is to act for.")] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="Read the key from this file; var/credentials.toml will do.", dir_okay=False, exists=True)
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Of var/credentials.toml, the platform's key.")] = False,
    use: Annotated[bool, typer.Option("--use", help="Make it the default. The first one is.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the profile of this name.")] = False,
) -> None:
    """Keep a server and a key. The key comes from --key-file, POSTROAD_KEY, a pipe or a prompt, never from the command line."""
    with exit_on_error():
        known = read_profiles()
        if name in known.by_name and not replace:
            raise ProfileFault(f"there is a profile {name!r}; --replace replaces it")
        made = Profile(url or environment_url() or DEFAULT_URL, _key(key_file, admin=admin), tenant)
        changed = known.with_profile(name, made, is_current=use)
        write_profiles(changed)
        typer.echo(f"added {name}: {made.masked_key} at {made.url}" + (", the default" if changed.current == name else ""))


@profiles.command("use")
def use_profile(name: Name) -> None:
    """Make a profile the default."""
    with exit_on_error():
        write_profiles(read_profiles().using(name))
        typer.echo(f"using {name}")


@profiles.command("remove")
def remove_profile(name: Name, yes: Yes = False) -> None:
    """Forget a profile. Its key stays good: `postroad keys delete` is for that."""
    with exit_on_error():
        rest = read_profiles().without(name)
        confirm(f"Remove the profile {name}?", yes)
        write_profiles(rest)
        typer.echo(f"removed {name}")


def _key(key_file: Path | None, *, admin: bool) -> str:
    if key_file is not None:
        return _key_in(key_file, "admin_key" if admin else "tenant_key")
    if admin:
        raise ProfileFault("--admin goes with --key-file var/credentials.toml")
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
        raise ProfileFault(f"{key_file} cannot be read") from exc
    if text.startswith("pr_"):
        return text
    try:
        return str(tomllib.loads(text)[name])
    except (tomllib.TOMLDecodeError, KeyError) as exc:
        raise ProfileFault(f"{key_file} has neither a key alone nor a {name}") from exc
