"""Subscriptions on the command line."""

import json

from tests.cli.shell import Shell


def test_a_subscription_is_created_shown_changed_and_deleted(shell: Shell, name: str) -> None:
    shell.run("topics", "put", name)
    made = shell.run(
        "subscriptions", "create", name, "http_push", "--url", "https://hooks.invalid/x", "--filter", "eu.>", "--json"
    ).json
    assert (made["topic"], made["filter"]) == (name, ["eu.>"])
    assert made["secret"].startswith("whsec_")
    assert made["id"] in shell.run("subscriptions", "list", "--topic", name, "--wide").stdout
    assert shell.run("subscriptions", "update", made["id"], "--max-deliver", "3", "--json").json["maxDeliver"] == 3
    shell.run("subscriptions", "pause", made["id"])
    assert "Paused" in shell.run("subscriptions", "get", made["id"]).stdout
    assert "paused" not in shell.run("subscriptions", "resume", made["id"]).stdout
    assert shell.run("subscriptions", "rotate-secret", made["id"], "--grace", "1h").stdout.startswith("whsec_")
    assert shell.run("subscriptions", "test", made["id"], "--json").json["outcome"] == "transient"
    assert shell.run("subscriptions", "attempts", made["id"], "--json").json["attempts"] == []
    shell.run("topics", "publish", name, "1", "-s", "eu.created")
    assert shell.run("subscriptions", "replay", made["id"], "--from-sequence", "1", "--dry-run", "--json").json["count"] == 1
    rewound = shell.run("subscriptions", "rewind", made["id"], "--from-sequence", "1", "--json").json
    assert rewound["rewind"] == {"fromSequence": 1, "toSequence": 1}
    assert "ended" in shell.run("subscriptions", "end-rewind", made["id"]).stdout
    assert shell.run("subscriptions", "dlq", made["id"], "--json").json == []
    assert shell.run("subscriptions", "dlq-groups", made["id"], "--json").json["groups"] == []
    assert shell.run("subscriptions", "redrive", made["id"], "--dry-run", "--json").json["count"] == 0
    assert shell.run("subscriptions", "purge-dlq", made["id"], "--yes", "--json").json["count"] == 0
    shell.run("subscriptions", "delete", made["id"], "--yes")
    assert "Subscription not found" in shell.invoke("subscriptions", "get", made["id"]).stderr


def test_a_filter_is_tried_on_a_message(shell: Shell) -> None:
    content = '{"payload": {"amount": {"gte": 100}}, "headers": {"x-source": "shop"}}'
    options = ("--filter", "eu.*", "--content-filter", content, "--headers", '{"x-source": "shop"}', "--json")
    found = shell.run("subscriptions", "test-filter", "eu.created", *options, "--payload", '{"amount": 150}').json
    assert found == {"matches": True, "subjectMatches": True, "contentMatches": True}
    found = shell.run("subscriptions", "test-filter", "eu.created", *options, "--payload", '{"amount": 50}').json
    assert (found["matches"], found["subjectMatches"], found["contentMatches"]) == (False, True, False)


def test_listen_prints_the_messages_of_a_topic_and_leaves_no_subscription(shell: Shell, name: str) -> None:
    shell.run("topics", "put", name)
    for number in range(3):
        shell.run("topics", "publish", name, str(number), "-s", "eu.created")
    done = shell.run_process("subscriptions", "listen", name, "--start-from", "all", "--filter", "eu.*", "--count", "3", "--json")
    assert done.code == 0, done
    assert sorted(json.loads(line)["body"] for line in done.stdout.splitlines()) == ["0", "1", "2"]
    assert "listening on http://127.0.0.1:" in done.stderr
    assert shell.run("subscriptions", "list", "--topic", name, "--json").json == []
