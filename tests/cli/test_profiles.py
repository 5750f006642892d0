"""Profiles: the file, the precedence of environment and profile, and the commands."""

import stat
from pathlib import Path

import pytest

from postroad.cli import profile_commands
from postroad.cli.profiles import (
    DEFAULT_URL,
    GlobalOptions,
    Profile,
    ProfileError,
    Profiles,
    Target,
    profile_names,
    profiles_path,
    read_profiles,
    resolve_target,
    write_profiles,
)
from tests.cli.shell import Shell
from tests.installation import Installation

KEY = "pr_live_8fK2" + "x" * 50
OTHER_KEY = "pr_admin_9aB3" + "y" * 50


@pytest.fixture
def home(tmp_path: Path) -> Path:
    local, prod = Profile("http://127.0.0.1:1", KEY), Profile("https://prod", OTHER_KEY, "acme")
    path = profiles_path({"XDG_CONFIG_HOME": str(tmp_path)})
    write_profiles(Profiles("local", {"local": local, "prod": prod}), path)
    return tmp_path


def chosen(home: Path, profile: str | None = None, tenant: str | None = None, **environ: str) -> Target:
    return resolve_target(GlobalOptions(profile, tenant), {"XDG_CONFIG_HOME": str(home), **environ})


# The file


def test_the_file_is_private_and_read_back_unchanged(home: Path) -> None:
    path = profiles_path({"XDG_CONFIG_HOME": str(home)})
    assert path == home / "postroad" / "profiles.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = read_profiles(path)
    assert (found.current, list(found.by_name)) == ("local", ["local", "prod"])
    assert found.get("prod") == Profile("https://prod", OTHER_KEY, "acme")


def test_the_default_location_is_below_the_home_directory() -> None:
    assert profiles_path({}) == Path.home() / ".config" / "postroad" / "profiles.toml"


def test_a_missing_file_means_no_profiles(tmp_path: Path) -> None:
    assert read_profiles(tmp_path / "none") == Profiles()


@pytest.mark.parametrize("text", ["not = [toml", 'profiles = "x"', '[profiles.a]\nurl = "http://x"', "[profiles.a]\nkey = 1"])
def test_an_invalid_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(text)
    with pytest.raises(ProfileError):
        read_profiles(path)


@pytest.mark.parametrize(("url", "key", "tenant"), [("ftp://x", KEY, None), ("http://x", 'a"b', None), ("http://x", KEY, "a\n")])
def test_values_that_would_break_the_file_are_refused(url: str, key: str, tenant: str | None) -> None:
    with pytest.raises(ProfileError) as refused:
        Profile(url, key, tenant)
    assert key not in str(refused.value)


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "-x", "x" * 65])
def test_an_invalid_profile_name_is_refused(name: str) -> None:
    with pytest.raises(ProfileError):
        Profiles().with_profile(name, Profile("http://x", KEY), is_current=False)


def test_a_key_is_masked() -> None:
    assert Profile("http://x", KEY).masked_key == "pr_live_8fK2…"
    assert Profile("http://x", "pr_live_short").masked_key == "…"
    assert KEY not in repr(Profile("http://x", KEY))
    assert KEY not in repr(Target("http://x", KEY, None))


def test_the_first_profile_is_the_default_until_another_is_chosen() -> None:
    one = Profiles().with_profile("a", Profile("http://a", KEY), is_current=False)
    two = one.with_profile("b", Profile("http://b", KEY), is_current=False)
    assert (one.current, two.current, two.with_default("b").current) == ("a", "a", "b")
    assert two.with_default("b").without("b") == Profiles(None, one.by_name)
    with pytest.raises(ProfileError, match="known profiles: a, b"):
        two.with_default("c")


# Precedence


def test_the_default_profile_is_used_without_options(home: Path, tmp_path: Path) -> None:
    assert chosen(home) == Target("http://127.0.0.1:1", KEY, None)
    assert chosen(tmp_path / "elsewhere") == Target(DEFAULT_URL, None, None)


def test_the_environment_selects_another_profile(home: Path) -> None:
    assert chosen(home, POSTROAD_PROFILE="prod") == Target("https://prod", OTHER_KEY, "acme")
    with pytest.raises(ProfileError):
        chosen(home, POSTROAD_PROFILE="nobody")


def test_the_environment_overrides_the_profile_it_selects(home: Path) -> None:
    prod = {"POSTROAD_PROFILE": "prod"}
    assert chosen(home, **prod, POSTROAD_URL="http://x") == Target("http://x", OTHER_KEY, "acme")
    assert chosen(home, **prod, POSTROAD_TENANT="other") == Target("https://prod", OTHER_KEY, "other")
    assert chosen(home, **prod, POSTROAD_URL="http://x", POSTROAD_KEY="k") == Target("http://x", "k", None)


def test_a_profiles_tenant_is_ignored_with_another_key(home: Path) -> None:
    assert chosen(home, POSTROAD_PROFILE="prod", POSTROAD_KEY="k") == Target("https://prod", "k", None)


def test_the_profile_option_overrides_the_environment(home: Path) -> None:
    environ = {"POSTROAD_URL": "http://x", "POSTROAD_KEY": "k", "POSTROAD_TENANT": "t", "POSTROAD_PROFILE": "prod"}
    assert chosen(home, "local", **environ) == Target("http://127.0.0.1:1", KEY, None)


