"""Tenants, keys, JWT secrets, tokens, invites, settings and the audit log from the command line."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.shell import Finished, Shell
from tests.installation import Installation
from tests.waiting import eventually


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex[:10]}"


async def told(ask: Callable[[], Finished], *words: str) -> None:
    """A change is everywhere within moments, and a worker may answer before that."""
    await eventually(lambda: all(word in ask().output for word in words))


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


# Tenants


def test_a_tenant_from_its_making_to_its_end(operator: Shell, name: str) -> None:
    made = operator.run("tenants", "create", name, "--description", "of a test", "--auto-create-queues", "--json").json
    assert (made["id"], made["state"], made["description"]) == (name, "ready", "of a test")
    again = operator.try_to("tenants", "create", name)
    assert (again.code, "Already exists" in again.complaints) == (1, True)

    assert name in operator.run("tenants", "list").output
    assert "other" in operator.run("tenants", "update", name, "--description", "other").output
    assert "disabled" in operator.run("tenants", "disable", name).output
    assert operator.run("tenants", "show", name, "--json").json["state"] == "disabled"
    assert "ready" in operator.run("tenants", "enable", name).output


def test_deleting_a_tenant_asks_for_its_name(operator: Shell, name: str) -> None:
    operator.run("tenants", "create", name)
    refused = operator.try_to("tenants", "delete", name, given="yes\n")
    assert (refused.code, "nothing was deleted" in refused.complaints) == (1, True)
    assert operator.run("tenants", "show", name, "--json").json["state"] == "ready"
    assert "deleting" in operator.run("tenants", "delete", name, given=f"{name}\n").output
    other = f"{name}-b"
    operator.run("tenants", "create", other)
    assert operator.run("tenants", "delete", other, "--yes", "--json").json["state"] == "deleting"
    assert operator.try_to("tenants", "delete", "default", "--yes").code == 1


def test_a_platform_key_acts_for_the_tenant_that_is_named(operator: Shell, name: str) -> None:
    operator.run("tenants", "create", name)
    assert operator.run("--tenant", name, "whoami", "--json").json["tenant"] == name
    key = operator.run("--tenant", name, "keys", "create", "its own").output.strip()
    assert operator.with_environment(POSTROAD_KEY=key).run("whoami", "--json").json["tenant"] == name
    assert operator.try_to("--tenant", "nobody", "whoami").code == 4


# Keys


def test_a_made_key_is_alone_on_standard_output(shell: Shell) -> None:
    made = shell.run("keys", "create", "ci", "--scope", "publish", "--scope", "read", "--queue", "orders*", "--expires", "30d")
    [key] = lines(made.output)
    assert key.startswith("pr_live_")
    assert "shown once" in made.complaints
    assert key not in made.complaints

    me = shell.with_environment(POSTROAD_KEY=key).run("whoami", "--json").json
    assert (me["keyName"], me["scopes"], me["allowedQueues"]) == ("ci", ["publish", "read"], ["orders*"])
    assert me["expiresAt"] is not None
    as_json = shell.run("keys", "create", "ci 2", "--json").json
    assert as_json["key"].startswith("pr_live_")
    assert as_json["record"]["name"] == "ci 2"


async def test_a_key_from_its_making_to_its_end(shell: Shell) -> None:
    made = shell.run("keys", "create", "worker", "--topic", "t*", "--stream", "s", "--json").json
    key_id, owner = made["record"]["id"], shell.with_environment(POSTROAD_KEY=made["key"])
    await told(lambda: shell.run("keys", "list"), key_id, "worker")
    assert "t*" in shell.run("keys", "show", key_id).output
    changed = shell.run("keys", "update", key_id, "--name", "reader", "--scope", "read", "--expires", "1d", "--json").json
    assert (changed["name"], changed["scopes"], changed["allowedTopics"]) == ("reader", ["read"], ["t*"])
    assert shell.run("keys", "update", key_id, "--expires", "never", "--json").json["expiresAt"] is None

    assert shell.run("keys", "disable", key_id, "--json").json["enabled"] is False
    await eventually(lambda: owner.try_to("whoami").code == 3)
    assert shell.run("keys", "enable", key_id, "--json").json["enabled"] is True
    await eventually(lambda: owner.try_to("whoami").code == 0)

    rotated = shell.run("keys", "rotate", key_id, "--grace", "0s")
    [text] = lines(rotated.output)
    await eventually(lambda: owner.try_to("whoami").code == 3)
    assert shell.with_environment(POSTROAD_KEY=text).run("whoami", "--json").json["keyId"] == key_id
    assert "shown once" in shell.run("keys", "rotate", key_id).complaints

    refused = shell.try_to("keys", "delete", key_id, given="n\n")
    assert (refused.code, "'reader'" in refused.output) == (1, True)
    assert "deleted" in shell.run("keys", "delete", key_id, "--yes").output
    assert shell.try_to("keys", "show", key_id).code == 4


def test_the_platforms_keys_are_apart(operator: Shell, shell: Shell) -> None:
    made = operator.run("keys", "create", "operator", "--platform", "--json").json
    assert made["key"].startswith("pr_admin_")
    listed = operator.run("keys", "list", "--platform", "--json").json
    assert {key["tenant"] for key in listed} == {None}
    assert shell.try_to("keys", "list", "--platform").code == 3
    operator.run("keys", "delete", made["record"]["id"], "--yes")


def test_a_keys_text_is_not_taken_for_its_id(shell: Shell, running: Installation) -> None:
    finished = shell.try_to("keys", "show", running.credentials["tenant_key"])
    assert finished.code == 2
    assert running.credentials["tenant_key"] not in finished.complaints


# JWT secrets and tokens


async def test_jwt_secrets_are_made_given_and_deleted(shell: Shell, tmp_path: Path, name: str) -> None:
    made = shell.run("secrets", "create", name, "--expires", "30d")
    [secret] = lines(made.output)
    assert len(secret) >= 32
    (tmp_path / "secret").write_text("of the tenant's own, and long enough\n")
    own = shell.run("secrets", "create", f"{name}-own", "--secret-file", str(tmp_path / "secret"))
    assert "long enough" not in own.output + own.complaints
    await told(lambda: shell.run("secrets", "list"), name, f"{name}-own")
    for record in shell.run("secrets", "list", "--json").json:
        if record["name"].startswith(name):
            shell.run("secrets", "delete", record["id"], "--yes")
    assert name not in shell.run("secrets", "list").output


def test_a_token_is_alone_on_standard_output(shell: Shell) -> None:
    made = shell.run("tokens", "create", "telemetry", "--expires-in", "15m", "--once")
    assert made.output.startswith("pr_token_")
    assert len(lines(made.output)) == 1
    assert shell.run("tokens", "create", "telemetry", "--json").json["resource"] == "telemetry"


# Invites


async def test_an_invite_is_made_and_claimed_without_a_key(operator: Shell, running: Installation, name: str) -> None:
    made = operator.run("invites", "create", "--tenant", name, "--note", "for a test", "--expires-in", "2d")
    [code] = lines(made.output)
    nobody = Shell(operator.home, {"POSTROAD_URL": running.url})
    [key] = lines(nobody.run("invites", "claim", "-", "--key-name", "mine", given=f"{code}\n").output)
    me = nobody.with_environment(POSTROAD_KEY=key).run("whoami", "--json").json
    assert (me["tenant"], me["keyName"]) == (name, "mine")
    await told(lambda: operator.run("invites", "list"), name, "claimed")
    assert nobody.try_to("invites", "claim", code).code == 4


def test_a_revoked_invite_is_not_known(operator: Shell, name: str) -> None:
    made = operator.run("invites", "create", "--json").json
    refused = operator.try_to("invites", "revoke", made["invite"]["id"], given="n\n")
    assert refused.code == 1
    assert "revoked" in operator.run("invites", "revoke", made["invite"]["id"], "--yes").output
    assert operator.try_to("invites", "claim", made["code"], "--tenant", name).code == 4


# Settings and the audit log


async def test_settings_are_chosen_and_taken_back(operator: Shell, name: str) -> None:
    operator.run("tenants", "create", name)
    operator.run("--tenant", name, "settings", "set", "max_queues=12", "audit-mode=jobs_only", "autoCreateQueues=true")

    def shown() -> Finished:
        return operator.run("--tenant", name, "settings", "show")

    await told(shown, "max_queues", "12", "jobs_only", "chosen")
    as_json = operator.run("--tenant", name, "settings", "show", "--json").json
    assert as_json["chosen"] == {"maxQueues": 12, "auditMode": "jobs_only", "autoCreateQueues": True}
    operator.run("--tenant", name, "settings", "unset", "max-queues", "auditMode")
    await eventually(lambda: "jobs_only" not in shown().output)


async def test_the_platforms_defaults_are_set_apart(operator: Shell) -> None:
    operator.run("settings", "set", "--platform", "pull_max=499")
    await told(lambda: operator.run("settings", "show", "--platform"), "499")
    operator.run("settings", "unset", "pull_max", "--platform")


def test_the_audit_log_is_filtered(operator: Shell, shell: Shell) -> None:
    key = shell.run("keys", "create", "audited", "--json").json["record"]["id"]
    shell.run("keys", "update", key, "--name", "renamed")
    entries = shell.run("audit", "--target", key, "--since", "1h", "--json").json
    assert [entry["action"] for entry in entries] == ["key.change", "key.create"]
    assert "name=renamed" in shell.run("audit", "--target", key, "--action", "key.*").output
    filters = ("--actor", entries[0]["actorKeyId"], "--request-id", entries[0]["requestId"], "--until", "2100-01-01")
    assert len(operator.run("audit", "--tenant", "default", *filters, "--json").json) == 1
    assert len(operator.run("audit", "--limit", "2", "--json").json) == 2
