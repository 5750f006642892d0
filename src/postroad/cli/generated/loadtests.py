"""Commands of `postroad loadtests`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated

import typer

from postroad.cli.output import AsJson, Wide, connected
from postroad.cli.rendering import show_item, show_list

loadtests = typer.Typer(help="Traffic that the server makes by itself, and its latencies.", no_args_is_help=True)


@loadtests.command("start")
def start_loadtests(
    queue: Annotated[
        str | None, typer.Option("--queue", help="Queue to publish to; null: one that is deleted after the test.")
    ] = None,
    rate_per_second: Annotated[
        int | None, typer.Option("--rate-per-second", help="Messages per second; null: as many as the limits allow.")
    ] = None,
    seconds: Annotated[int | None, typer.Option("--seconds", help="How long messages are published.")] = None,
    payload_bytes: Annotated[int | None, typer.Option("--payload-bytes", help="Size of the payload of a message.")] = None,
    publishers: Annotated[int | None, typer.Option("--publishers", help="Connections that publish.")] = None,
    consumers: Annotated[
        int | None, typer.Option("--consumers", help="Connections that pull and acknowledge; 0 with a queue of your own.")
    ] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Start a load test.

    The server publishes to and consumes from a queue through its own HTTP port, with a key that ends with the test.
    One test runs at a time. Allowed where Postroad listens on a loopback address, or if the operator allows it.
    """
    with connected() as client:
        show_item(
            client.loadtests.start(
                queue=queue,
                rate_per_second=rate_per_second,
                seconds=seconds,
                payload_bytes=payload_bytes,
                publishers=publishers,
                consumers=consumers,
            ),
            as_json,
            wide=wide,
        )


@loadtests.command("list")
def list_loadtests(
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100, as_json: AsJson = False, wide: Wide = False
) -> None:
    """List load tests. Newest first, without their points. Kept for a week after they ended."""
    with connected() as client:
        show_list(
            list(islice(client.loadtests.list(page_size=min(limit, 1000)), limit)),
            as_json,
            ("id", "queue", "state", "totals.published", "totals.per_second", "totals.p99_ms", "error", "created_at"),
            wide=wide,
        )


@loadtests.command("limits")
def limits_loadtests(as_json: AsJson = False, wide: Wide = False) -> None:
    """Show the limits of load tests."""
    with connected() as client:
        show_item(client.loadtests.limits(), as_json, wide=wide)


@loadtests.command("show")
def show_loadtests(
    loadtest: Annotated[str, typer.Argument(help="Id of the load test.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Show a load test with its seconds."""
    with connected() as client:
        show_item(client.loadtests.get(loadtest), as_json, wide=wide)


@loadtests.command("stop")
def stop_loadtests(
    loadtest: Annotated[str, typer.Argument(help="Id of the load test.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Stop a load test. It stops within a second or two; its results stay. A test that has ended does not change."""
    with connected() as client:
        show_item(client.loadtests.stop(loadtest), as_json, wide=wide)
