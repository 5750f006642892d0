"""`postroad sessions …`: sessions from a terminal: subscribe, publish, look, follow."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, Wide, Yes, confirm, connected, print_json, show, show_one
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
    body_of,
    content_type_of,
    print_live,
    read_data,
)
from postroad.kernel.errors import PostroadError

if TYPE_CHECKING:
    from postroad.client import FannedOut, Postroad

sessions = typer.Typer(
    help="Sessions: publish once to a stream, and each subscriber has a stream of its own to read.", no_args_is_help=True
)

SessionId = Annotated[str, typer.Argument(help="The session's id.")]
Source = Annotated[str, typer.Argument(help="The stream's id, such as `chat/7`.")]
SourceOrPattern = Annotated[str, typer.Argument(help="The stream's id, or a pattern: in `'chat:*'` the `*` is anything but `/`.")]


@sessions.command("subscribe")
def subscribe(
    stream: SourceOrPattern,
    session: Annotated[str | None, typer.Option(help="Its id; without it, a new one.", metavar="ID", show_default=False)] = None,
    envelope: Annotated[
        bool, typer.Option("--envelope", help="Each message says which stream and offset it comes from.")
    ] = False,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """From now on a session gets what is published to a stream. The session's id is alone on standard output.

    One that is not there is made, and one that is there lives on.
    """
    with connected() as client:
        done = client.sessions.subscribe(stream, session, envelope=envelope, project=project)
        if as_json:
            print_json(done)
            return
        made = "made a session that" if done.is_new_session else "the session"
        typer.echo(f"{made} gets {stream} from now on, and lives until {_moment(done.expires_at_ms)}", err=True)
        typer.echo(done.session_id)


@sessions.command("unsubscribe")
def unsubscribe(session: SessionId, stream: SourceOrPattern, project: Project = None, as_json: AsJson = False) -> None:
    """End a subscription. What the session has got stays; to do it twice is fine."""
    with connected() as client:
        done = client.sessions.unsubscribe(session, stream, project=project)
        if as_json:
            print_json(done)
        else:
            typer.echo(f"{session} no longer gets {stream}")


@sessions.command("publish")
def publish(
    stream: Source,
    data: Data = None,
    file: File = None,
    content_type: ContentType = None,
    seq: Seq = None,
    producer: Annotated[
        str | None,
        typer.Option(help="With --producer-seq: publish as this producer, so that a second try is stored once.", metavar="ID"),
    ] = None,
    producer_seq: Annotated[
        int | None, typer.Option(help="Its number of this publish: 0, 1, 2 …", min=0, metavar="N", show_default=False)
    ] = None,
    epoch: Annotated[int, typer.Option(help="The producer's; a higher one begins anew at 0 and ends all lower ones.", min=0)] = 0,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Append to a stream, for everyone who subscribes to it. Says how many sessions have it by now.

    It succeeds when the stream has it. Sessions that do not have it yet get it later, by themselves.
    """
    given = read_data(data, file)
    if given is None:
        raise typer.BadParameter("nothing to publish: give an argument or --file")
    with connected() as client:
        media = content_type or content_type_of(client, stream, project)
        done = client.sessions.publish(
            stream,
            body_of(given, media),
            content_type=media,
            seq=seq,
            producer_id=producer,
            producer_epoch=epoch,
            producer_seq=producer_seq,
            project=project,
        )
        if as_json:
            print_json(done)
        else:
            typer.echo(_told(done, stream))


def _told(done: "FannedOut", stream: str) -> str:
    said = f"{stream} had that already" if done.is_duplicate else f"published to {stream}, which ends at {done.offset}"
    if not done.count:
        return f"{said}; nobody subscribes to it"
    if done.mode == "inline":
        failed = f", {done.failures:,} get it later" if done.failures else ""
        return f"{said}; {done.successes:,} of {done.count:,} sessions have it{failed}"
    return f"{said}; {done.count:,} sessions get it in a moment ({done.mode})"


