"""`postroad verify` and `postroad upgrade` against a running installation."""

import json
import re
from pathlib import Path

import pytest

from postroad.verification.checks import checks
from postroad.verification.installation import Caller, CheckFailed, Installation, expect
from postroad.verification.verify import _result
from tests.architecture.source import ROOT
from tests.cli.shell import Shell
from tests.installation import Installation as RunningInstallation

OF_ANOTHER_TENANT = "another tenant is not visible"


def test_the_guarantees_of_an_installation_hold(shell: Shell) -> None:
    done = shell.run_process("verify", "--json")
    assert done.code == 0, done
    found = done.json
    assert found["holds"] is True
    assert [one["name"] for one in found["checks"]] == [check.name for check in checks()]
    assert {one["name"]: one["state"] for one in found["checks"] if one["state"] != "ok"} == {OF_ANOTHER_TENANT: "skipped"}
    assert "verify-" not in shell.run("queues", "list").stdout, "the temporary queue is removed"


def test_the_guarantees_hold_in_temporary_tenants(operator: Shell) -> None:
    done = operator.run_process("verify", "--new-tenant")
    assert done.code == 0, done
    assert f"{len(checks())} of {len(checks())} hold" in done.stdout
    tenants = [one["id"] for one in operator.run("tenants", "list", "--json").json if one["state"] == "ready"]
    assert not [name for name in tenants if name.startswith("verify-")]


def test_a_tenant_that_another_one_sees_fails_the_command(operator: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_the_same(where: Installation) -> Caller:
        where.undo.append(lambda: where.caller.call("DELETE", where.queue_of_other))
        return where.caller

    [check] = [check for check in checks() if check.name == OF_ANOTHER_TENANT]
    monkeypatch.setattr("postroad.verification.verify.checks", lambda: (check, checks()[-1]))
    done = operator.invoke("verify")
    assert done.code == 0 and re.search(rf"^ok +{OF_ANOTHER_TENANT}", done.stdout, re.MULTILINE), done.stdout
    monkeypatch.setattr(Installation, "other_tenant", is_the_same)
    done = operator.invoke("verify")
    assert done.code == 1
    assert re.search(rf"^FAILED +{OF_ANOTHER_TENANT}", done.stdout, re.MULTILINE), done.stdout


def test_a_check_without_its_scope_is_skipped(shell: Shell) -> None:
    key = shell.run("keys", "create", "narrow", "--scope", "write", "--scope", "admin", "--json").json["key"]
    found = shell.with_environment(POSTROAD_KEY=key).run("verify", "--json").json
    states = {one["name"]: one["state"] for one in found["checks"]}
    assert states["publish is durable"] == "skipped" and states["ready"] == "ok" and states["cleanup"] == "ok"


def test_a_server_that_does_not_respond_is_reported(shell: Shell) -> None:
    done = shell.with_environment(POSTROAD_URL="http://127.0.0.1:9").invoke("verify")
    assert done.code == 5 and "does not respond" in done.stderr


def test_a_guarantee_that_does_not_hold_fails_the_command(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Installation, "ack", lambda _self, _message: None)  # nothing is acknowledged
    done = shell.invoke("verify")
    assert done.code == 1
    assert re.search(r"^FAILED  an acknowledged message is gone", done.stdout, re.MULTILINE), done.stdout


def test_a_response_without_a_field_fails_its_check() -> None:
    check = checks()[1]
    where = Installation(None, "p", frozenset(check.needs), "n")  # type: ignore[arg-type]
    empty: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Installation, "publish", lambda *_a, **_k: empty["messageId"])
        result = _result(check, where)
    assert result.state == "failed" and "not as described" in result.detail
    with pytest.raises(CheckFailed, match="nothing"):
        expect([], "nothing")


def test_the_console_has_the_same_checks_in_the_same_order() -> None:
    source = (ROOT / "console" / "src" / "pages" / "verify" / "checks.ts").read_text()
    assert "verification/checks.json" in source
    assert re.findall(r"\{ \.\.\.listed\('([^']+)'\), run:", source) == [check.name for check in checks()][:-1]


def test_upgrade_check_shows_the_formats(shell: Shell, running: RunningInstallation) -> None:
    done = shell.run_process("upgrade", "--check", "--data", str(running.home / "var"), "--json")
    assert done.code == 0, done
    found = json.loads(done.stdout)
    assert found["canRun"] is True and found["writtenBy"]
    assert {one["recorded"] for one in found["formats"]} == {1}
    assert shell.invoke("upgrade").code == 2


def test_init_writes_the_secrets_of_containers_once(anonymous: Shell, tmp_path: Path) -> None:
    assert "nats-auth.conf" in anonymous.run("init", "--out", str(tmp_path / "secrets")).stdout
    again = anonymous.invoke("init", "--out", str(tmp_path / "secrets"))
    assert again.code == 1 and "already" in again.stderr
