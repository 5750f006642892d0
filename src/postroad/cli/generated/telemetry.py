"""Commands of `postroad telemetry`. Generated from the route table by `make generate`; do not edit."""

from postroad.cli.output import AsJson, Wide, connected
from postroad.cli.rendering import show_item
from postroad.cli.telemetry import telemetry


@telemetry.command("status")
def status_telemetry(as_json: AsJson = False, wide: Wide = False) -> None:
    """Show the state of the telemetry queue.

    The queue `_telemetry` has the events about commands. It exists from the first service on.
    """
    with connected() as client:
        show_item(client.telemetry.status(), as_json, wide=wide)
