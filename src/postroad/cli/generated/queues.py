"""Commands of `postroad queues`. Generated from the route table by `make generate`; do not edit."""

from typing import Annotated

import typer

from postroad.cli.output import AsJson, Wide, connected
from postroad.cli.queues import queues
from postroad.cli.rendering import json_value, numbers, show_done, show_item


@queues.command("put")
def put_queues(
    queue: Annotated[str, typer.Argument(help="Name of the queue.")],
    visibility_timeout_ms: Annotated[
        int | None, typer.Option("--visibility-timeout-ms", help="How long a pulled message is hidden from other consumers.")
    ] = None,
    retention_ms: Annotated[
        int | None, typer.Option("--retention-ms", help="How long a message is kept once it is ready; 0: without limit.")
    ] = None,
    dedupe_window_ms: Annotated[
        int | None, typer.Option("--dedupe-window-ms", help="How long an idempotency key is remembered.")
    ] = None,
    max_attempts: Annotated[
        int | None, typer.Option("--max-attempts", help="Deliveries before a message becomes a dead letter; 0: no limit.")
    ] = None,
    retry_delays_ms: Annotated[
        str | None,
        typer.Option("--retry-delays-ms", help="Delay after each failed attempt; the last one is used for all further."),
    ] = None,
    dead_letter_queue: Annotated[
        str | None,
        typer.Option(
            "--dead-letter-queue",
            help="Queue that dead letters are published to, instead of the tenant's dead letters. It must exist.",
        ),
    ] = None,
    delay_ms: Annotated[
        int | None, typer.Option("--delay-ms", help="Time before the first delivery of messages that are published without one.")
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option("--max-messages", help="Publishing fails with status 507 above this number; 0: no limit.")
    ] = None,
    max_in_flight: Annotated[
        int | None,
        typer.Option(
            "--max-in-flight", help="At most this many messages are leased, or wait for a retry, at the same time; 0: no limit."
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", help="Copies of the queue. The installation's default if left out. A single server keeps one copy."
        ),
    ] = None,
    geo: Annotated[
        str | None,
        typer.Option("--geo", help="Placement tag of JetStream servers; `auto`: any. A tag that no server has is refused."),
    ] = None,
    schema: Annotated[str | None, typer.Option("--schema", help="JSON Schema that payloads must match.")] = None,
    expected_drain_seconds: Annotated[
        int | None,
        typer.Option("--expected-drain-seconds", help="The queue is unhealthy if its oldest message is older than this."),
    ] = None,
    tags: Annotated[str | None, typer.Option("--tags", help="Names and values for people and tools.")] = None,
    sqs_attributes: Annotated[
        str | None,
        typer.Option("--sqs-attributes", help="Attributes of the SQS API that queues have no setting for. See docs/aws.md."),
    ] = None,
    archive: Annotated[bool, typer.Option("--archive", help="Not implemented yet: true is refused.")] = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Create a queue or replace its settings.

    Settings that are left out get their defaults. The status is 201 if the queue is new.
    """
    with connected() as client:
        show_item(
            client.queues.put(
                queue,
                visibility_timeout_ms=visibility_timeout_ms,
                retention_ms=retention_ms,
                dedupe_window_ms=dedupe_window_ms,
                max_attempts=max_attempts,
                retry_delays_ms=numbers(retry_delays_ms),
                dead_letter_queue=dead_letter_queue,
                delay_ms=delay_ms,
                max_messages=max_messages,
                max_in_flight=max_in_flight,
                replicas=replicas,
                geo=geo,
                schema=json_value(schema, "schema"),
                expected_drain_seconds=expected_drain_seconds,
                tags=json_value(tags, "tags"),
                sqs_attributes=json_value(sqs_attributes, "sqs_attributes"),
                archive=archive,
            ),
            as_json,
            wide=wide,
        )


@queues.command("show")
def show_queues(
    queue: Annotated[str, typer.Argument(help="Name of the queue.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """Show a queue and its stats."""
    with connected() as client:
        show_item(client.queues.get(queue), as_json, wide=wide)


@queues.command("pause")
def pause_queues(queue: Annotated[str, typer.Argument(help="Name of the queue.")], as_json: AsJson = False) -> None:
    """Pause deliveries of a queue.

    Pulls return no messages, on all workers, until the queue is resumed. Publishing and acknowledging continue.
    """
    with connected() as client:
        show_done(client.queues.pause(queue), as_json, f"paused {queue}")


@queues.command("resume")
def resume_queues(queue: Annotated[str, typer.Argument(help="Name of the queue.")], as_json: AsJson = False) -> None:
    """Resume deliveries of a queue."""
    with connected() as client:
        show_done(client.queues.resume(queue), as_json, f"resumed {queue}")


@queues.command("move")
def move_queues(
    queue: Annotated[str, typer.Argument(help="Name of the queue.")],
    to: Annotated[str | None, typer.Option("--to", help="Another queue. The queue of the dead letters if left out.")] = None,
    rate_per_second: Annotated[int | None, typer.Option("--rate-per-second", help="Messages per second.")] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Move the messages of a queue to another one.

    Starts a task that consumes the queue at the given rate; see /v1/tasks. Without `to`, messages of a dead-letter
    queue return to the queues that they come from. One move per queue is active at a time.
    """
    with connected() as client:
        show_item(client.queues.move(queue, to=to, rate_per_second=rate_per_second), as_json, wide=wide)
