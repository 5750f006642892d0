"""Tenants, keys, JWT secrets, tokens, invites, settings and the audit log on the command line."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from postroad.kernel.identity import ALL_SCOPES
from tests.cli.shell import Completed, Shell
from tests.installation import Installation
from tests.waiting import eventually

EVERY_SCOPE = [word for scope in ALL_SCOPES for word in ("--scope", scope)]


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex[:10]}"


async def shows(ask: Callable[[], Completed], *words: str) -> None:
    """Wait until the output contains the words: a change reaches all workers after a moment."""
    await eventually(lambda: all(word in ask().stdout for word in words))


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


# Tenants


def test_a_tenant_is_created_updated_and_disabled(operator: Shell, name: str) -> None:
    made = operator.run("tenants", "create", name, "--description", "of a test", "--auto-create-queues", "--json").json
    assert (made["id"], made["state"], made["description"]) == (name, "ready", "of a test")
    again = operator.invoke("tenants", "create", name)
    assert (again.code, "Already exists" in again.stderr) == (1, True)

    assert name in operator.run("tenants", "list").stdout
    assert "other" in operator.run("tenants", "update", name, "--description", "other").stdout
    assert "disabled" in operator.run("tenants", "disable", name).stdout
    assert operator.run("tenants", "show", name, "--json").json["state"] == "disabled"
    assert "ready" in operator.run("tenants", "enable", name).stdout


def test_deleting_a_tenant_asks_for_its_id(operator: Shell, name: str) -> None:
    operator.run("tenants", "create", name)
    refused = operator.invoke("tenants", "delete", name, stdin="yes\n")
    assert (refused.code, "nothing was deleted" in refused.stderr) == (1, True)
    assert operator.run("tenants", "show", name, "--json").json["state"] == "ready"
    assert "deleting" in operator.run("tenants", "delete", name, stdin=f"{name}\n").stdout
    other = f"{name}-b"
    operator.run("tenants", "create", other)
    assert operator.run("tenants", "delete", other, "--yes", "--json").json["state"] == "deleting"
    assert operator.invoke("tenants", "delete", "default", "--yes").code == 1


def test_a_platform_key_acts_for_the_named_tenant(operator: Shell, name: str) -> None:
    operator.run("tenants", "create", name)
    assert operator.run("--tenant", name, "whoami", "--json").json["tenant"] == name
    key = operator.run("--tenant", name, "keys", "create", "its own", "--scope", "read").stdout.strip()
    assert operator.with_environment(POSTROAD_KEY=key).run("whoami", "--json").json["tenant"] == name
    assert operator.invoke("--tenant", "nobody", "whoami").code == 4


# Keys


def test_a_created_key_is_alone_on_standard_output(shell: Shell) -> None:
    made = shell.run("keys", "create", "ci", "--scope", "publish", "--scope", "read", "--queue", "orders*", "--expires", "30d")
    [key] = lines(made.stdout)
    assert key.startswith("pr_live_")
    assert "shown once" in made.stderr
    assert key not in made.stderr

    me = shell.with_environment(POSTROAD_KEY=key).run("whoami", "--json").json
    assert (me["keyName"], me["scopes"], me["allowedQueues"]) == ("ci", ["publish", "read"], ["orders*"])
    assert me["expiresAt"] is not None
    as_json = shell.run("keys", "create", "ci 2", "--scope", "read", "--json").json
    assert as_json["key"].startswith("pr_live_")
    assert as_json["record"]["name"] == "ci 2"


async def test_a_key_is_created_changed_rotated_and_deleted(shell: Shell) -> None:
    made = shell.run("keys", "create", "worker", "--scope", "read", "--topic", "t*", "--stream", "s", "--json").json
    key_id, owner = made["record"]["id"], shell.with_environment(POSTROAD_KEY=made["key"])
    await shows(lambda: shell.run("keys", "list"), key_id, "worker")
    assert "t*" in shell.run("keys", "show", key_id).stdout
    changed = shell.run("keys", "update", key_id, "--name", "reader", "--scope", "read", "--expires", "1d", "--json").json
    assert (changed["name"], changed["scopes"], changed["allowedTopics"]) == ("reader", ["read"], ["t*"])
    assert shell.run("keys", "update", key_id, "--expires", "never", "--json").json["expiresAt"] is None

    assert shell.run("keys", "disable", key_id, "--json").json["enabled"] is False
    await eventually(lambda: owner.invoke("whoami").code == 3)
    assert shell.run("keys", "enable", key_id, "--json").json["enabled"] is True
    await eventually(lambda: owner.invoke("whoami").code == 0)

    rotated = shell.run("keys", "rotate", key_id, "--grace", "0s")
    [text] = lines(rotated.stdout)
    await eventually(lambda: owner.invoke("whoami").code == 3)
    assert shell.with_environment(POSTROAD_KEY=text).run("whoami", "--json").json["keyId"] == key_id
    assert "shown once" in shell.run("keys", "rotate", key_id).stderr

    refused = shell.invoke("keys", "delete", key_id, stdin="n\n")
    assert (refused.code, key_id in refused.stdout) == (1, True)
    assert "deleted" in shell.run("keys", "delete", key_id, "--yes").stdout
    assert shell.invoke("keys", "show", key_id).code == 4


def test_platform_keys_are_listed_separately(operator: Shell, shell: Shell) -> None:
    made = operator.run("keys", "create", "operator", *EVERY_SCOPE, "--platform", "--json").json
    assert made["key"].startswith("pr_admin_")
    listed = operator.run("keys", "list", "--platform", "--json").json
    assert {key["tenant"] for key in listed} == {None}
    assert shell.invoke("keys", "list", "--platform").code == 3
    operator.run("keys", "delete", made["record"]["id"], "--yes")


def test_a_keys_text_is_refused_as_its_id(shell: Shell, running: Installation) -> None:
    finished = shell.invoke("keys", "show", running.credentials["tenant_key"])
    assert finished.code == 2
    assert running.credentials["tenant_key"] not in finished.stderr


def test_the_console_command_prints_a_link(shell: Shell) -> None:
    assert "/?access=pr_access_" in shell.run("console").stdout
    assert shell.run("console", "--expires-in", "60", "--json").json["url"].startswith("http")


# JWT secrets and tokens


async def test_jwt_secrets_are_created_imported_and_deleted(shell: Shell, tmp_path: Path, name: str) -> None:
    made = shell.run("secrets", "create", name, "--expires", "30d")
    [secret] = lines(made.stdout)
    assert len(secret) >= 32
    (tmp_path / "secret").write_text("of the tenant's own, and long enough\n")
    own = shell.run("secrets", "create", f"{name}-own", "--secret-file", str(tmp_path / "secret"))
    assert "long enough" not in own.stdout + own.stderr
    await shows(lambda: shell.run("secrets", "list"), name, f"{name}-own")
    for record in shell.run("secrets", "list", "--json").json:
        if record["name"].startswith(name):
            shell.run("secrets", "delete", record["id"], "--yes")
    assert name not in shell.run("secrets", "list").stdout


def test_a_token_is_alone_on_standard_output(shell: Shell) -> None:
    made = shell.run("tokens", "create", "telemetry", "--expires-in", "15m", "--once")
    assert made.stdout.startswith("pr_token_")
    assert len(lines(made.stdout)) == 1
    assert shell.run("tokens", "create", "telemetry", "--json").json["resource"] == "telemetry"


# Invites


async def test_an_invite_is_claimed_without_a_key(operator: Shell, running: Installation, name: str) -> None:
    made = operator.run("invites", "create", "--tenant", name, "--note", "for a test", "--expires-in", "2d")
    [code] = lines(made.stdout)
    without_key = Shell(operator.home, {"POSTROAD_URL": running.url})
    [key] = lines(without_key.run("invites", "claim", "-", "--key-name", "mine", stdin=f"{code}\n").stdout)
    me = without_key.with_environment(POSTROAD_KEY=key).run("whoami", "--json").json
    assert (me["tenant"], me["keyName"]) == (name, "mine")
    await shows(lambda: operator.run("invites", "list"), name, "claimed")
    assert without_key.invoke("invites", "claim", code).code == 4


def test_a_revoked_invite_cannot_be_claimed(operator: Shell, name: str) -> None:
    made = operator.run("invites", "create", "--json").json
    refused = operator.invoke("invites", "revoke", made["invite"]["id"], stdin="n\n")
    assert refused.code == 1
    assert "revoked" in operator.run("invites", "revoke", made["invite"]["id"], "--yes").stdout
    assert operator.invoke("invites", "claim", made["code"], "--tenant", name).code == 4


# Settings and the audit log


async def test_settings_are_set_and_reset(operator: Shell, name: str) -> None:
    operator.run("tenants", "create", name)
    operator.run("--tenant", name, "settings", "set", "max_queues=12", "audit-mode=jobs_only", "autoCreateQueues=true")

    def shown() -> Completed:
        return operator.run("--tenant", name, "settings", "show")

    await shows(shown, "max_queues", "12", "jobs_only", "chosen")
    as_json = operator.run("--tenant", name, "settings", "show", "--json").json
    assert as_json["chosen"] == {"maxQueues": 12, "auditMode": "jobs_only", "autoCreateQueues": True}
    operator.run("--tenant", name, "settings", "unset", "max-queues", "auditMode")
    await eventually(lambda: "jobs_only" not in shown().stdout)


async def test_platform_defaults_are_set_separately(operator: Shell) -> None:
    operator.run("settings", "set", "--platform", "pull_max=499")
    await shows(lambda: operator.run("settings", "show", "--platform"), "499")
    operator.run("settings", "unset", "pull_max", "--platform")


def test_the_audit_log_is_filtered(operator: Shell, shell: Shell) -> None:
    key = shell.run("keys", "create", "audited", "--scope", "read", "--json").json["record"]["id"]
    shell.run("keys", "update", key, "--name", "renamed")
    entries = shell.run("audit", "--target", key, "--from", "1h", "--json").json
    assert [entry["action"] for entry in entries] == ["key.change", "key.create"]
    assert "name=renamed" in shell.run("audit", "--target", key, "--action", "key.*").stdout
    filters = ("--actor", entries[0]["actorKeyId"], "--request-id", entries[0]["requestId"], "--to", "2100-01-01")
    assert len(operator.run("audit", "--tenant", "default", *filters, "--json").json) == 1
    assert len(operator.run("audit", "--limit", "2", "--json").json) == 2


async def test_the_audit_log_is_verified(operator: Shell, shell: Shell) -> None:
    await shows(lambda: operator.run("audit", "verify"), "the audit log is intact", "checkpoint 1 ")
    assert operator.run("audit", "verify", "--json").json["findings"] == []
    assert shell.invoke("audit", "verify").code == 3


def test_aws_credentials_are_printed_for_a_shell_or_as_a_profile(shell: Shell) -> None:
    key_id = shell.run("keys", "create", "aws", "--scope", "publish", "--json").json["record"]["id"]
    printed = shell.run("keys", "aws", key_id).stdout
    assert f"export AWS_ACCESS_KEY_ID=PRAK{key_id}\n" in printed and "export AWS_ENDPOINT_URL=http://" in printed
    profile = shell.run("keys", "aws", key_id, "--profile", "mq", "--region", "eu-west-1").stdout
    assert profile.startswith("[profile mq]\n") and "region = eu-west-1" in profile
    assert len(shell.run("keys", "aws", key_id, "--json").json["secretAccessKey"]) == 40
    assert shell.run("whoami", "--json").json["accountId"].isdecimal()
