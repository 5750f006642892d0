"""Regions on the command line."""

from tests.cli.shell import Shell


def test_regions_are_listed_with_their_servers(shell: Shell, name: str) -> None:
    shell.run("queues", "put", name)
    shown = shell.run("regions").stdout
    assert "eu-central" in shown and "postroad" in shown
    assert "eu-central" not in shell.run("regions", "--no-empty").stdout
    found = shell.run("regions", "--json").json
    assert len(found["regions"]) == 28 and found["streams"] >= 1 and found["withoutLeader"] == []
