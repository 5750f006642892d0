"""`postroad queues publish`, `pull`, `ack`, `nack`, `extend` and `peek`: a queue's messages."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from postroad.cli.output import AsJson, Wide, connected, print_json, raw_json, show, to_json
from postroad.cli.queues import Name, json_of, queues
from postroad.cli.table import Column
from postroad.cli.times import ago

if TYPE_CHECKING:
    from postroad.api.queues import ExtendedItem, ReceiptResult
    from postroad.client import Message, PeekedMessage

Receipts = Annotated[list[str], typer.Argument(help="Receipts, as `pull` prints them.")]
Search = Annotated[str | None, typer.Option(help="A text in the payload.")]
Header = Annotated[str | None, typer.Option(help="`name`, or `name=value`.")]
Field = Annotated[str | None, typer.Option(help="`path.to.field=value` in the payload.")]
MessageId = Annotated[str | None, typer.Option(help="This message.")]
JobId = Annotated[str | None, typer.Option(help="The message of this job.")]
CorrelationId = Annotated[str | None, typer.Option(help="With this correlation id.")]
Since = Annotated[str | None, typer.Option(help="Not before: `12h` ago, or `2027-01-31T12:00:00Z`.")]
Until = Annotated[str | None, typer.Option(help="Before.")]
BodyMax = Annotated[int, typer.Option(help="Cut payloads that have more bytes.", min=0)]
Limit = Annotated[int, typer.Option(help="At most so many.", min=1, max=1000)]
Cursor = Annotated[str | None, typer.Option(help="Go on from here, as the last answer said.")]


@queues.command("publish")
def publish(
    queue: Name,
    payload: Annotated[str, typer.Argument(help="JSON; `-` reads it from standard input.")],
    header: Annotated[list[str] | None, typer.Option(help="name=value; may be repeated.")] = None,
    delay_ms: Annotated[int, typer.Option(help="Deliver not before this.")] = 0,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key twice is one message.")] = None,
    correlation_id: Annotated[str | None, typer.Option(help="Comes back with the message.")] = None,
    as_json: AsJson = False,
) -> None:
    """Publish one message; returns once it is stored durably."""
    with connected() as client:
        published = client.queues.publish(
            queue,
            json_of(sys.stdin.read() if payload == "-" else payload, "the payload", raw_json),
            headers=dict(_pair(text) for text in header or []),
            delay_ms=delay_ms,
            idempotency_key=idempotency_key,
            correlation_id=correlation_id,
        )
        show(published, as_json, ("message", "job", "enqueued"), lambda one: [one.message_id, one.job_id, one.enqueued_at])


@queues.command("pull")
def pull(
    queue: Name,
    count: Annotated[int, typer.Option("--max", help="At most so many messages.")] = 1,
    wait_ms: Annotated[int, typer.Option(help="Wait this long for the first.")] = 0,
    visibility_timeout_ms: Annotated[int | None, typer.Option(help="Keep them from others for this long.")] = None,
    ack: Annotated[bool, typer.Option("--ack", help="Acknowledge them once they are printed.")] = False,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Lease messages and print them. Without --ack they come back when their time is up."""
    with connected() as client:
        pulled = client.queues.pull(queue, max_messages=count, wait_ms=wait_ms, visibility_timeout_ms=visibility_timeout_ms)
        show(
            pulled.messages,
            as_json,
            ("message", "attempt", "enqueued", Column("payload", priority=1), "receipt"),
            _message_row,
            wide=wide,
        )
        if ack and pulled.messages:
            client.queues.ack_many(queue, pulled.messages)


@queues.command("ack")
def acknowledge(queue: Name, receipts: Receipts, as_json: AsJson = False) -> None:
    """Acknowledge messages: they will not be delivered again."""
    with connected() as client:
        _tell(client.queues.ack_many(queue, receipts).results, as_json, "acknowledged")


@queues.command("nack")
def give_back(
    queue: Name,
    receipts: Receipts,
    action: Annotated[
        Literal["requeue", "retry", "dlq"],
        typer.Option(help="`retry` later, by the queue's ladder; `requeue` at once; `dlq`: give up."),
    ] = "retry",
    delay_ms: Annotated[int | None, typer.Option(help="Instead of the ladder's delay.")] = None,
    reason: Annotated[str | None, typer.Option(help="Kept with the job and the dead letter.")] = None,
    as_json: AsJson = False,
) -> None:
    """Give messages back: to be delivered again, or to the dead letters."""
    with connected() as client:
        answer = client.queues.nack_many(queue, receipts, action=action, delay_ms=delay_ms, reason=reason)
        _tell(answer.results, as_json, "gave up" if action == "dlq" else "gave back")


@queues.command("extend")
def extend(
    queue: Name,
    receipts: Receipts,
    visibility_timeout_ms: Annotated[int, typer.Option(help="From now on.")] = 30_000,
    as_json: AsJson = False,
) -> None:
    """Keep messages for longer. Prints the receipts that settle them from now on, one a line."""
    with connected() as client:
        results = client.queues.extend_many(queue, receipts, visibility_timeout_ms).results
        if not as_json:
            for result in results:
                if result.new_receipt_id is not None:
                    typer.echo(result.new_receipt_id)
        _tell(results, as_json, "extended", err=True)


def _tell(results: "Sequence[ReceiptResult] | Sequence[ExtendedItem]", as_json: bool, done: str, *, err: bool = False) -> None:
    if as_json:
        print_json(results)
    else:
        for result in results:
            if result.problem is not None:
                typer.echo(f"{result.receipt_id[:16]}…: {result.problem.title}", err=True)
        typer.echo(f"{done} {sum(result.ok for result in results)} of {len(results)}", err=err)
    if not all(result.ok for result in results):
        raise typer.Exit(1)


@queues.command("peek")
def peek(
    queue: Name,
    state: Annotated[Literal["ready", "delayed"], typer.Option(help="`ready` (leased ones, too) or `delayed`.")] = "ready",
    search: Search = None,
    header: Header = None,
    field: Field = None,
    message_id: MessageId = None,
    job_id: JobId = None,
    correlation_id: CorrelationId = None,
    since: Since = None,
    until: Until = None,
    body_max: BodyMax = 512,
    limit: Limit = 20,
    cursor: Cursor = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Look at messages without leasing them, oldest first. All filters that are given must hold.

    A search looks at some thousands at a time, says how many, and prints the cursor to go on with.
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
        tell_page(page.scanned, page.matched, page.next_cursor)


def tell_page(scanned: int, matched: int, cursor: str | None) -> None:
    on = f"; to go on: --cursor {cursor}" if cursor is not None else ""
    typer.echo(f"looked at {scanned:,}, {matched:,} fit{on}", err=True)


def _peeked_row(message: "PeekedMessage") -> list[object]:
    return [message.message_id, message.job_id, message.enqueued_at, payload_of(message)]


def payload_of(message: "PeekedMessage") -> str:
    if message.payload_start is not None:
        return f"{message.payload_start}… ({message.payload_bytes:,} bytes)"
    return to_json(message.payload).decode()


def _message_row(message: "Message") -> list[object]:
    payload = bytes(message.raw_payload).decode()
    return [message.message_id, message.attempt, message.enqueued_at, payload, message.receipt_id]


def _pair(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not (name and mark):
        raise typer.BadParameter(f"a header is name=value, not {text!r}")
    return name, value
