"""`postroad queues …` and `postroad health`: what the API can do, from a terminal. They use the SDK and nothing else."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.output import AsJson, Yes, confirm, connected, from_json, print_json, show, to_json

if TYPE_CHECKING:
    from postroad.client import Message, Queue

queues = typer.Typer(help="Queues and their messages.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The queue's name.")]


def _row(queue: "Queue") -> list[object]:
    stats = queue.stats
    counts = [stats.ready, stats.leased, stats.delayed] if stats else ["", "", ""]
    return [queue.name, *counts, queue.settings.visibility_timeout_ms, queue.settings.max_messages or "", queue.created_at]


_HEAD = ("name", "ready", "leased", "delayed", "lease ms", "max", "created")


@queues.command("list")
def list_queues(as_json: AsJson = False) -> None:
    """All queues of the tenant."""
    with connected() as client:
        show(list(client.queues.list()), as_json, _HEAD, _row)


@queues.command("show")
def show_queue(queue: Name, as_json: AsJson = False) -> None:
    """A queue, its settings and what is in it."""
    with connected() as client:
        show(client.queues.get(queue), as_json, _HEAD, _row)


@queues.command("put")
def put_queue(
    queue: Name,
    visibility_timeout_ms: Annotated[int | None, typer.Option(help="How long a pulled message is kept from others.")] = None,
    retention_ms: Annotated[int | None, typer.Option(help="How long a message is kept; 0 is for ever.")] = None,
    dedupe_window_ms: Annotated[int | None, typer.Option(help="How long an idempotency key counts.")] = None,
    max_messages: Annotated[int | None, typer.Option(help="Beyond this, publishing is refused; 0 is no limit.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Copies: 1, 3 or 5.")] = None,
    as_json: AsJson = False,
) -> None:
    """Create a queue, or replace its settings; what is left out takes its default."""
    with connected() as client:
        made = client.queues.put(
            queue,
            visibility_timeout_ms=visibility_timeout_ms,
            retention_ms=retention_ms,
            dedupe_window_ms=dedupe_window_ms,
            max_messages=max_messages,
            replicas=replicas,
        )
        show(made, as_json, _HEAD, _row)


@queues.command("delete")
def delete_queue(queue: Name, yes: Yes = False) -> None:
    """Delete a queue and all that is in it."""
    with connected() as client:
        stats = client.queues.get(queue).stats
        count = stats.ready + stats.leased + stats.delayed if stats else 0
        confirm(f"Delete {queue} with {count:,} messages?", yes)
        client.queues.delete(queue)
        typer.echo(f"deleted {queue} with {count:,} messages")


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
            _json(sys.stdin.read() if payload == "-" else payload),
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
) -> None:
    """Lease messages and print them. Without --ack they come back when their time is up."""
    with connected() as client:
        pulled = client.queues.pull(queue, max_messages=count, wait_ms=wait_ms, visibility_timeout_ms=visibility_timeout_ms)
        show(pulled.messages, as_json, ("message", "attempt", "enqueued", "payload", "receipt"), _message_row)
        if ack and pulled.messages:
            client.queues.ack_many(queue, pulled.messages)


@queues.command("ack")
def acknowledge(queue: Name, receipts: Annotated[list[str], typer.Argument(help="Receipts, as `pull` prints them.")]) -> None:
    """Acknowledge messages: they will not be delivered again."""
    with connected() as client:
        results = client.queues.ack_many(queue, receipts).results
    for result in results:
        if result.problem is not None:
            typer.echo(f"{result.receipt_id[:16]}…: {result.problem.title}", err=True)
    typer.echo(f"acknowledged {sum(result.ok for result in results)} of {len(results)}")
    if not all(result.ok for result in results):
        raise typer.Exit(1)


def health(as_json: AsJson = False) -> None:
    """What the server says of itself; exit code 5 while it cannot serve."""
    with connected(anonymous=True) as client:
        ready = client.health.ready()
    if as_json:
        print_json(ready)
        return
    checks: list[Any] = list(ready.checks.items())
    show(checks, False, ("check", "state", "detail"), lambda one: [one[0], "ok" if one[1].ok else "failing", one[1].detail])


def _message_row(message: "Message") -> list[object]:
    payload = to_json(message.payload).decode()
    return [message.message_id, message.attempt, message.enqueued_at, payload, message.receipt_id]


def _json(text: str) -> Any:
    try:
        return from_json(text)
    except ValueError as exc:
        raise typer.BadParameter(f"the payload is not JSON: {exc}") from exc


def _pair(text: str) -> tuple[str, str]:
    name, mark, value = text.partition("=")
    if not (name and mark):
        raise typer.BadParameter(f"a header is name=value, not {text!r}")
    return name, value
