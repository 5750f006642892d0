"""Alerts, rules and channels with both clients, against a running gateway."""

import pytest

from postroad.client.errors import (
    AlertChannelNotFound,
    AlertNotFound,
    AlertRuleNotFound,
    CriticalEventUncovered,
    Forbidden,
    PreconditionFailed,
)
from tests.client.conftest import Sdk

pytestmark = pytest.mark.engine
NO_ALERT = "00000000-0000-8000-8000-000000000000"


async def test_rules_and_channels_are_managed(sdk: Sdk) -> None:
    saved = await sdk("alerts.put_channel", "hook", "webhook", url="https://example.com/alerts")
    assert saved.secret is not None and saved.state == "active"
    assert (await sdk("alerts.rotate_channel", "hook")).secret != saved.secret
    assert [one.name for one in (await sdk("alerts.channels")).channels] == ["dashboard", "hook"]
    assert (await sdk("alerts.get_channel", "hook")).secrets == 2
    with pytest.raises(PreconditionFailed, match="POSTROAD_SMTP_URL"):
        await sdk("alerts.put_channel", "mail", "email", address="a@example.com")
    with pytest.raises(AlertChannelNotFound):
        await sdk("alerts.confirm_channel", "mail", "12345678")
    with pytest.raises(PreconditionFailed):
        await sdk("alerts.test_channel", "dashboard")
    rule = await sdk("alerts.put_rule", "failures", "snavio.command.failed", channels=["hook"], min_count=5)
    assert (rule.channels, rule.min_count, rule.built_in) == (("hook",), 5, False)
    assert (await sdk("alerts.get_rule", "failures")).events == "snavio.command.failed"
    assert "failures" in [one.name for one in (await sdk("alerts.rules")).rules]
    await sdk("alerts.delete_rule", "failures")
    with pytest.raises(AlertRuleNotFound):
        await sdk("alerts.get_rule", "failures")
    with pytest.raises(CriticalEventUncovered):
        await sdk("alerts.put_rule", "command-invalid", "snavio.command.invalid", enabled=False)
    await sdk("alerts.delete_channel", "hook")


async def test_alerts_are_listed_and_settled(sdk: Sdk) -> None:
    assert await sdk("alerts.list", status="open") == []
    for method in ("alerts.get", "alerts.ack", "alerts.resolve"):
        with pytest.raises(AlertNotFound):
            await sdk(method, NO_ALERT)
    with pytest.raises(AlertNotFound):
        await sdk("alerts.get", NO_ALERT)
    with pytest.raises(AlertNotFound):
        await sdk("alerts.ack", NO_ALERT)
    with pytest.raises(AlertNotFound):
        await sdk("alerts.resolve", NO_ALERT)
    with pytest.raises(Forbidden):
        await sdk("alerts.list_for_operators")
