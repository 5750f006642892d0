"""Commands of `postroad queues`. Generated from the route table by `make generate`; do not edit."""

from itertools import islice
from typing import Annotated, Literal

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected
from postroad.cli.queues import queues
from postroad.cli.rendering import json_value, numbers, show_done, show_item, show_list
from postroad.cli.times import ago


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
        int | None,
        typer.Option(
            "--dedupe-window-ms", help="How long an idempotency key, or a `dedupeId` (5 minutes by default), is remembered."
        ),
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
        str | None, typer.Option("--geo", help="Place: `auto`, a geo (`na sa eu ap oc af`), a region or a tag of servers.")
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
    archive: Annotated[
        bool, typer.Option("--archive", help="Also store the payloads of messages in the lake of the pipeline.")
    ] = False,
    ordered: Annotated[
        bool,
        typer.Option(
            "--ordered", help="Messages of a group are delivered in order, to one consumer at a time. Cannot be changed."
        ),
    ] = False,
    dedupe_by_content: Annotated[
        bool, typer.Option("--dedupe-by-content", help="In an ordered queue, a hash of the payload is the `dedupeId`.")
    ] = False,
    dedupe_scope: Annotated[
        Literal["queue", "group"] | None, typer.Option("--dedupe-scope", help="Where a `dedupeId` is remembered.")
    ] = None,
    backend: Annotated[
        Literal["engine", "rabbitmq"] | None,
        typer.Option(
            "--backend", help="Where the messages are; fixed at creation. The default is the installation's, if that can."
        ),
    ] = None,
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
                ordered=ordered,
                dedupe_by_content=dedupe_by_content,
                dedupe_scope=dedupe_scope,
                backend=backend,
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
def pause_queues(
    queue: Annotated[str, typer.Argument(help="Name of the queue.")],
    reason: Annotated[str | None, typer.Option("--reason", help="Shown to everyone who sees the queue.")] = None,
    as_json: AsJson = False,
) -> None:
    """Pause deliveries of a queue.

    Pulls return no messages, on all workers, until the queue is resumed. Publishing and acknowledging continue.
    """
    with connected() as client:
        show_done(client.queues.pause(queue, reason=reason), as_json, f"paused {queue}")


@queues.command("resume")
def resume_queues(queue: Annotated[str, typer.Argument(help="Name of the queue.")], as_json: AsJson = False) -> None:
    """Resume deliveries of a queue."""
    with connected() as client:
        show_done(client.queues.resume(queue), as_json, f"resumed {queue}")


@queues.command("message")
def message_queues(
    queue: Annotated[str, typer.Argument(help="Name of the queue.")],
    message: Annotated[str, typer.Argument(help="Id of the message.")],
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Show a message of a queue with its payload.

    In any state but dead. Its id begins with the time, so the search begins there.
    """
    with connected() as client:
        show_item(client.queues.get_message(queue, message), as_json, wide=wide)


@queues.command("remove")
def remove_queues(
    queue: Annotated[str, typer.Argument(help="Name of the queue.")],
    message: Annotated[str, typer.Argument(help="Id of the message.")],
    yes: Yes = False,
) -> None:
    """Remove a message from a queue.

    Its job is cancelled, and can be retried for a week. A consumer that has leased it learns of it when it extends
    the lease.
    """
    with connected() as client:
        confirm(f"Remove the message {message} of {queue}?", yes)
        client.queues.delete_message(queue, message)
        typer.echo(f"removed {message}")


@queues.command("search")
def search_queues(
    search: Annotated[str | None, typer.Option("--search", help="Text that the payload contains.")] = None,
    header: Annotated[str | None, typer.Option("--header", help="`name`, or `name=value`.")] = None,
    field: Annotated[
        str | None, typer.Option("--field", help="`path.to.field=value` in the payload; the value is JSON or text.")
    ] = None,
    message_id: Annotated[str | None, typer.Option("--message-id", help="Id of the message.")] = None,
    job_id: Annotated[str | None, typer.Option("--job-id", help="Id of the job.")] = None,
    correlation_id: Annotated[str | None, typer.Option("--correlation-id", help="Correlation id of the message.")] = None,
    priority: Annotated[
        Literal["high", "normal", "low"] | None, typer.Option("--priority", help="Only messages with this priority.")
    ] = None,
    group_id: Annotated[str | None, typer.Option("--group-id", help="Only messages of this group.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", help="Glob of queue names; `*` is any text.")] = None,
    state: Annotated[
        Literal["ready", "delayed", "dead"] | None, typer.Option("--state", help="`ready` includes leased and retrying.")
    ] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Exactly this reason.")] = None,
    error: Annotated[str | None, typer.Option("--error", help="Text that the last error contains.")] = None,
    error_group: Annotated[
        str | None,
        typer.Option("--error-group", help="Exactly this group of `groupBy=error`: the last error, with digits and ids as `#`."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--from", help="Stored at or after this time. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`."
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option("--to", help="Stored before this time. A time such as `2027-01-31T12:00:00Z`, or a span such as `12h`."),
    ] = None,
    body_max: Annotated[
        int | None, typer.Option("--body-max", help="Payloads with more bytes are cut and returned as `payloadStart`.")
    ] = None,
    order: Annotated[
        Literal["newest", "oldest"] | None, typer.Option("--order", help="Which messages of a queue come first.")
    ] = None,
    limit: Annotated[int, typer.Option(help="Most items to show.", min=1)] = 100,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Search messages over all queues.

    Waiting, leased, delayed and dead messages of all queues that the key may use, queue by queue. One request takes
    less than a second; it returns what it found and how much it searched; `nextCursor` continues.
    """
    with connected() as client:
        show_list(
            list(
                islice(
                    client.queues.search(
                        search=search,
                        header=header,
                        field=field,
                        message_id=message_id,
                        job_id=job_id,
                        correlation_id=correlation_id,
                        priority=priority,
                        group_id=group_id,
                        queue=queue,
                        state=state,
                        reason=reason,
                        error=error,
                        error_group=error_group,
                        since=ago(since) if since else None,
                        until=ago(until) if until else None,
                        body_max=body_max,
                        order=order,
                        page_size=min(limit, 1000),
                    ),
                    limit,
                )
            ),
            as_json,
            ("queue", "state", "message_id", "enqueued_at", "payload_bytes", "last_error"),
            wide=wide,
        )


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


@queues.command("consumers")
def consumers_queues(
    queue: Annotated[str, typer.Argument(help="Name of the queue.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """List the keys that consume a queue.

    With their last pull and ack, leases, rates and failures: of the last 15 minutes, or with leases.
    """
    with connected() as client:
        show_item(client.traffic.consumers(queue), as_json, wide=wide)


@queues.command("publishers")
def publishers_queues(
    queue: Annotated[str, typer.Argument(help="Name of the queue.")], as_json: AsJson = False, wide: Wide = False
) -> None:
    """List the keys that publish to a queue. Of the last 15 minutes, the busiest first."""
    with connected() as client:
        show_item(client.traffic.publishers(queue), as_json, wide=wide)


@queues.command("traffic")
def traffic_queues(
    by: Annotated[
        Literal["key,queue", "key", "queue"] | None,
        typer.Option("--by", help="What to add up: pairs of key and queue, keys, or queues."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Rows to show, the busiest first.")] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Show which keys and queues cause the traffic.

    Rates over ten seconds, the busiest first, with the time since when there is traffic.
    """
    with connected() as client:
        show_item(client.traffic.get(by=by, limit=limit), as_json, wide=wide)
