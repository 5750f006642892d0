"""`postroad streams …`: durable streams from a terminal: make, append, read, follow, close."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.output import AsJson, Yes, confirm, connected, echo_warnings, print_json, raw_json, show_one, to_json
from postroad.cli.queues import json_of
from postroad.cli.times import duration, from_now
from postroad.kernel.errors import Forbidden

if TYPE_CHECKING:
    from postroad.client import Appended, CreatedStream, Postroad, StreamMessage

streams = typer.Typer(
    help="Durable streams: append-only, read from any offset, live or not, as often as you like.", no_args_is_help=True
)

Stream = Annotated[str, typer.Argument(help="The stream's id, such as `orders/2027`.")]
Project = Annotated[str | None, typer.Option(help="The tenant that has the stream; without it, your own.", show_default=False)]
Data = Annotated[
    str | None, typer.Argument(help="For a JSON stream, one message as JSON; for others the text.", show_default=False)
]
File = Annotated[typer.FileBinaryRead | None, typer.Option(help="Take it from this file; `-` is standard input.")]
ContentType = Annotated[
    str | None, typer.Option(help="What the stream is; asked for (scope `read`) if left out.", show_default=False)
]
Ttl = Annotated[
    str | None, typer.Option(help="Expires when left alone for so long: `90s`, `15m`, `12h`, `30d`.", show_default=False)
]
Expires = Annotated[str | None, typer.Option(help="Expires in `30d`, or at `2027-01-31T12:00:00Z`.", show_default=False)]
From = Annotated[str | None, typer.Option("--from", help="After this offset.", metavar="OFFSET", show_default=False)]
Skip = Annotated[int, typer.Option(help="Messages after that offset to leave out, as the last line of --json said.", min=0)]
LongPoll = Annotated[bool, typer.Option("--long-poll", help="Instead of server-sent events.")]
Limit = Annotated[int | None, typer.Option(help="End after so many.", min=1, show_default=False)]
Seq = Annotated[str | None, typer.Option(help="Refused unless it is greater, as text, than the last one.", show_default=False)]
AsLines = Annotated[
    bool, typer.Option("--json", help="A line of JSON for each: `offset` and `skip` to go on after it, and `value`.")
]


@streams.command("create")
def create_stream(
    stream: Stream,
    data: Data = None,
    file: File = None,
    content_type: Annotated[str, typer.Option(help="What is appended must be of this type.")] = "application/json",
    ttl: Ttl = None,
    expires: Expires = None,
    closed: Annotated[bool, typer.Option("--closed", help="What it begins with is all there will be.")] = False,
    public: Annotated[bool, typer.Option("--public", help="Anyone may read it, without a key.")] = False,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Make a stream, with what it begins with if you like. One that is there already, just so, is left as it is."""
    with connected() as client:
        first = given_data(data, file)
        made = client.streams.create(
            stream,
            content_type=content_type,
            ttl_seconds=duration(ttl) if ttl else None,
            expires_at=from_now(expires) if expires else None,
            closed=closed,
            public=public,
            body=None if first is None else body_of(first, content_type),
            project=project,
        )
        _tell_made(made, as_json, stream)


