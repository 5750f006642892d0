"""Commands, services, routes, grants and `apply` on the command line."""

import json
from pathlib import Path

from tests.cli.shell import Shell


def key_id(shell: Shell) -> str:
    found: str = shell.run("whoami", "--json").json["keyId"]
    return found


def test_the_registry_is_managed_and_commands_are_sent(shell: Shell, name: str) -> None:
    sender, bot = f"{name}-a", f"{name}-b"
    made = shell.run("services", "put", sender, "--trusted-key", key_id(shell), "--json").json
    assert made["secrets"][0]["versionId"] == "hmac-v1"
    shell.run("services", "put", bot)
    shell.run("queues", "put", name, "--max-attempts", "3")
    assert shell.run("routes", "put", bot, "post", name, "--dry-run", "--json").json["queue"] == name
    assert "No route" in shell.invoke("commands", "send", bot, "post", "1", "--as", sender).stderr
    shell.run("routes", "put", bot, "post", name, "--sensitivity", "critical")
    assert shell.run("routes", "test", bot, "post", sender, "--json").json["outcome"] == "acl-deny"
    shell.run("grants", "put", bot, "post", sender)
    sent = shell.run("commands", "send", bot, "post", '{"n": 1}', "--as", sender, "--json").json
    assert sent["path"] == "fast"
    shell.run("commands", "send", bot, "post", "-", "--as", sender, stdin="[1]")
    assert "No route" in shell.invoke("commands", "send", bot, "none", "--as", sender).stderr
    assert "not JSON" in shell.invoke("commands", "send", bot, "post", "{", "--as", sender).stderr
    assert sender in shell.run("services", "list").stdout and bot in shell.run("routes", "list").stdout
    assert shell.run("routes", "show", bot, "post", "--json").json["sensitivity"] == "critical"
    assert shell.run("services", "show", sender, "--json").json["lastConfigPoll"] is not None
    assert shell.run("services", "token", sender).stdout.strip().startswith("pr_emit_")
    assert len(shell.run("services", "rotate", sender, "--json").json["secrets"]) == 2
    assert [one["source"] for one in shell.run("grants", "list", "--service", bot, "--json").json] == [f"default/{sender}"]
    limit = '{"max": 10, "interval_seconds": 86400}'
    shell.run("routes", "put", bot, "post", name, "--rate-limit", limit)
    shell.run("commands", "send", bot, "post", "1", "--as", sender)
    assert f"[{'#' * 4}{'-' * 36}] 1 of 10 (10%)" in shell.run("routes", "show", bot, "post").stdout
    shell.run("quotas", "put", bot, "post", sender, "5")
    assert [one["max"] for one in shell.run("quotas", "list", "--service", bot, "--json").json] == [5]
    shell.run("quotas", "delete", bot, "post", sender, "--yes")
    ban = shell.run("bans", "create", sender, "hard", "test", "--target", bot, "--command", "post", "--json").json
    assert [one["id"] for one in shell.run("bans", "list", "--source", sender, "--json").json] == [ban["id"]]
    shell.run("bans", "delete", ban["id"], "--yes")
    shell.run("grants", "delete", bot, "post", sender, "--yes")
    assert shell.run("routes", "changes", "--limit", "1", "--json").json[0]["action"] == "grant.revoke"
    shell.run("routes", "delete", bot, "post", "--yes")
    shell.run("services", "delete", bot, "--yes")


def test_envelopes_are_signed_and_verified_without_a_server(anonymous: Shell, tmp_path: Path) -> None:
    secret = ("--secret", "s" * 64)
    signed = anonymous.run("commands", "sign", "bot", "post", '{"a": 1}', *secret, "--source", "acme/billing").stdout
    assert json.loads(signed)["command"] == {"target": "bot", "name": "post", "payload": {"a": 1}}
    assert anonymous.run("commands", "verify", *secret, "--source", "acme/billing", stdin=signed).stdout == "valid\n"
    valid = ("commands", "verify", *secret, "--source", "acme/billing")
    file = tmp_path / "envelope.json"
    file.write_text(signed)
    assert anonymous.run(*valid, "--file", str(file)).stdout == "valid\n"
    assert "the signature does not match" in anonymous.invoke(*valid[:-1], "acme/other", stdin=signed).stderr
    assert "name the sender" in anonymous.invoke("commands", "verify", *secret, stdin=signed).stderr
    assert "the hmac does not match" in anonymous.invoke(*valid, stdin=signed.replace('"a":1', '"a":2')).stderr
    assert "not an envelope" in anonymous.invoke(*valid, stdin="{}").stderr


def test_a_file_is_applied_once_changed_and_pruned(shell: Shell, name: str, tmp_path: Path) -> None:
    """Requirements 2, 29, 219"""
    shell.run("queues", "put", name, "--max-attempts", "3")
    file = tmp_path / "registry.toml"
    file.write_text(
        f"""
        [services.{name}]
        trustedKeys = ["{key_id(shell)}"]
        [services.{name}-bot]
        [routes."{name}-bot/post"]
        queue = "{name}"
        grants = ["{name}", {{ source = "partner/*", expires_at = 2100-01-01T00:00:00Z }}]
        """
    )
    shown = shell.run("apply", "-f", str(file), "--dry-run").stdout.splitlines()
    assert shown == [
        f"create services {name}",
        f"create services {name}-bot",
        f"create routes {name}-bot/post",
        f"create grants {name}-bot/post/default/{name}",
        f"create grants {name}-bot/post/partner/*",
    ]
    assert "made 5 changes" in shell.run("apply", "-f", str(file), "--yes").stdout
    assert shell.run("apply", "-f", str(file)).stdout == "no differences\n"
    smaller = tmp_path / "registry.json"
    smaller.write_text(
        json.dumps(
            {
                "services": {name: {"trustedKeys": [key_id(shell)]}, f"{name}-bot": {}},
                "routes": {f"{name}-bot/post": {"queue": name, "signature": "required", "grants": [name]}},
            }
        )
    )
    changed = shell.run("apply", "-f", str(smaller), "--yes").stdout
    assert f'change routes {name}-bot/post: signature "optional" → "required"' in changed and "delete" not in changed
    pruned = shell.run("apply", "-f", str(smaller), "--prune", "--dry-run").stdout
    assert f"delete grants {name}-bot/post/partner/*" in pruned
    assert shell.run("grants", "list", "--service", f"{name}-bot", "--json").json[1]["source"] == "partner/*"
    wrong = tmp_path / "wrong.toml"
    for text, cause in (("[routes.x]", "named <service>/<command>"), ("[other]", "unknown kind"), ("x = ", "wrong.toml")):
        wrong.write_text(text)
        assert cause in shell.invoke("apply", "-f", str(wrong)).stderr
