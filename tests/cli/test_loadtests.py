"""Load tests on the command line."""

from tests.cli.shell import Shell
from tests.waiting import eventually


async def test_a_load_test_is_started_shown_and_stopped(shell: Shell) -> None:
    assert shell.run("loadtests", "limits", "--json").json["enabled"] is True
    options = ("--rate-per-second", "5", "--seconds", "30", "--publishers", "1", "--consumers", "1", "--json")
    made = shell.run("loadtests", "start", *options).json
    assert made["id"] in shell.run("loadtests", "list").stdout
    await eventually(lambda: shell.run("loadtests", "show", made["id"], "--json").json["totals"]["published"])
    shell.run("loadtests", "stop", made["id"])

    def has_ended() -> bool:
        return shell.run("loadtests", "show", made["id"], "--json").json["state"] not in ("queued", "running", "paused")

    await eventually(has_ended)