@streams.command("fork")
def fork_stream(
    stream: Stream,
    source: Annotated[str, typer.Argument(help="The stream that it begins with.")],
    at: Annotated[str | None, typer.Option(help="Only what is before this offset.", metavar="OFFSET", show_default=False)] = None,
    sub_offset: Annotated[
        int | None, typer.Option(help="And so many messages (or bytes) of the next append.", min=0, show_default=False)
    ] = None,
    ttl: Ttl = None,
    expires: Expires = None,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Make a stream that begins with what another one has, and goes its own way from there."""
    with connected() as client:
        made = client.streams.fork(
            stream,
            source,
            offset=at,
            sub_offset=sub_offset,
            ttl_seconds=duration(ttl) if ttl else None,
            expires_at=from_now(expires) if expires else None,
            project=project,
        )
        _tell_made(made, as_json, stream)


def _tell_made(made: "CreatedStream", as_json: bool, stream: str) -> None:
    if as_json:
        print_json(made)
    else:
        said = f"made {stream}" if made.is_new else f"{stream} was there already"
        typer.echo(f"{said}, of {made.content_type}, up to {made.offset}{', closed' if made.is_closed else ''}")


@streams.command("append")
def append(
    stream: Stream,
    data: Data = None,
    file: File = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Each line is an append of its own: of --file, or of standard input.")
    ] = False,
    producer: Annotated[
        str | None,
        typer.Option(help="With --lines: number the lines as this producer, so that a re-run appends none twice.", metavar="ID"),
    ] = None,
    epoch: Annotated[int, typer.Option(help="The producer's; a higher one begins anew and ends all lower ones.", min=0)] = 0,
    seq: Seq = None,
    content_type: ContentType = None,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Append an argument, a file, or lines as they come; returns once they are stored durably.

    With --producer the same lines can be sent again, after whatever went wrong: those that are there already are left out.
    Lines may be added at the end between two runs; do not change those before, nor leave any out.
    """
    if producer is not None and not lines:
        raise typer.BadParameter("a producer numbers lines: it takes --lines")
    if lines and (data is not None or seq is not None):
        raise typer.BadParameter("--lines takes neither an argument nor --seq")
    with connected() as client:
        media = content_type or content_type_of(client, stream, project)
        if lines:
            _append_lines(client, stream, _lines(file), media, producer, epoch, project, as_json)
            return
        given = given_data(data, file)
        if given is None:
            raise typer.BadParameter("nothing to append: give an argument, --file or --lines")
        done = client.streams.append(stream, body_of(given, media), content_type=media, seq=seq, project=project)
        _tell(done, as_json, f"appended to {stream}, which ends at {done.offset}")


def _append_lines(
    client: "Postroad",
    stream: str,
    lines: Iterable[bytes],
    media: str,
    producer: str | None,
    epoch: int,
    project: str | None,
    as_json: bool,
) -> None:
    numbered = None if producer is None else client.streams.producer(stream, producer, epoch, project=project)
    count = known = 0
    done: Appended | None = None
    try:
        for line in lines:
            if _is_json(media) and not line.strip():
                continue
            body = body_of(line, media)
            if numbered is None:
                done = client.streams.append(stream, body, content_type=media, project=project)
            else:
                done = numbered.append(body, content_type=media)
                known += done.is_duplicate
            count += 1
    except BaseException:
        typer.echo(f"appended {count - known:,} lines{_known(known)}, and then:", err=True)
        raise
    if as_json:
        print_json({"appended": count - known, "known": known, "offset": done.offset if done else None})
    else:
        typer.echo(f"appended {count - known:,} lines to {stream}{_known(known)}")


def _known(known: int) -> str:
    return f"; {known:,} were there already" if known else ""


def _lines(file: typer.FileBinaryRead | None) -> Iterator[bytes]:
    """As they come, each with its end, which the last one may lack: it must be the same when another follows it."""
    for line in file or sys.stdin.buffer:
        yield line if line.endswith(b"\n") else line + b"\n"


def given_data(data: str | None, file: typer.FileBinaryRead | None) -> bytes | None:
    if data is not None and file is not None:
        raise typer.BadParameter("an argument or --file, not both")
    if file is not None:
        return file.read()
    return None if data is None else data.encode()


def body_of(data: bytes, media: str) -> bytes:
    """As it goes into the stream: JSON as one message, also if it is an array, which the protocol would take apart."""
    if not _is_json(media):
        return data
    return b"[" + bytes(json_of(data.decode("utf-8", "replace"), "what is to be appended", raw_json)) + b"]"


def _is_json(media: str) -> bool:
    return media.partition(";")[0].strip().lower() == "application/json"


def content_type_of(client: "Postroad", stream: str, project: str | None) -> str:
    try:
        return client.streams.info(stream, project=project).content_type
    except Forbidden:  # a key that may write only
        return "application/json"


@streams.command("cat")
def cat(
    stream: Stream,
    start: From = None,
    skip: Skip = 0,
    project: Project = None,
    as_json: AsLines = False,
) -> None:
    """Write what the stream has: of a JSON stream a message a line, of others the bytes. Says on standard error where it ends."""
    with connected() as client:
        reached = _Reached(start, skip)
        media = client.streams.info(stream, project=project).content_type
        for message in client.streams.messages(stream, start, skip=skip, project=project):
            _write(message, media, as_json)
            reached.at(message)
        sys.stdout.flush()
        reached.tell()


@streams.command("tail")
def tail(
    stream: Stream,
    start: Annotated[str, typer.Option("--from", help="After this offset; `-1` is the start.", metavar="OFFSET")] = "now",
    skip: Skip = 0,
    long_poll: LongPoll = False,
    limit: Limit = None,
    project: Project = None,
    as_json: AsLines = False,
) -> None:
    """Write what is appended, as it comes, until the stream is closed. While no server answers it keeps trying."""
    with connected() as client:
        write_as_it_comes(client, stream, start, skip, long_poll=long_poll, limit=limit, project=project, as_json=as_json)


def write_as_it_comes(
    client: "Postroad",
    stream: str,
    start: str,
    skip: int,
    *,
    long_poll: bool,
    limit: int | None,
    project: str | None,
    as_json: bool,
) -> None:
    """Until the stream is closed, the limit is reached or Ctrl-C; then it says where to go on."""
    reached = _Reached(start, skip)
    try:
        media = client.streams.info(stream, project=project).content_type
        mode: Any = "long-poll" if long_poll else None
        following = client.streams.follow(stream, start, skip=skip, live=mode, project=project)
        with echo_warnings("postroad.streams"), closing(following) as followed:
            for number, message in enumerate(followed, 1):
                _write(message, media, as_json)
                reached.at(message)
                sys.stdout.flush()
                if number == limit:
                    break
            else:
                typer.echo("the stream is closed", err=True)
                return
    except KeyboardInterrupt:
        reached.tell()
        raise typer.Exit(130) from None
    reached.tell()


class _Reached:
    """How far the reading went, to go on from there."""

    def __init__(self, offset: str | None, skip: int) -> None:
        self._offset, self._skip = offset, skip

    def at(self, message: "StreamMessage") -> None:
        self._offset, self._skip = message.offset, message.skip

    def tell(self) -> None:
        if self._offset not in (None, "now"):
            skip = f" --skip {self._skip}" if self._skip else ""
            typer.echo(f"to go on: --from {self._offset}{skip}", err=True)


def _write(message: "StreamMessage", media: str, as_json: bool) -> None:
    import msgspec

    if not _is_json(media):
        told = {"offset": message.offset, "skip": message.skip, "data": message.data}
        sys.stdout.buffer.write(to_json(told) + b"\n" if as_json else message.data)
        return
    line = msgspec.json.format(message.data, indent=-1)  # whoever appended it may have parted it into several
    if as_json:
        line = to_json({"offset": message.offset, "skip": message.skip, "value": msgspec.Raw(line)})
    sys.stdout.buffer.write(line + b"\n")


@streams.command("info")
def show_stream(stream: Stream, project: Project = None, as_json: AsJson = False) -> None:
    """What a stream is and where it ends. To ask does not keep it from expiring."""
    with connected() as client:
        info = client.streams.info(stream, project=project)
        show_one(
            info,
            as_json,
            stream=stream,
            content_type=info.content_type,
            ends_at=info.offset,
            closed=info.is_closed,
            expires_when_left_for=None if info.ttl_seconds is None else f"{info.ttl_seconds:,} s",
            expires=info.expires_at,
        )


@streams.command("close")
def close_stream(
    stream: Stream,
    data: Data = None,
    file: File = None,
    content_type: ContentType = None,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Nothing can be appended from then on, and readers come to an end. With data, those are the last."""
    with connected() as client:
        given = given_data(data, file)
        if given is None:
            done = client.streams.close(stream, project=project)
        else:
            media = content_type or content_type_of(client, stream, project)
            done = client.streams.close(stream, body_of(given, media), content_type=media, project=project)
        _tell(done, as_json, f"closed {stream}, which ends at {done.offset}")


def _tell(done: "Appended", as_json: bool, said: str) -> None:
    if as_json:
        print_json(done)
    else:
        typer.echo(said)


@streams.command("delete")
def delete_stream(stream: Stream, yes: Yes = False, project: Project = None) -> None:
    """Delete a stream; its forks keep what they have of it."""
    with connected() as client:
        info = client.streams.info(stream, project=project)
        confirm(f"Delete {stream}, which ends at {info.offset}?", yes)
        client.streams.delete(stream, project=project)
        typer.echo(f"deleted {stream}")
