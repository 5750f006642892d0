"""Commands of `postroad alerts`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated, Literal

import typer

from postroad.cli.output import AsJson, Wide, connected
from postroad.cli.rendering import json_value, show_done, show_item, show_list, show_secret

alerts = typer.Typer(help="Alerts, their rules, and the channels that they are sent to.", no_args_is_help=True)


@alerts.command("list")
def list_alerts(
    status: Annotated[
        Literal["open", "acknowledged", "resolved"] | None, typer.Option("--status", help="Only alerts with this status.")
    ] = None,
    rule: Annotated[str | None, typer.Option("--rule", help="Only alerts of this rule.")] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List alerts. Newest first. Resolved alerts are kept for 90 days."""
    with connected() as client:
        show_list(
            list(islice(client.alerts.list(status=status, rule=rule, page_size=min(limit, 1000)), limit)),
            as_json,
            ("id", "severity", "status", "rule", "group", "count", "last_at"),
            wide=wide,
        )


@alerts.command("show")
def show_alerts(
    alert: Annotated[str, typer.Argument(help="Id of the alert.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Show an alert."""
    with connected() as client:
        show_item(client.alerts.get(alert), as_json, wide=wide)


@alerts.command("ack")
def ack_alerts(alert: Annotated[str, typer.Argument(help="Id of the alert.")], as_json: AsJson = False) -> None:
    """Acknowledge an alert. It stays open and counts events, but sends no further notifications."""
    with connected() as client:
        show_done(client.alerts.ack(alert), as_json, f"acknowledged {alert}")


@alerts.command("resolve")
def resolve_alerts(alert: Annotated[str, typer.Argument(help="Id of the alert.")], as_json: AsJson = False) -> None:
    """Resolve an alert. Later events open another alert."""
    with connected() as client:
        show_done(client.alerts.resolve(alert), as_json, f"resolved {alert}")


@alerts.command("operators")
def operators_alerts(
    status: Annotated[
        Literal["open", "acknowledged", "resolved"] | None, typer.Option("--status", help="Only alerts with this status.")
    ] = None,
    rule: Annotated[str | None, typer.Option("--rule", help="Only alerts of this rule.")] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List alerts for operators.

    Alerts of the installation, and critical ones of tenants that no channel got. Newest first.
    """
    with connected() as client:
        show_list(
            list(islice(client.alerts.list_for_operators(status=status, rule=rule, page_size=min(limit, 1000)), limit)),
            as_json,
            ("tenant", "id", "severity", "status", "rule", "group", "count", "last_at"),
            wide=wide,
        )


@alerts.command("rules")
def rules_alerts(as_json: AsJson = False, wide: Wide = False) -> None:
    """List alert rules."""
    with connected() as client:
        show_item(client.alerts.rules(), as_json, wide=wide)


@alerts.command("put-rule")
def put_rule_alerts(
    rule: Annotated[str, typer.Argument(help="Name of the alert rule.")],
    events: Annotated[str, typer.Argument(help="Pattern of event types.")],
    source: Annotated[str | None, typer.Option("--source", help="Only commands from this service.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="Only commands to this service.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Only events with this `reason`.")] = None,
    min_count: Annotated[int | None, typer.Option("--min-count", help="Events in a window before an alert opens.")] = None,
    window_seconds: Annotated[int | None, typer.Option("--window-seconds", help="Notifications are grouped for so long.")] = None,
    severity: Annotated[
        Literal["info", "warning", "critical"] | None, typer.Option("--severity", help="Severity of its alerts.")
    ] = None,
    channels: Annotated[list[str] | None, typer.Option("--channel", help="Names of channels.")] = None,
    quiet_hours: Annotated[str | None, typer.Option("--quiet-hours", help="Hours in which notifications wait, as JSON.")] = None,
    enabled: Annotated[bool | None, typer.Option("--enabled/--no-enabled", help="Whether it raises alerts.")] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Create or replace an alert rule.

    A rule with the name of a built-in one replaces it. Fields that are left out get their defaults. The critical
    events cannot be left without a channel.
    """
    with connected() as client:
        show_item(
            client.alerts.put_rule(
                rule,
                events,
                source=source,
                target=target,
                reason=reason,
                min_count=min_count,
                window_seconds=window_seconds,
                severity=severity,
                channels=channels,
                quiet_hours=json_value(quiet_hours, "quiet_hours"),
                enabled=enabled,
            ),
            as_json,
            wide=wide,
        )


@alerts.command("show-rule")
def show_rule_alerts(
    rule: Annotated[str, typer.Argument(help="Name of the alert rule.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Show an alert rule."""
    with connected() as client:
        show_item(client.alerts.get_rule(rule), as_json, wide=wide)


@alerts.command("delete-rule")
def delete_rule_alerts(rule: Annotated[str, typer.Argument(help="Name of the alert rule.")]) -> None:
    """Delete an alert rule. A built-in rule gets its defaults again."""
    with connected() as client:
        client.alerts.delete_rule(rule)
        typer.echo(f"deleted the rule {rule}")


@alerts.command("channels")
def channels_alerts(as_json: AsJson = False, wide: Wide = False) -> None:
    """List alert channels."""
    with connected() as client:
        show_item(client.alerts.channels(), as_json, wide=wide)


@alerts.command("put-channel")
def put_channel_alerts(
    channel: Annotated[str, typer.Argument(help="Name of the alert channel.")],
    kind: Annotated[Literal["email", "webhook"], typer.Argument(help="How alerts are sent.")],
    address: Annotated[str | None, typer.Option("--address", help="Address of an `email` channel.")] = None,
    url: Annotated[str | None, typer.Option("--url", help="Endpoint of a `webhook` channel.")] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Create or replace an alert channel.

    An email address gets a code, with which it is confirmed. A webhook gets a secret, shown once: notifications are
    signed by the rules of Standard Webhooks.
    """
    with connected() as client:
        show_item(client.alerts.put_channel(channel, kind, address=address, url=url), as_json, wide=wide)


@alerts.command("show-channel")
def show_channel_alerts(
    channel: Annotated[str, typer.Argument(help="Name of the alert channel.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Show an alert channel with its last attempts."""
    with connected() as client:
        show_item(client.alerts.get_channel(channel), as_json, wide=wide)


@alerts.command("delete-channel")
def delete_channel_alerts(channel: Annotated[str, typer.Argument(help="Name of the alert channel.")]) -> None:
    """Delete an alert channel."""
    with connected() as client:
        client.alerts.delete_channel(channel)
        typer.echo(f"deleted the channel {channel}")


@alerts.command("confirm-channel")
def confirm_channel_alerts(
    channel: Annotated[str, typer.Argument(help="Name of the alert channel.")],
    code: Annotated[str, typer.Argument(help="The code in the email.")],
    as_json: AsJson = False,
) -> None:
    """Confirm the address of an email channel."""
    with connected() as client:
        show_done(client.alerts.confirm_channel(channel, code), as_json, f"confirmed {channel}")


@alerts.command("rotate-channel")
def rotate_channel_alerts(
    channel: Annotated[str, typer.Argument(help="Name of the alert channel.")], as_json: AsJson = False
) -> None:
    """Give a webhook a new secret. Both secrets are valid for a day: notifications have a signature of each."""
    with connected() as client:
        show_secret(client.alerts.rotate_channel(channel), as_json, "secret")


@alerts.command("test-channel")
def test_channel_alerts(
    channel: Annotated[str, typer.Argument(help="Name of the alert channel.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Send a test notification."""
    with connected() as client:
        show_item(client.alerts.test_channel(channel), as_json, wide=wide)
