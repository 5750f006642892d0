"""`postroad sessions subscribe`, `publish` and `tail`."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, connected, print_json
from postroad.cli.rendering import show_done, timestamp
from postroad.cli.streams import (
    AsLines,
    ContentType,
    Data,
    File,
    Limit,
    LongPoll,
    Project,
    Seq,
    Skip,
    Stream,
    body_of,
    content_type_of,
    print_live,
    read_data,
)
from postroad.kernel.errors import PostroadError

if TYPE_CHECKING:
    from postroad.client import FannedOut, Postroad

sessions = typer.Typer(
    help="Sessions: messages published to a stream are copied to the stream of each subscribed session.", no_args_is_help=True
)

SessionId = Annotated[str, typer.Argument(help="Session id.")]
SourceOrPattern = Annotated[
    str, typer.Argument(help="Stream id or pattern, such as `'chat:*'`; `*` matches any text without `/`.")
]


@sessions.command("subscribe")
def subscribe(
    stream: SourceOrPattern,
    session: Annotated[
        str | None, typer.Option(help="Session id; generated if left out.", metavar="ID", show_default=False)
    ] = None,
    envelope: Annotated[bool, typer.Option("--envelope", help="Add the source stream and offset to each message.")] = False,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Subscribe a session to a stream, and print only the session's id on standard output.

    The session is created if it does not exist; otherwise its expiry is extended.
    """
    with connected() as client:
        subscribed = client.sessions.subscribe(stream, session, envelope=envelope, project=project)
        if as_json:
            print_json(subscribed)
            return
        which = "a new session" if subscribed.is_new_session else "the session"
        typer.echo(f"subscribed {which} to {stream}; it expires at {timestamp(subscribed.expires_at_ms)}", err=True)
        typer.echo(subscribed.session_id)


@sessions.command("publish")
def publish(
    stream: Stream,
    data: Data = None,
    file: File = None,
    content_type: ContentType = None,
    seq: Seq = None,
    producer: Annotated[
        str | None,
        typer.Option(help="Producer id; with --producer-seq, a repeated publish is stored once.", metavar="ID"),
    ] = None,
    producer_seq: Annotated[
        int | None, typer.Option(help="Sequence number of this publish: 0, 1, 2 …", min=0, metavar="N", show_default=False)
    ] = None,
    epoch: Annotated[
        int, typer.Option(help="Producer epoch; a higher one restarts the sequence at 0 and fences lower ones.", min=0)
    ] = 0,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Append to a stream and deliver to the subscribed sessions. Prints how many sessions have received it.

    Succeeds once the message is stored in the stream. Delivery to the remaining sessions continues in the background.
    """
    given = read_data(data, file)
    if given is None:
        raise typer.BadParameter("there is no data to publish: pass it as an argument or with --file")
    with connected() as client:
        media = content_type or content_type_of(client, stream, project)
        published = client.sessions.publish(
            stream,
            body_of(given, media),
            content_type=media,
            seq=seq,
            producer_id=producer,
            producer_epoch=epoch,
            producer_seq=producer_seq,
            project=project,
        )
        show_done(published, as_json, _publish_summary(published, stream))


def _publish_summary(published: "FannedOut", stream: str) -> str:
    stored = f"published to {stream} at {published.offset}"
    if published.is_duplicate:
        stored = f"duplicate, already stored in {stream}"
    if not published.count:
        return f"{stored}; no sessions are subscribed"
    if published.mode == "inline":
        retried = f", {published.failures:,} not yet or ended" if published.failures else ""
        return f"{stored}; delivered to {published.successes:,} of {published.count:,} sessions{retried}"
    return f"{stored}; delivering to {published.count:,} sessions ({published.mode})"


@sessions.command("tail")
def tail(
    session: SessionId,
    start: Annotated[
        str, typer.Option("--from", help="Start after this offset; `-1` is the start, `now` the end.", metavar="OFFSET")
    ] = "-1",
    skip: Skip = 0,
    touched: Annotated[bool, typer.Option("--touch", help="Extend the session's expiry while this runs.")] = False,
    long_poll: LongPoll = False,
    limit: Limit = None,
    project: Project = None,
    as_json: AsLines = False,
) -> None:
    """Print the messages of a session, then new ones as they arrive. Reconnects when the server does not answer.

    Reading does not extend the session's expiry: without --touch, this ends with exit code 4 when the session expires.
    """
    with connected() as client:
        client.sessions.get(session, project=project)  # report a missing session as such, not as a missing stream
        with _session_keepalive(client, session, project, touched):
            print_live(
                client,
                f"session:{session}",
                start,
                skip,
                long_poll=long_poll,
                limit=limit,
                project=project,
                as_json=as_json,
            )


@contextmanager
def _session_keepalive(client: "Postroad", session: str, project: str | None, is_enabled: bool) -> Iterator[None]:
    """Touch the session from a thread, three times per TTL, while the block runs."""
    if not is_enabled:
        yield
        return
    stopped = threading.Event()

    def touch_until_stopped() -> None:
        pause = 0.0
        while not stopped.wait(pause):
            try:
                expires_at_ms = client.sessions.touch(session, project=project).expires_at_ms
            except PostroadError as problem:
                if not problem.retryable:
                    return  # the reader fails with the same error
                pause = 5.0
            else:
                pause = max(1.0, (expires_at_ms / 1000 - datetime.now(UTC).timestamp()) / 3)

    thread = threading.Thread(target=touch_until_stopped, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(10)