def test_the_tenant_option_overrides_everything(home: Path) -> None:
    assert chosen(home, "prod", "mine").tenant == "mine"
    assert chosen(home, None, "mine", POSTROAD_TENANT="t").tenant == "mine"


# The commands


def test_profiles_are_added_used_listed_and_removed(shell: Shell, running: Installation) -> None:
    anonymous = Shell(shell.home)
    tenant_key, admin_key = running.credentials["tenant_key"], running.credentials["admin_key"]
    credentials = str(running.home / "var" / "credentials.toml")

    added = anonymous.run("profiles", "add", "local", "--url", running.url, stdin=f"{tenant_key}\n")
    assert "the default" in added.stdout
    anonymous.run("profiles", "add", "boss", "--url", running.url, "--tenant", "default", "--key-file", credentials, "--admin")
    assert anonymous.run("whoami", "--json").json["platform"] is False
    assert anonymous.run("--profile", "boss", "whoami", "--json").json["platform"] is True
    as_boss = anonymous.with_environment(POSTROAD_PROFILE="boss")
    assert as_boss.run("whoami", "--json").json["platform"] is True
    assert shell.with_environment(POSTROAD_PROFILE="boss").run("whoami", "--json").json["platform"] is False

    listed = anonymous.run("profiles", "list")
    assert f"{tenant_key[:12]}…" in listed.stdout
    assert [one["current"] for one in anonymous.run("profiles", "list", "--json").json] == [True, False]
    anonymous.run("profiles", "use", "boss")
    assert anonymous.run("whoami", "--json").json["platform"] is True
    assert anonymous.invoke("profiles", "remove", "boss", stdin="n\n").code == 1
    anonymous.run("profiles", "remove", "boss", "--yes")
    assert [one["name"] for one in anonymous.run("profiles", "list", "--json").json] == ["local"]
    for printed in (added, listed):
        assert tenant_key not in printed.stdout + printed.stderr
        assert admin_key not in printed.stdout + printed.stderr


def test_a_profile_is_replaced_only_with_the_option(anonymous: Shell) -> None:
    anonymous.run("profiles", "add", "a", stdin=KEY)
    again = anonymous.invoke("profiles", "add", "a", stdin=OTHER_KEY)
    assert (again.code, "--replace" in again.stderr) == (2, True)
    assert "pr_admin_9aB3…" in anonymous.run("profiles", "add", "a", "--replace", stdin=OTHER_KEY).stdout


def test_a_key_comes_from_a_file_the_environment_or_a_prompt(
    anonymous: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    anonymous.run("profiles", "add", "file", "--key-file", str(tmp_path / "key"))
    anonymous.with_environment(POSTROAD_KEY=OTHER_KEY, POSTROAD_URL="http://env").run("profiles", "add", "env")
    assert [one["key"] for one in anonymous.run("profiles", "list", "--json").json] == ["pr_live_8fK2…", "pr_admin_9aB3…"]

    asked: list[bool] = []

    def prompt(_question: str, *, hide_input: bool, err: bool) -> str:
        asked.append(hide_input and err)
        return KEY

    monkeypatch.setattr(profile_commands, "_is_terminal", lambda: True)
    monkeypatch.setattr("typer.prompt", prompt)
    anonymous.run("profiles", "add", "asked")
    assert asked == [True]


@pytest.mark.parametrize("text", ["", "something else", 'tenant_key = "pr_live_x"'])
def test_a_file_without_the_key_is_refused(anonymous: Shell, tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    finished = anonymous.invoke("profiles", "add", "x", "--key-file", str(tmp_path / "key"), "--admin")
    assert (finished.code, "admin_key" in finished.stderr) == (2, True)


def test_a_missing_key_is_refused(anonymous: Shell) -> None:
    assert anonymous.invoke("profiles", "add", "x").code == 2
    assert anonymous.invoke("profiles", "add", "x", "--admin", stdin=KEY).code == 2


def test_a_file_that_other_users_can_read_is_reported(anonymous: Shell) -> None:
    anonymous.run("profiles", "add", "a", stdin=KEY)
    (anonymous.home / "postroad" / "profiles.toml").chmod(0o644)
    assert "other users can read" in anonymous.run("profiles", "list").stderr


def test_names_are_completed(anonymous: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    anonymous.run("profiles", "add", "a", stdin=KEY)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(anonymous.home))
    assert profile_names() == ["a"]
    (anonymous.home / "postroad" / "profiles.toml").write_text("not = [toml")
    assert profile_names() == []


def test_a_command_without_a_key_prints_how_to_add_one(anonymous: Shell, tmp_path: Path) -> None:
    finished = anonymous.invoke("queues", "list")
    assert finished.code == 2
    assert "POSTROAD_KEY" in finished.stderr
    assert "credentials.toml" not in finished.stderr

    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "credentials.toml").write_text(f'tenant_key = "{KEY}"\n')
    helped = anonymous.invoke("queues", "list").stderr
    advised = helped.strip().splitlines()[-1].split()
    assert advised[:2] == ["postroad", "profiles"]
    anonymous.run(*advised[1:])
    assert [one["key"] for one in anonymous.run("profiles", "list", "--json").json] == ["pr_live_8fK2…"]
