"""`postroad regions`."""

from typing import Annotated

import typer

from postroad.cli.output import AsJson, Wide, connected, print_json, show
from postroad.cli.table import Column

_HEAD = ("region", "geo", Column("servers", priority=1), "leaders", "replicas")


def regions(
    empty: Annotated[bool, typer.Option("--empty/--no-empty", help="Regions without servers, too.")] = True,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Show the regions, their servers, and where your queues, topics and buckets are."""
    with connected() as client:
        found = client.regions.get(empty=empty)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            one.name or "-",
            one.geo or "-",
            ", ".join(node.name if node.is_up else f"{node.name} (down)" for node in one.nodes),
            one.leaders,
            one.replicas,
        )
        for one in found.regions
    ]
    show(rows, False, _HEAD, tuple, wide=wide)
    for text, names in (("without a leader", found.without_leader), ("moving", found.moving)):
        if names:
            typer.echo(f"{text}: {', '.join(names)}")
