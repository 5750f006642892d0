"""Schedules on the command line."""

from tests.cli.shell import Shell


def test_a_schedule_is_put_shown_paused_run_and_deleted(shell: Shell, name: str) -> None:
    shell.run("queues", "put", name)
    options = ("--cron", "0 3 * * *", "--time-zone", "Europe/Berlin", "--payload", '{"keep": 7}', "--json")
    created = shell.run("schedules", "put", name, name, *options).json
    assert (created["state"], created["payload"]) == ("active", {"keep": 7})
    assert "Europe/Berlin" in shell.run("schedules", "list", "--queue", name).stdout
    assert "keep" in shell.run("schedules", "get", name).stdout
    runs = shell.run("schedules", "next", name, "--count", "2", "--json").json["runs"]
    assert runs[0] == created["nextRunAt"] and len(runs) == 2
    assert f"paused {name}" in shell.run("schedules", "pause", name).stdout
    shell.run("schedules", "run", name)
    assert f"resumed {name}" in shell.run("schedules", "resume", name).stdout
    [message] = shell.run("queues", "pull", name, "--json").json
    assert message["payload"] == {"keep": 7}
    assert f"deleted {name}" in shell.run("schedules", "delete", name, "--yes").stdout
    assert "Schedule not found" in shell.invoke("schedules", "get", name).stderr
