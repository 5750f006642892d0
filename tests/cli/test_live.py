"""Live state on the command line."""

import json

from tests.cli.shell import Shell


def test_the_state_is_shown(shell: Shell, name: str) -> None:
    shell.run("queues", "put", name)
    shell.run("queues", "pause", name, "--reason", "maintenance")
    assert f"queues {name}" in shell.run("live", f"queues:{name}", "--limit", "1").stdout
    shown = json.loads(shell.run("live", f"queues:{name}", "health", "--limit", "1", "--json").stdout)
    assert shown["event"] == "snapshot" and shown["sections"]["queues"]["rows"][name]["pauseReason"] == "maintenance"


def test_clients_and_topology_are_shown(shell: Shell, operator: Shell, name: str) -> None:
    shell.run("queues", "put", name)
    assert "No consumer" in shell.run("queues", "consumers", name, "--json").json["summary"]
    assert shell.run("queues", "publishers", name, "--json").json == {"publishers": []}
    assert "rows" in shell.run("queues", "traffic", "--json").json
    assert "streams" in operator.run("topology").stderr
    assert operator.run("topology", "--json").json["withoutLeader"] == 0
