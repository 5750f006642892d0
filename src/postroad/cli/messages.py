"""`postroad queues publish`, `pull`, `ack`, `nack`, `extend`, `peek` and `purge`."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected, print_json, show, to_json
from postroad.cli.queues import DryRun, Name, json_of, print_purged, queues
from postroad.cli.table import Column
from postroad.cli.times import Since, Until, ago

if TYPE_CHECKING:
    from postroad.api.receipts import ExtendedItem, ReceiptResult
    from postroad.client import Message, PeekedMessage

Receipts = Annotated[list[str], typer.Argument(help="Receipts printed by `pull`.")]
Search = Annotated[str | None, typer.Option(help="Text in the payload.")]
Header = Annotated[str | None, typer.Option(help="Header `name` or `name=value`.")]
Field = Annotated[str | None, typer.Option(help="Payload field, as `path.to.field=value`.")]
MessageId = Annotated[str | None, typer.Option(help="Message id.")]
JobId = Annotated[str | None, typer.Option(help="Job id of the message.")]
CorrelationId = Annotated[str | None, typer.Option(help="Correlation id.")]
OfPriority = Annotated[Literal["high", "normal", "low"] | None, typer.Option(help="Only messages with this priority.")]
OfGroup = Annotated[str | None, typer.Option(help="Only messages of this group.")]
BodyMax = Annotated[int, typer.Option(help="Truncate payloads above this number of bytes.", min=0)]
Limit = Annotated[int, typer.Option(help="Most messages to show.", min=1, max=1000)]
Cursor = Annotated[str | None, typer.Option(help="Cursor printed by the previous page.")]


@queues.command("publish")
def publish(
    queue: Name,
    payload: Annotated[str, typer.Argument(help="Payload as JSON; `-` reads standard input.")],
    header: Annotated[list[str] | None, typer.Option(help="Header `name=value`; can be repeated.")] = None,
    delay_ms: Annotated[int, typer.Option(help="Delay before the message can be delivered.")] = 0,
    run_at: Annotated[str | None, typer.Option(help="Time of the first delivery, instead of a delay.")] = None,
    expires_at: Annotated[str | None, typer.Option(help="No delivery begins at this time or later.")] = None,
    unique_key: Annotated[str | None, typer.Option(help="Store nothing while the queue has a message with this key.")] = None,
    priority: Annotated[
        Literal["high", "normal", "low"], typer.Option(help="Pulls get messages with `high` first and with `low` last.")
    ] = "normal",
    group_id: Annotated[str | None, typer.Option(help="Group of the message.")] = None,
    dedupe_id: Annotated[
        str | None, typer.Option(help="For ordered queues: store nothing if it was used in the last minutes.")
    ] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="Publishes with the same key are stored once.")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="Correlation id, delivered with the message.")] = None,
    cloudevent: Annotated[
        bool, typer.Option("--cloudevent", help="The payload is a CloudEvent in the JSON format. Excludes the options above.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Publish a message. Returns once it is stored durably."""
    content = json_of(sys.stdin.read() if payload == "-" else payload, "the payload")
    if cloudevent:
        others = (header, delay_ms, run_at, expires_at, unique_key, group_id, dedupe_id, idempotency_key, correlation_id)
        if any(others) or priority != "normal":
            raise typer.BadParameter("--cloudevent excludes the other options: an event has attributes instead")
        if not bytes(content).lstrip().startswith(b"{"):
            raise typer.BadParameter("an event is a JSON object")
    with connected() as client:
        if cloudevent:
            published = client.queues.publish_event(queue, msgspec.json.decode(content, type=dict[str, msgspec.Raw]))
        else:
            published = client.queues.publish(
                queue,
                content,
                headers=dict(pair(text) for text in header or []),
                delay_ms=delay_ms,
                run_at=run_at,
                expires_at=expires_at,
                unique_key=unique_key,
                priority=priority,
                group_id=group_id,
                dedupe_id=dedupe_id,
                idempotency_key=idempotency_key,
                correlation_id=correlation_id,
            )
        show(published, as_json, ("message", "job", "enqueued"), lambda one: [one.message_id, one.job_id, one.enqueued_at])


