"""Topics on the command line."""

import json

from tests.cli.shell import Shell


def test_a_topic_is_put_shown_changed_listed_and_deleted(shell: Shell, name: str) -> None:
    made = shell.run("topics", "put", name, "--max-messages", "100", "--on-full", "refuse", "--json").json
    assert (made["settings"]["maxMessages"], made["settings"]["onFull"]) == (100, "refuse")
    changed = shell.run("topics", "update", name, "--max-messages", "50", "--json").json
    assert (changed["settings"]["maxMessages"], changed["settings"]["onFull"]) == (50, "refuse")
    restored = shell.run("topics", "update", name, "--max-messages", "none", "--schema", '{"type": "object"}', "--json").json
    assert (restored["settings"]["maxMessages"], restored["settings"]["onFull"]) == (0, "refuse")
    assert shell.run("topics", "update", name, "--on-full", "drop", "--json").json["settings"]["schema"] == {"type": "object"}
    assert shell.run("topics", "update", name, "--schema", "none", "--json").json["settings"]["schema"] is None
    assert shell.invoke("topics", "update", name, "--max-messages", "many").code == 2
    assert shell.run("topics", "show", name, "--json").json["stats"]["messages"] == 0
    assert name in shell.run("topics", "list", "--name", f"{name}*").stdout
    assert name not in shell.run("topics", "list", "--name", "other*").stdout
    assert f"deleted {name} with 0 messages" in shell.run("topics", "delete", name, "--yes").stdout
    assert "Topic not found" in shell.invoke("topics", "show", name).stderr


def test_messages_are_published_shown_counted_and_purged(shell: Shell, name: str) -> None:
    shell.run("topics", "put", name)
    published = shell.run("topics", "publish", name, '{"id": 1}', "-s", "orders.eu", "--header", "a=b", "--json").json
    assert (published["sequence"], published["subject"]) == (1, "orders.eu")
    shell.run("topics", "publish", name, "plain text", "-s", "notes", "--text")
    [first, second] = shell.run("topics", "messages", name, "--json").json
    assert (first["payload"], first["headers"], second["contentType"]) == ({"id": 1}, {"a": "b"}, "text/plain; charset=utf-8")
    shown = shell.run("topics", "messages", name).stdout
    assert "plain text" in shown and '{"id": 1}' in shown
    assert [one["sequence"] for one in shell.run("topics", "messages", name, "-s", "orders.*", "--json").json] == [1]
    assert shell.run("topics", "messages", name, "--from-sequence", "2", "--from", "1h", "--count").stdout.strip() == "1"
    assert "would delete 1 messages" in shell.run("topics", "purge", name, "-s", "notes", "--dry-run").stdout
    assert "deleted 1 messages" in shell.run("topics", "purge", name, "-s", "notes", "--yes").stdout
    assert shell.run("topics", "messages", name, "--count", "--json").json == {"count": 1}


def test_each_line_of_standard_input_is_a_message(shell: Shell, name: str) -> None:
    shell.run("topics", "put", name)
    lines = "".join(f'{{"n": {number}}}\n' for number in range(2500)) + "\n"
    assert "published 2,500 of 2,500 messages" in shell.run("topics", "publish", name, "-", "-s", "n", stdin=lines).stdout
    found = shell.run("topics", "messages", name, "--limit", "3000", "--json").json
    assert [one["payload"]["n"] for one in found] == list(range(2500))
    refused = shell.invoke("topics", "publish", name, "-", "-s", "n", stdin='{"n": 1}\nnonsense\n')
    assert refused.code == 2 and "line 2 is not JSON" in refused.stderr
    assert shell.run("topics", "publish", name, "-", "-s", "n", "--text", "--json", stdin="a\nb\n").json == {
        "published": 2,
        "failed": 0,
    }


def test_refused_lines_are_named_and_the_others_are_stored(shell: Shell, name: str) -> None:
    shell.run("topics", "put", name, "--schema", '{"type": "integer"}')
    outcome = shell.invoke("topics", "publish", name, "-", "-s", "n", stdin='1\n"two"\n3\n')
    assert outcome.code == 1
    assert "line 2: " in outcome.stderr and "published 2 of 3 messages" in outcome.stdout
    assert [one["payload"] for one in shell.run("topics", "messages", name, "--json").json] == [1, 3]


def test_messages_are_printed_live(shell: Shell, name: str) -> None:
    shell.run("topics", "put", name)
    for number in range(4):
        shell.run("topics", "publish", name, str(number), "-s", "even" if number % 2 == 0 else "odd")
    printed = shell.run("topics", "tail", name, "--filter", "even", "--from-sequence", "1", "--limit", "2", "--json").stdout
    assert [(one["sequence"], one["payload"]) for one in map(json.loads, printed.splitlines())] == [(1, 0), (3, 2)]
    shown = shell.run("topics", "tail", name, "--from-sequence", "4", "--limit", "1").stdout
    assert shown.split()[0] == "4" and shown.split()[-2:] == ["odd", "3"]
    assert "Topic not found" in shell.invoke("topics", "tail", f"{name}-missing").stderr
