"""`postroad replay` and `postroad commands find|show`."""

from concurrent.futures import ThreadPoolExecutor

from tests.cli.shell import Shell
from tests.cli.test_commands import key_id
from tests.waiting import eventually


def _sent(shell: Shell, name: str) -> str:
    """A command that was delivered and dead-lettered; returns its id."""
    sender, bot = f"{name}-a", f"{name}-b"
    shell.run("services", "put", sender, "--trusted-key", key_id(shell))
    shell.run("services", "put", bot)
    shell.run("queues", "put", name, "--max-attempts", "3")
    shell.run("routes", "put", bot, "post", name)
    shell.run("grants", "put", bot, "post", sender)
    return _dead_lettered(shell, name)


def _dead_lettered(shell: Shell, name: str) -> str:
    sender, bot = f"{name}-a", f"{name}-b"
    sent: str = shell.run("commands", "send", bot, "post", '{"n": 1}', "--as", sender, "--json").json["commandId"]
    [pulled] = shell.run("queues", "pull", name, "--json").json
    shell.run("queues", "nack", name, pulled["receiptId"], "--action", "dlq", "--reason", "down")
    return sent


def test_commands_are_found_and_shown(shell: Shell, name: str) -> None:
    sent = _sent(shell, name)
    [found] = shell.run("commands", "find", "--target", f"{name}-b", "--from", "1h", "--json").json
    assert (found["commandId"], found["outcome"]) == (sent, "delivered")
    assert "delivered" in shell.run("commands", "find", "--command-id", sent).stdout
    assert '"n"' in shell.run("commands", "show", sent).stdout
    missing = shell.invoke("commands", "show", "00000000-0000-0000-0000-000000000000")
    assert missing.code == 1 and "is stored since 20" in missing.stderr


def test_dead_letters_are_selected_and_sent(shell: Shell, name: str) -> None:
    sent = _sent(shell, name)
    selected = shell.run("replay", "dead-letters", name, "--dead-reason", "down", "--reason", "the bot is back")
    assert "1 commands selected" in selected.stderr
    replay = selected.stdout.strip()
    assert "done: 1 of 1 delivered" in shell.run("replay", "run", "-", stdin=f"{replay}\n").stdout
    shown = shell.run("replay", "show", replay, "--json").json
    assert (shown["state"], shown["counts"]["delivered"], shown["reason"]) == ("done", 1, "the bot is back")
    assert replay in shell.run("replay", "list").stdout
    [message] = shell.run("queues", "pull", name, "--json").json
    assert message["headers"]["Snavio-Command-Id"] == sent and message["headers"]["Snavio-Replay-Id"] == replay
    for verb in ("run", "pause"):
        assert "the replay is done" in shell.invoke("replay", verb, replay).stderr


async def test_a_replay_is_paused_and_resumed(shell: Shell, name: str) -> None:
    _sent(shell, name)
    for _ in range(3):
        _dead_lettered(shell, name)
    replay = shell.run("replay", "dead-letters", name, "--reason", "the bot is back", "--rate", "1", "--json").json["id"]

    def is_in(state: str) -> bool:
        return bool(shell.run("replay", "show", replay, "--json").json["state"] == state)

    shell.run("replay", "resume", replay)
    await eventually(lambda: is_in("running"))
    shell.run("replay", "pause", replay)
    await eventually(lambda: is_in("paused"))
    counts = shell.run("replay", "show", replay, "--json").json["counts"]
    assert counts["selected"] == 4 and counts["delivered"] < 4
    assert replay in shell.run("replay", "list", "--state", "paused").stdout
    shell.run("replay", "resume", replay)
    await eventually(lambda: is_in("done"), 30)
    assert shell.run("replay", "show", replay, "--json").json["counts"]["delivered"] == 4


def test_a_selection_waits_for_the_pipeline_and_can_be_cancelled(shell: Shell, name: str) -> None:
    """This installation has no pipeline."""
    with ThreadPoolExecutor(1) as threads:
        chosen = ("--from", "2h", "--failed-with", "acl-deny", "--target", name, "--reason", name)
        waiting = threads.submit(lambda: shell.run_process("replay", "select", *chosen))
        replay = ""
        while not replay:
            found = shell.run("replay", "list", "--state", "selecting", "--json").json
            replay = next((one["id"] for one in found if one["reason"] == name), "")
        shell.run("replay", "cancel", replay)
        ended = waiting.result(30)
    assert ended.code == 1 and "cancelled: 0 of 0 delivered" in ended.stdout