@queues.command("pull")
def pull(
    queue: Name,
    count: Annotated[int, typer.Option("--max", help="Most messages to pull.")] = 1,
    wait_ms: Annotated[int, typer.Option(help="Time to wait for the first message.")] = 0,
    visibility_timeout_ms: Annotated[
        int | None, typer.Option(help="How long the messages are hidden from other consumers.")
    ] = None,
    max_per_group: Annotated[int | None, typer.Option(help="Most messages of each group of an ordered queue.")] = None,
    receive_id: Annotated[
        str | None, typer.Option(help="For ordered queues: repeat it to get the same messages again, with new leases.")
    ] = None,
    ack: Annotated[bool, typer.Option("--ack", help="Acknowledge the messages after printing them.")] = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Lease messages and print them. Without --ack they are delivered again after the visibility timeout."""
    with connected() as client:
        pulled = client.queues.pull(
            queue,
            max_messages=count,
            wait_ms=wait_ms,
            visibility_timeout_ms=visibility_timeout_ms,
            max_per_group=max_per_group,
            receive_id=receive_id,
        )
        show(
            pulled.messages,
            as_json,
            ("message", "attempt", "enqueued", "payload", "receipt"),
            _message_row,
            wide=wide,
            keep_values=True,  # a receipt is needed in full
        )
        if ack and pulled.messages:
            client.queues.ack_many(queue, pulled.messages)


@queues.command("ack")
def ack_messages(queue: Name, receipts: Receipts, as_json: AsJson = False) -> None:
    """Acknowledge messages, so that they are not delivered again."""
    with connected() as client:
        _print_results(client.queues.ack_many(queue, receipts).results, as_json, "acknowledged")


@queues.command("nack")
def nack(
    queue: Name,
    receipts: Receipts,
    action: Annotated[
        Literal["requeue", "retry", "dlq"],
        typer.Option(help="`retry` after the queue's retry delay, `requeue` at once, or `dlq`: dead-letter."),
    ] = "retry",
    delay_ms: Annotated[int | None, typer.Option(help="Delay instead of the queue's retry delay.")] = None,
    reason: Annotated[str | None, typer.Option(help="Stored with the job and the dead letter.")] = None,
    as_json: AsJson = False,
) -> None:
    """Negatively acknowledge messages: deliver them again, or dead-letter them."""
    with connected() as client:
        nacked = client.queues.nack_many(queue, receipts, action=action, delay_ms=delay_ms, reason=reason)
        _print_results(nacked.results, as_json, "dead-lettered" if action == "dlq" else "nacked")


@queues.command("extend")
def extend(
    queue: Name,
    receipts: Receipts,
    visibility_timeout_ms: Annotated[int, typer.Option(help="New visibility timeout, counted from now.")] = 30_000,
    as_json: AsJson = False,
) -> None:
    """Extend the visibility timeout of messages. Prints the new receipts, one per line, which replace the old ones."""
    with connected() as client:
        results = client.queues.extend_many(queue, receipts, visibility_timeout_ms).results
        if not as_json:
            for result in results:
                if result.new_receipt_id is not None:
                    typer.echo(result.new_receipt_id)
        _print_results(results, as_json, "extended", err=True)


def _print_results(
    results: "Sequence[ReceiptResult] | Sequence[ExtendedItem]", as_json: bool, action: str, *, err: bool = False
) -> None:
    if as_json:
        print_json(results)
    else:
        for result in results:
            if result.problem is not None:
                typer.echo(f"{result.receipt_id[:16]}…: {result.problem.title}", err=True)
        typer.echo(f"{action} {sum(result.ok for result in results)} of {len(results)}", err=err)
    if not all(result.ok for result in results):
        raise typer.Exit(1)


@queues.command("peek")
def peek(
    queue: Name,
    state: Annotated[
        Literal["ready", "delayed"], typer.Option(help="`ready`, which includes leased messages, or `delayed`.")
    ] = "ready",
    search: Search = None,
    header: Header = None,
    field: Field = None,
    message_id: MessageId = None,
    job_id: JobId = None,
    correlation_id: CorrelationId = None,
    priority: OfPriority = None,
    group_id: OfGroup = None,
    since: Since = None,
    until: Until = None,
    body_max: BodyMax = 512,
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Show messages without leasing them, oldest first. A message must match all filters.

    One call scans some thousands of messages and prints the cursor of the next page.
    """
    with connected() as client:
        page = client.queues.peek_page(
            queue,
            state=state,
            search=search,
            header=header,
            field=field,
            message_id=message_id,
            job_id=job_id,
            correlation_id=correlation_id,
            priority=priority,
            group_id=group_id,
            since=ago(since) if since else None,
            until=ago(until) if until else None,
            body_max=body_max,
            page_size=limit,
            cursor=cursor,
        )
        if as_json:
            print_json(page)
            return
        show(page.items, False, ("message", "job", "enqueued", Column("payload", priority=1)), _peeked_row, wide=wide)
        print_scan_summary(page.scanned, page.matched, page.next_cursor)


def print_scan_summary(scanned: int, matched: int, cursor: str | None) -> None:
    more = f"; next page: --cursor {cursor}" if cursor is not None else ""
    typer.echo(f"scanned {scanned:,}, matched {matched:,}{more}", err=True)


def _peeked_row(message: "PeekedMessage") -> list[object]:
    return [message.message_id, message.job_id, message.enqueued_at, payload_of(message)]


def payload_of(message: "PeekedMessage") -> str:
    if message.payload_start is not None:
        return f"{message.payload_start}… ({message.payload_bytes:,} bytes)"
    return to_json(message.payload).decode()


def _message_row(message: "Message") -> list[object]:
    payload = bytes(message.raw_payload).decode()
    return [message.message_id, message.attempt, message.enqueued_at, payload, message.receipt_id]


def pair(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not (name and mark):
        raise typer.BadParameter(f"{text!r} is not a header of the form name=value")
    return name, value


@queues.command("purge")
def purge_queue(
    queue: Name,
    search: Search = None,
    header: Header = None,
    field: Field = None,
    message_id: MessageId = None,
    job_id: JobId = None,
    correlation_id: CorrelationId = None,
    priority: OfPriority = None,
    group_id: OfGroup = None,
    state: Annotated[
        Literal["ready", "delayed"] | None, typer.Option(help="`ready` includes leased and retrying messages.")
    ] = None,
    since: Since = None,
    until: Until = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete the messages of a queue that match, including leased and delayed ones; without a filter, all.

    Dead letters are kept; see `dlq purge`.
    """
    from postroad.api.queue_purging import WaitingFilter

    wanted = WaitingFilter(
        search=search,
        header=header,
        field=field,
        message_id=message_id,
        job_id=job_id,
        correlation_id=correlation_id,
        priority=priority,
        group_id=group_id,
        state=state,
        since=ago(since) if since else None,
        until=ago(until) if until else None,
    )
    with connected() as client:
        purged = client.queues.purge(queue, dry_run=True, filter=wanted)
        if not dry_run:
            confirm(f"Delete {purged.count:,} messages of {queue}?", yes, err=as_json)
            purged = client.queues.purge(queue, filter=wanted)
        print_purged(purged, as_json, f"messages of {queue}")
