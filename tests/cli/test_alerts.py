"""Alerts, telemetry and route health on the command line."""

import httpx

from tests.alerts.mail_server import Mailbox
from tests.cli.shell import Shell
from tests.cli.test_commands import key_id
from tests.waiting import eventually

NO_ALERT = "00000000-0000-8000-8000-000000000000"


def test_rules_and_channels_are_managed(shell: Shell) -> None:
    shell.run("alerts", "put-channel", "cli-hook", "webhook", "--url", "https://example.com/alerts")
    assert "cli-hook" in shell.run("alerts", "channels").stdout
    assert "webhook" in shell.run("alerts", "show-channel", "cli-hook").stdout
    shell.run("alerts", "rotate-channel", "cli-hook")
    assert "Alert channel not found" in shell.invoke("alerts", "confirm-channel", "none", "12345678").stderr
    assert "nothing is sent" in shell.invoke("alerts", "test-channel", "dashboard").stderr
    shell.run("alerts", "put-rule", "cli-rule", "snavio.command.failed")
    assert "snavio.command.failed" in shell.run("alerts", "show-rule", "cli-rule").stdout
    assert "command-invalid" in shell.run("alerts", "rules", "--json").stdout
    assert "deleted" in shell.run("alerts", "delete-rule", "cli-rule").stdout
    assert "deleted" in shell.run("alerts", "delete-channel", "cli-hook").stdout


def test_an_email_channel_is_confirmed_and_tested(shell: Shell, name: str, mailbox: Mailbox) -> None:
    address = f"{name}@example.com"
    shell.run("alerts", "put-channel", name, "email", "--address", address)
    assert "the channel is unconfirmed" in shell.invoke("alerts", "test-channel", name).stderr
    [message] = mailbox.to(address)
    code = message.get_content().partition("Code: ")[2][:8]
    assert shell.run("alerts", "confirm-channel", name, code).stdout == f"confirmed {name}\n"
    assert shell.run("alerts", "test-channel", name, "--json").json["outcome"] == "delivered"
    assert mailbox.to(address)[1]["Subject"] == f"Test of the alert channel {name}"
    shell.run("alerts", "delete-channel", name)


def send_forged_command(shell: Shell, service: str) -> None:
    forged = shell.run("commands", "sign", "bot", "post", "1", "--secret", "of another service").stdout
    headers = {"Authorization": f"Bearer {shell.environment['POSTROAD_KEY']}", "X-Postroad-Service": service}
    answer = httpx.post(f"{shell.environment['POSTROAD_URL']}/v1/commands", content=forged, headers=headers)
    assert answer.json()["reason"] == "hmac-invalid"


async def test_an_alert_is_shown_acknowledged_and_resolved(shell: Shell, operator: Shell, name: str) -> None:
    """A critical one that no channel gets: operators see it, too."""
    shell.run("services", "put", name, "--trusted-key", key_id(shell))
    shell.run("alerts", "put-rule", name, "snavio.command.invalid", "--source", name, "--severity", "critical")
    send_forged_command(shell, name)
    await eventually(lambda: shell.run("alerts", "list", "--rule", name, "--json").json)
    [alert] = shell.run("alerts", "list", "--rule", name, "--status", "open", "--json").json
    assert (alert["severity"], alert["count"], alert["event"]) == ("critical", 1, "snavio.command.invalid")
    assert f"default/{name}" in shell.run("alerts", "show", alert["id"]).stdout
    await eventually(lambda: alert["id"] in operator.run("alerts", "operators", "--rule", name).stdout)
    assert shell.invoke("alerts", "operators").code == 3
    assert shell.run("alerts", "ack", alert["id"], "--json").json["status"] == "acknowledged"
    assert shell.run("alerts", "resolve", alert["id"], "--json").json["status"] == "resolved"
    assert shell.run("alerts", "show", alert["id"], "--json").json["resolvedBy"] == key_id(shell)
    assert shell.run("alerts", "list", "--rule", name, "--status", "open", "--json").json == []
    shell.run("alerts", "delete-rule", name)


def test_an_alert_that_does_not_exist_is_refused(shell: Shell) -> None:
    assert "Alert not found" in shell.invoke("alerts", "show", NO_ALERT).stderr
    assert "Alert not found" in shell.invoke("alerts", "ack", NO_ALERT).stderr
    assert "Alert not found" in shell.invoke("alerts", "resolve", NO_ALERT).stderr


def test_telemetry_and_health(shell: Shell) -> None:
    shell.run("services", "put", "cli-telemetry")
    assert "waiting" in shell.run("telemetry", "status", "--json").stdout
    shell.run("telemetry", "tail", "--queue", "--once")
    shell.run("routes", "health")
    shell.run("routes", "misroutes")