@sessions.command("show")
def show_session(session: SessionId, project: Project = None, as_json: AsJson = False, wide: Wide = False) -> None:
    """What a session subscribes to, and until when it lives. To ask does not let it live longer."""
    with connected() as client:
        seen = client.sessions.get(session, project=project)
        show_one(
            seen,
            as_json,
            session=seen.session_id,
            stream=seen.session_stream_path,
            content_type=seen.content_type,
            created=seen.created_at,
            expires=_moment(seen.expires_at_ms),
            ends_at=seen.next_offset,
        )
        if not as_json and seen.subscriptions:
            typer.echo()
            show(
                seen.subscriptions,
                False,
                ("subscribed to", "since", "envelope", "outstanding"),
                lambda one: (
                    one.stream_id,
                    one.subscribed_at,
                    "yes" if one.envelope else "no",
                    "?" if one.outstanding is None else one.outstanding,
                ),
                wide=wide,
            )


@sessions.command("touch")
def touch(session: SessionId, project: Project = None, as_json: AsJson = False) -> None:
    """Let a session live on, for as long as a new one would."""
    with connected() as client:
        done = client.sessions.touch(session, project=project)
        if as_json:
            print_json(done)
        else:
            typer.echo(f"{session} lives until {_moment(done.expires_at_ms)}")


@sessions.command("delete")
def delete_session(session: SessionId, yes: Yes = False, project: Project = None) -> None:
    """Delete a session, its stream and its subscriptions. The streams that it subscribed to stay."""
    with connected() as client:
        seen = client.sessions.get(session, project=project)
        confirm(f"Delete {session}, with {len(seen.subscriptions):,} subscriptions?", yes)
        client.sessions.delete(session, project=project)
        typer.echo(f"deleted {session}")


@sessions.command("tail")
def tail(
    session: SessionId,
    start: Annotated[
        str, typer.Option("--from", help="After this offset; `-1` is the start, `now` the end.", metavar="OFFSET")
    ] = "-1",
    skip: Skip = 0,
    touched: Annotated[bool, typer.Option("--touch", help="Let the session live on as long as this runs.")] = False,
    long_poll: LongPoll = False,
    limit: Limit = None,
    project: Project = None,
    as_json: AsLines = False,
) -> None:
    """Write what the session has got, and then what comes. While no server answers it keeps trying.

    To look does not keep a session alive: when its time is over this ends with exit code 4, unless you --touch it.
    """
    with connected() as client:
        client.sessions.get(session, project=project)  # there is none: say so, and not that its stream is missing
        with _touching(client, session, project, touched):
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
def _touching(client: "Postroad", session: str, project: str | None, is_wanted: bool) -> Iterator[None]:
    """Touch the session three times in its life, in a thread, while the block runs."""
    if not is_wanted:
        yield
        return
    over = threading.Event()

    def touch_on() -> None:
        pause = 0.0
        while not over.wait(pause):
            try:
                expires_at_ms = client.sessions.touch(session, project=project).expires_at_ms
            except PostroadError as problem:
                if not problem.retryable:
                    return  # the reader is told the same
                pause = 5.0
            else:
                pause = max(1.0, (expires_at_ms / 1000 - datetime.now(UTC).timestamp()) / 3)

    thread = threading.Thread(target=touch_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10)


@sessions.command("fanout")
def fanout(stream: Source, project: Project = None, as_json: AsJson = False) -> None:
    """How many sessions subscribe to a stream, and how far its copies have come."""
    with connected() as client:
        state = client.sessions.fanout(stream, project=project)
        show_one(
            state,
            as_json,
            stream=state.stream_id,
            subscribers=f"{state.subscribers:,}",
            everyone_has_up_to=state.done_offset,
            outstanding_messages=f"{state.outstanding:,}",
            breaker=state.breaker,
        )


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
