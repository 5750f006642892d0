"""`postroad topics list`, `publish`, `messages`, `tail`, `purge` and `delete`."""

import sys
import uuid
from collections.abc import Iterable, Iterator
from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.messages import pair
from postroad.cli.output import AsJson, Wide, Yes, confirm, connected, echo_warnings, print_json, show, to_json
from postroad.cli.queues import DryRun, json_of, print_purged
from postroad.cli.table import Column
from postroad.cli.times import ago

if TYPE_CHECKING:
    from postroad.client import Postroad, Topic, TopicMessage

topics = typer.Typer(help="Topics and their messages.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Topic name.")]
_BATCH_MAX = 1000
_BATCH_BYTES = 4 * 1024 * 1024


def _row(topic: "Topic") -> list[object]:
    stats, settings = topic.stats, topic.settings
    counts = ["?"] * 4 if stats is None else [stats.messages, stats.bytes, stats.subjects, stats.last_sequence]
    return [topic.name, *counts, settings.retention_ms or "", settings.on_full, topic.created_at]


_HEAD = ("name", "messages", "bytes", "subjects", "last", "retention ms", Column("on full", priority=1), "created")


@topics.command("list")
def list_topics(
    name: Annotated[str | None, typer.Option(help="Only matching names; `*` is any run of characters.")] = None,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """List the topics of the tenant."""
    with connected() as client:
        show(list(client.topics.list(name=name, stats=True)), as_json, _HEAD, _row, wide=wide)


@topics.command("publish")
def publish(
    topic: Name,
    payload: Annotated[str, typer.Argument(help="Payload as JSON; `-` publishes each line of standard input as a message.")],
    subject: Annotated[str, typer.Option("--subject", "-s", help="Subject of the message, such as `orders.eu.created`.")],
    header: Annotated[list[str] | None, typer.Option(help="Header `name=value`; can be repeated.")] = None,
    text: Annotated[bool, typer.Option("--text", help="The payload is text, not JSON.")] = False,
    content_type: Annotated[str | None, typer.Option(help="Content type; `text/plain` with --text.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="Publishes with the same key are stored once.")] = None,
    as_json: AsJson = False,
) -> None:
    """Publish a message, or one for each line of standard input. Returns once they are stored durably."""
    headers = dict(pair(one) for one in header or [])
    kind = content_type or ("text/plain; charset=utf-8" if text else None)
    if payload == "-":
        if idempotency_key is not None:
            raise typer.BadParameter("a key stands for one message; leave it out with `-`")
        fields = {"subject": subject, "headers": headers} | ({"contentType": kind} if kind else {})
        with connected() as client:
            _publish_lines(client, topic, fields, sys.stdin, text, as_json)
        return
    content = payload.encode() if text else json_of(payload, "the payload")
    with connected() as client:
        published = client.topics.publish(
            topic, subject, content, content_type=kind, headers=headers, idempotency_key=idempotency_key
        )
        show(published, as_json, ("sequence", "subject", "time"), lambda one: [one.sequence, one.subject, one.timestamp])


def _publish_lines(
    client: "Postroad", topic: str, fields: dict[str, Any], lines: Iterable[str], text: bool, as_json: bool
) -> None:
    """Publish in batches. Exit code 1 if a line was refused; the others are stored."""
    stored = failed = 0
    for batch in _batches(lines):
        contents = [line.encode() if text else json_of(line, f"line {number}") for number, line in batch]
        messages = [{**fields, "payload": content, "idempotencyKey": str(uuid.uuid4())} for content in contents]
        results = client.topics.publish_batch(topic, messages).results
        for (number, _), result in zip(batch, results, strict=True):
            if result.problem is None:
                stored += 1
            else:
                failed += 1
                typer.echo(f"line {number}: {result.problem.detail or result.problem.title}", err=True)
    if as_json:
        print_json({"published": stored, "failed": failed})
    else:
        typer.echo(f"published {stored:,} of {stored + failed:,} messages")
    if failed:
        raise typer.Exit(1)


def _batches(lines: Iterable[str]) -> Iterator[list[tuple[int, str]]]:
    """Lines with their numbers, without blank ones."""
    batch: list[tuple[int, str]] = []
    size = 0
    for number, line in enumerate(lines, 1):
        content = line.rstrip("\r\n")
        if not content.strip():
            continue
        if batch and (len(batch) >= _BATCH_MAX or size + len(content) > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((number, content))
        size += len(content)
    if batch:
        yield batch


@topics.command("messages")
def messages(
    topic: Name,
    subject: Annotated[list[str] | None, typer.Option("--subject", "-s", help="Pattern; can be repeated.")] = None,
    from_sequence: Annotated[int | None, typer.Option(help="From this sequence.", min=1)] = None,
    to_sequence: Annotated[int | None, typer.Option(help="Up to and including this sequence.", min=1)] = None,
    since: Annotated[str | None, typer.Option("--from", help="Stored since: a time, or a span such as `12h`.")] = None,
    until: Annotated[str | None, typer.Option("--to", help="Stored before: a time, or a span such as `1h`.")] = None,
    count: Annotated[bool, typer.Option("--count", help="Only print the number of matching messages.")] = False,
    limit: Annotated[int, typer.Option(help="Most messages to show.", min=1)] = 20,
    as_json: AsJson = False,
    wide: Wide = False,
) -> None:
    """Show messages of a topic, oldest first."""
    chosen: dict[str, Any] = {
        "subject": subject or (),
        "from_sequence": from_sequence,
        "to_sequence": to_sequence,
        "from_time": ago(since) if since else None,
        "to_time": ago(until) if until else None,
    }
    with connected() as client:
        if count:
            total = client.topics.messages_page(topic, **chosen, count=True, page_size=1).count
            typer.echo(to_json({"count": total}) if as_json else f"{total:,}")
            return
        found = list(islice(client.topics.messages(topic, **chosen, page_size=min(limit, 1000)), limit))
        show(found, as_json, ("sequence", "time", "subject", Column("payload", priority=1)), _message_row, wide=wide)


def _message_row(message: "TopicMessage") -> list[object]:
    try:
        content = message.body.decode()
    except UnicodeDecodeError:
        content = f"({len(message.body):,} bytes)"
    return [message.sequence, message.timestamp, message.subject, content]


@topics.command("tail")
def tail(
    topic: Name,
    pattern: Annotated[list[str] | None, typer.Option("--filter", help="Pattern of subjects; can be repeated.")] = None,
    from_sequence: Annotated[int | None, typer.Option(help="From this sequence; default: new messages.", min=1)] = None,
    since: Annotated[str | None, typer.Option("--from", help="Stored since: a time, or a span such as `12h`.")] = None,
    limit: Annotated[int | None, typer.Option(help="End after this number of messages.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Print messages of a topic as they are published, one per line, until Ctrl-C."""
    last = None
    try:
        with connected() as client, echo_warnings():
            from_time = ago(since) if since else None
            messages = client.topics.follow(topic, filter=pattern or (), from_sequence=from_sequence, from_time=from_time)
            with closing(messages):
                for number, message in enumerate(messages, 1):
                    typer.echo(to_json(message) if as_json else "  ".join(str(one) for one in _message_row(message)))
                    sys.stdout.flush()
                    last = message.sequence
                    if number == limit:
                        break
    except KeyboardInterrupt:
        if last is not None:
            typer.echo(f"continue with --from-sequence {last + 1}", err=True)
        raise typer.Exit(130) from None


@topics.command("purge")
def purge(
    topic: Name,
    subject: Annotated[str | None, typer.Option("--subject", "-s", help="Only messages whose subject matches.")] = None,
    to_sequence: Annotated[int | None, typer.Option(help="Only messages up to and including this sequence.", min=1)] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Delete messages of a topic: all, or those that match."""
    with connected() as client:
        purged = client.topics.purge(topic, subject=subject, to_sequence=to_sequence, dry_run=True)
        if not dry_run:
            confirm(f"Delete {purged.count:,} messages of {topic}?", yes, err=as_json)
            purged = client.topics.purge(topic, subject=subject, to_sequence=to_sequence)
        print_purged(purged, as_json, f"messages of {topic}")


@topics.command("delete")
def delete(
    topic: Name,
    cascade: Annotated[bool, typer.Option("--cascade", help="Delete its subscriptions, too.")] = False,
    yes: Yes = False,
) -> None:
    """Delete a topic with its messages."""
    with connected() as client:
        stats = client.topics.get(topic).stats
        count = stats.messages if stats else 0
        confirm(f"Delete {topic} with {count:,} messages?", yes)
        client.topics.delete(topic, cascade=cascade)
        typer.echo(f"deleted {topic} with {count:,} messages")
