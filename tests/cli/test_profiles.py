"""Profiles: the file, which of environment and profile wins, and the commands."""

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


def test_the_file_is_read_by_its_owner_alone_and_comes_back_as_it_was(home: Path) -> None:
    path = profiles_path({"XDG_CONFIG_HOME": str(home)})
    assert path == home / "postroad" / "profiles.toml"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = read_profiles(path)
    assert (found.current, list(found.by_name)) == ("local", ["local", "prod"])
    assert found.get("prod") == Profile("https://prod", OTHER_KEY, "acme")


def test_without_a_home_for_configuration_it_is_below_the_users() -> None:
    assert profiles_path({}) == Path.home() / ".config" / "postroad" / "profiles.toml"


def test_no_file_is_no_profiles(tmp_path: Path) -> None:
    assert read_profiles(tmp_path / "none") == Profiles()


@pytest.mark.parametrize("text", ["not = [toml", 'profiles = "x"', '[profiles.a]\nurl = "http://x"', "[profiles.a]\nkey = 1"])
def test_a_file_that_is_something_else_is_a_fault(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(text)
    with pytest.raises(ProfileError):
        read_profiles(path)


@pytest.mark.parametrize(("url", "key", "tenant"), [("ftp://x", KEY, None), ("http://x", 'a"b', None), ("http://x", KEY, "a\n")])
def test_what_could_break_the_file_is_refused(url: str, key: str, tenant: str | None) -> None:
    with pytest.raises(ProfileError) as refused:
        Profile(url, key, tenant)
    assert key not in str(refused.value)


@pytest.mark.parametrize("name", ["", "a b", 'a"b', "-x", "x" * 65])
def test_a_name_is_a_plain_word(name: str) -> None:
    with pytest.raises(ProfileError):
        Profiles().with_profile(name, Profile("http://x", KEY), is_current=False)


def test_a_key_does_not_show_itself() -> None:
    assert Profile("http://x", KEY).masked_key == "pr_live_8fK2…"
    assert Profile("http://x", "pr_live_short").masked_key == "…"
    assert KEY not in repr(Profile("http://x", KEY))
    assert KEY not in repr(Target("http://x", KEY, None))


def test_the_first_profile_is_the_current_one_until_another_is_used() -> None:
    one = Profiles().with_profile("a", Profile("http://a", KEY), is_current=False)
    two = one.with_profile("b", Profile("http://b", KEY), is_current=False)
    assert (one.current, two.current, two.with_default("b").current) == ("a", "a", "b")
    assert two.with_default("b").without("b") == Profiles(None, one.by_name)
    with pytest.raises(ProfileError, match="known profiles: a, b"):
        two.with_default("c")


# Who wins


def test_the_current_profile_is_used_when_nothing_is_said(home: Path, tmp_path: Path) -> None:
    assert chosen(home) == Target("http://127.0.0.1:1", KEY, None)
    assert chosen(tmp_path / "elsewhere") == Target(DEFAULT_URL, None, None)


def test_the_environment_names_another_profile(home: Path) -> None:
    assert chosen(home, POSTROAD_PROFILE="prod") == Target("https://prod", OTHER_KEY, "acme")
    with pytest.raises(ProfileError):
        chosen(home, POSTROAD_PROFILE="nobody")


def test_the_environment_wins_over_the_profile_it_names(home: Path) -> None:
    prod = {"POSTROAD_PROFILE": "prod"}
    assert chosen(home, **prod, POSTROAD_URL="http://x") == Target("http://x", OTHER_KEY, "acme")
    assert chosen(home, **prod, POSTROAD_TENANT="other") == Target("https://prod", OTHER_KEY, "other")
    assert chosen(home, **prod, POSTROAD_URL="http://x", POSTROAD_KEY="k") == Target("http://x", "k", None)


def test_a_profiles_tenant_goes_with_its_key(home: Path) -> None:
    assert chosen(home, POSTROAD_PROFILE="prod", POSTROAD_KEY="k") == Target("https://prod", "k", None)


def test_a_profile_that_is_named_as_an_option_wins_over_all(home: Path) -> None:
    environ = {"POSTROAD_URL": "http://x", "POSTROAD_KEY": "k", "POSTROAD_TENANT": "t", "POSTROAD_PROFILE": "prod"}
    assert chosen(home, "local", **environ) == Target("http://127.0.0.1:1", KEY, None)


def test_the_tenant_option_wins_over_all(home: Path) -> None:
    assert chosen(home, "prod", "mine").tenant == "mine"
    assert chosen(home, None, "mine", POSTROAD_TENANT="t").tenant == "mine"


# The commands


def test_profiles_are_added_used_listed_and_removed(shell: Shell, running: Installation) -> None:
    stranger = Shell(shell.home)
    tenant_key, admin_key = running.credentials["tenant_key"], running.credentials["admin_key"]
    credentials = str(running.home / "var" / "credentials.toml")

    added = stranger.run("profiles", "add", "local", "--url", running.url, given=f"{tenant_key}\n")
    assert "the default" in added.output
    stranger.run("profiles", "add", "boss", "--url", running.url, "--tenant", "default", "--key-file", credentials, "--admin")
    assert stranger.run("whoami", "--json").json["platform"] is False
    assert stranger.run("--profile", "boss", "whoami", "--json").json["platform"] is True
    as_boss = stranger.with_environment(POSTROAD_PROFILE="boss")
    assert as_boss.run("whoami", "--json").json["platform"] is True
    assert shell.with_environment(POSTROAD_PROFILE="boss").run("whoami", "--json").json["platform"] is False

    listed = stranger.run("profiles", "list")
    assert f"{tenant_key[:12]}…" in listed.output
    assert [one["current"] for one in stranger.run("profiles", "list", "--json").json] == [True, False]
    stranger.run("profiles", "use", "boss")
    assert stranger.run("whoami", "--json").json["platform"] is True
    assert stranger.try_to("profiles", "remove", "boss", given="n\n").code == 1
    stranger.run("profiles", "remove", "boss", "--yes")
    assert [one["name"] for one in stranger.run("profiles", "list", "--json").json] == ["local"]
    for said in (added, listed):
        assert tenant_key not in said.output + said.complaints
        assert admin_key not in said.output + said.complaints


def test_a_profile_is_not_replaced_by_accident(stranger: Shell) -> None:
    stranger.run("profiles", "add", "a", given=KEY)
    again = stranger.try_to("profiles", "add", "a", given=OTHER_KEY)
    assert (again.code, "--replace" in again.complaints) == (2, True)
    assert "pr_admin_9aB3…" in stranger.run("profiles", "add", "a", "--replace", given=OTHER_KEY).output


def test_a_key_comes_from_a_file_the_environment_or_a_prompt(
    stranger: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    stranger.run("profiles", "add", "file", "--key-file", str(tmp_path / "key"))
    stranger.with_environment(POSTROAD_KEY=OTHER_KEY, POSTROAD_URL="http://env").run("profiles", "add", "env")
    assert [one["key"] for one in stranger.run("profiles", "list", "--json").json] == ["pr_live_8fK2…", "pr_admin_9aB3…"]

    asked: list[bool] = []

    def prompt(_question: str, *, hide_input: bool, err: bool) -> str:
        asked.append(hide_input and err)
        return KEY

    monkeypatch.setattr(profile_commands, "_is_terminal", lambda: True)
    monkeypatch.setattr("typer.prompt", prompt)
    stranger.run("profiles", "add", "asked")
    assert asked == [True]


@pytest.mark.parametrize("text", ["", "something else", 'tenant_key = "pr_live_x"'])
def test_a_file_without_the_key_is_refused(stranger: Shell, tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    finished = stranger.try_to("profiles", "add", "x", "--key-file", str(tmp_path / "key"), "--admin")
    assert (finished.code, "admin_key" in finished.complaints) == (2, True)


def test_no_key_at_all_is_refused(stranger: Shell) -> None:
    assert stranger.try_to("profiles", "add", "x").code == 2
    assert stranger.try_to("profiles", "add", "x", "--admin", given=KEY).code == 2


def test_a_file_that_other_users_can_read_is_reported(stranger: Shell) -> None:
    stranger.run("profiles", "add", "a", given=KEY)
    (stranger.home / "postroad" / "profiles.toml").chmod(0o644)
    assert "other users can read" in stranger.run("profiles", "list").complaints


def test_names_are_completed(stranger: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger.run("profiles", "add", "a", given=KEY)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(stranger.home))
    assert profile_commands.profile_names() == ["a"]
    (stranger.home / "postroad" / "profiles.toml").write_text("not = [toml")
    assert profile_commands.profile_names() == []


def test_without_a_key_it_says_what_to_do(stranger: Shell, tmp_path: Path) -> None:
    finished = stranger.try_to("queues", "list")
    assert finished.code == 2
    assert "POSTROAD_KEY" in finished.complaints
    assert "credentials.toml" not in finished.complaints

    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "credentials.toml").write_text(f'tenant_key = "{KEY}"\n')
    helped = stranger.try_to("queues", "list").complaints
    advised = helped.strip().splitlines()[-1].split()
    assert advised[:2] == ["postroad", "profiles"]
    stranger.run(*advised[1:])
    assert [one["key"] for one in stranger.run("profiles", "list", "--json").json] == ["pr_live_8fK2…"]
