"""`postroad streams …`: create, append to, read, follow and close durable streams."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from postroad.cli.output import AsJson, connected, echo_warnings, print_json, show_one, to_json
from postroad.cli.queues import json_of
from postroad.cli.times import duration, from_now
from postroad.kernel.errors import Forbidden

if TYPE_CHECKING:
    from postroad.client import Appended, CreatedStream, Postroad, StreamMessage

streams = typer.Typer(
    help="Durable streams: append-only logs that can be read from any offset, live or as history.", no_args_is_help=True
)

Stream = Annotated[str, typer.Argument(help="Stream id, such as `orders/2027`.")]
Project = Annotated[str | None, typer.Option(help="Tenant that owns the stream; default: the key's tenant.", show_default=False)]
Data = Annotated[
    str | None, typer.Argument(help="For a JSON stream one JSON message, for other streams text.", show_default=False)
]
File = Annotated[typer.FileBinaryRead | None, typer.Option(help="Read the data from this file; `-` is standard input.")]
ContentType = Annotated[
    str | None, typer.Option(help="Content type of the stream; if omitted, it is looked up (scope `read`).", show_default=False)
]
Ttl = Annotated[
    str | None, typer.Option(help="Expire after this time without access: `90s`, `15m`, `12h`, `30d`.", show_default=False)
]
Expires = Annotated[str | None, typer.Option(help="Expire in `30d`, or at `2027-01-31T12:00:00Z`.", show_default=False)]
From = Annotated[str | None, typer.Option("--from", help="Start after this offset.", metavar="OFFSET", show_default=False)]
Skip = Annotated[int, typer.Option(help="Messages after that offset to skip, as printed with --json.", min=0)]
LongPoll = Annotated[bool, typer.Option("--long-poll", help="Use long polling instead of server-sent events.")]
Limit = Annotated[int | None, typer.Option(help="Stop after this many messages.", min=1, show_default=False)]
Seq = Annotated[
    str | None,
    typer.Option(help="Writer sequence; the append is refused unless it sorts after the last one.", show_default=False),
]
AsLines = Annotated[
    bool, typer.Option("--json", help="Print a JSON object per message with `value`, and `offset` and `skip` to resume after it.")
]


@streams.command("create")
def create_stream(
    stream: Stream,
    data: Data = None,
    file: File = None,
    content_type: Annotated[str, typer.Option(help="Content type of the stream and of every append.")] = "application/json",
    ttl: Ttl = None,
    expires: Expires = None,
    closed: Annotated[
        bool, typer.Option("--closed", help="Close the stream at once: the initial data is all it will contain.")
    ] = False,
    public: Annotated[bool, typer.Option("--public", help="Allow reading without a key.")] = False,
    max_age: Annotated[str | None, typer.Option(help="Drop appends older than this: `12h`, `30d`.", show_default=False)] = None,
    max_bytes: Annotated[int | None, typer.Option(help="Drop the oldest appends beyond this.", min=1, show_default=False)] = None,
    max_count: Annotated[int | None, typer.Option(help="Keep this many appends.", min=1, show_default=False)] = None,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Create a stream, optionally with initial data. An existing stream with the same settings is left unchanged."""
    with connected() as client:
        first = read_data(data, file)
        created = client.streams.create(
            stream,
            content_type=content_type,
            ttl_seconds=duration(ttl) if ttl else None,
            expires_at=from_now(expires) if expires else None,
            closed=closed,
            public=public,
            max_age_seconds=duration(max_age) if max_age else None,
            max_bytes=max_bytes,
            max_count=max_count,
            body=None if first is None else body_of(first, content_type),
            project=project,
        )
        _print_created(created, as_json, stream)


@streams.command("fork")
def fork_stream(
    stream: Stream,
    source: Annotated[str, typer.Argument(help="Stream to fork.")],
    at: Annotated[str | None, typer.Option(help="Copy only up to this offset.", metavar="OFFSET", show_default=False)] = None,
    sub_offset: Annotated[
        int | None, typer.Option(help="And this many messages (or bytes) of the next append.", min=0, show_default=False)
    ] = None,
    ttl: Ttl = None,
    expires: Expires = None,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Create a stream that starts with the content of another one and is independent from there on."""
    with connected() as client:
        created = client.streams.fork(
            stream,
            source,
            offset=at,
            sub_offset=sub_offset,
            ttl_seconds=duration(ttl) if ttl else None,
            expires_at=from_now(expires) if expires else None,
            project=project,
        )
        _print_created(created, as_json, stream)


def _print_created(created: "CreatedStream", as_json: bool, stream: str) -> None:
    if as_json:
        print_json(created)
    else:
        what = f"created {stream}" if created.is_new else f"{stream} already exists"
        closed = ", closed" if created.is_closed else ""
        typer.echo(f"{what}, {created.content_type}, ends at {created.offset}{closed}")


@streams.command("append")
def append(
    stream: Stream,
    data: Data = None,
    file: File = None,
    lines: Annotated[bool, typer.Option("--lines", help="Append each line of --file, or of standard input, separately.")] = False,
    producer: Annotated[
        str | None,
        typer.Option(
            help="With --lines: number the lines as this producer, so that a repeated run appends no line twice.", metavar="ID"
        ),
    ] = None,
    epoch: Annotated[
        int, typer.Option(help="Epoch of the producer; a higher epoch restarts the numbering and fences off lower ones.", min=0)
    ] = 0,
    seq: Seq = None,
    content_type: ContentType = None,
    project: Project = None,
    as_json: AsJson = False,
) -> None:
    """Append an argument, a file, or lines as they arrive; returns once they are stored durably.

    With --producer the same lines can be sent again after a failure: lines that are already stored are skipped. Between two runs
    lines may be added at the end, but earlier lines must neither change nor be removed.
    """
    if producer is not None and not lines:
        raise typer.BadParameter("--producer needs --lines")
    if lines and (data is not None or seq is not None):
        raise typer.BadParameter("--lines cannot be combined with an argument or --seq")
    with connected() as client:
        media = content_type or content_type_of(client, stream, project)
        if lines:
            _append_lines(client, stream, _lines(file), media, producer, epoch, project, as_json)
            return
        body = read_data(data, file)
        if body is None:
            raise typer.BadParameter("nothing to append: pass an argument, --file or --lines")
        done = client.streams.append(stream, body_of(body, media), content_type=media, seq=seq, project=project)
        _print_result(done, as_json, f"appended to {stream}, which ends at {done.offset}")


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
    numbering = None if producer is None else client.streams.producer(stream, producer, epoch, project=project)
    count = duplicates = 0
    done: Appended | None = None
    try:
        for line in lines:
            if _is_json(media) and not line.strip():
                continue
            body = body_of(line, media)
            if numbering is None:
                done = client.streams.append(stream, body, content_type=media, project=project)
            else:
                done = numbering.append(body, content_type=media)
                duplicates += done.is_duplicate
            count += 1
    except BaseException:
        typer.echo(f"appended {count - duplicates:,} lines{_skipped(duplicates)} before this error:", err=True)
        raise
    if as_json:
        print_json({"appended": count - duplicates, "known": duplicates, "offset": done.offset if done else None})
    else:
        typer.echo(f"appended {count - duplicates:,} lines to {stream}{_skipped(duplicates)}")


def _skipped(duplicates: int) -> str:
    return f"; skipped {duplicates:,} duplicates" if duplicates else ""


def _lines(file: typer.FileBinaryRead | None) -> Iterator[bytes]:
    """Lines as they arrive. The last one gets its missing line end: it must not differ when lines are added later."""
    for line in file or sys.stdin.buffer:
        yield line if line.endswith(b"\n") else line + b"\n"


def read_data(data: str | None, file: typer.FileBinaryRead | None) -> bytes | None:
    if data is not None and file is not None:
        raise typer.BadParameter("pass either an argument or --file, not both")
    if file is not None:
        return file.read()
    return None if data is None else data.encode()


def body_of(data: bytes, media: str) -> bytes:
    """The body of an append. A JSON array is one message, so it is wrapped: the protocol would split it."""
    if not _is_json(media):
        return data
    return b"[" + bytes(json_of(data.decode("utf-8", "replace"), "the data")) + b"]"


def _is_json(media: str) -> bool:
    return media.partition(";")[0].strip().lower() == "application/json"


def content_type_of(client: "Postroad", stream: str, project: str | None) -> str:
    try:
        return client.streams.info(stream, project=project).content_type
    except Forbidden:  # a key without the scope read
        return "application/json"


@streams.command("cat")
def cat(
    stream: Stream,
    start: From = None,
    skip: Skip = 0,
    project: Project = None,
    as_json: AsLines = False,
) -> None:
    """Print a stream: a JSON stream one message per line, other streams as bytes. The end offset goes to standard error."""
    with connected() as client:
        position = _Position(start, skip)
        media = client.streams.info(stream, project=project).content_type
        for message in client.streams.messages(stream, start, skip=skip, project=project):
            _write(message, media, as_json)
            position.advance(message)
        sys.stdout.flush()
        position.print_resume_options()


@streams.command("tail")
def tail(
    stream: Stream,
    start: Annotated[
        str, typer.Option("--from", help="Start after this offset; `-1` is the start of the stream.", metavar="OFFSET")
    ] = "now",
    skip: Skip = 0,
    long_poll: LongPoll = False,
    limit: Limit = None,
    project: Project = None,
    as_json: AsLines = False,
) -> None:
    """Follow a stream: print appended messages until it is closed. Reconnects while the server is unavailable."""
    with connected() as client:
        print_live(client, stream, start, skip, long_poll=long_poll, limit=limit, project=project, as_json=as_json)


def print_live(
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
    """Print messages until the stream is closed, the limit is reached or Ctrl-C; then print the options to resume."""
    position = _Position(start, skip)
    try:
        media = client.streams.info(stream, project=project).content_type
        mode: Any = "long-poll" if long_poll else None
        messages = client.streams.follow(stream, start, skip=skip, live=mode, project=project)
        with echo_warnings(), closing(messages):
            for number, message in enumerate(messages, 1):
                _write(message, media, as_json)
                position.advance(message)
                sys.stdout.flush()
                if number == limit:
                    break
            else:
                typer.echo("the stream is closed", err=True)
                return
    except KeyboardInterrupt:
        position.print_resume_options()
        raise typer.Exit(130) from None
    position.print_resume_options()


class _Position:
    """Position of the last printed message."""

    def __init__(self, offset: str | None, skip: int) -> None:
        self._offset, self._skip = offset, skip

    def advance(self, message: "StreamMessage") -> None:
        self._offset, self._skip = message.offset, message.skip

    def print_resume_options(self) -> None:
        if self._offset not in (None, "now"):
            skip = f" --skip {self._skip}" if self._skip else ""
            typer.echo(f"to resume: --from {self._offset}{skip}", err=True)


def _write(message: "StreamMessage", media: str, as_json: bool) -> None:
    import msgspec

    if not _is_json(media):
        fields = {"offset": message.offset, "skip": message.skip, "data": message.data}
        sys.stdout.buffer.write(to_json(fields) + b"\n" if as_json else message.data)
        return
    line = msgspec.json.format(message.data, indent=-1)  # on one line: it may have been appended with line ends in it
    if as_json:
        line = to_json({"offset": message.offset, "skip": message.skip, "value": msgspec.Raw(line)})
    sys.stdout.buffer.write(line + b"\n")


@streams.command("info")
def show_stream(stream: Stream, project: Project = None, as_json: AsJson = False) -> None:
    """Show a stream's settings and its end. This does not postpone its expiry."""
    with connected() as client:
        info = client.streams.info(stream, project=project)
        show_one(
            info,
            as_json,
            stream=stream,
            content_type=info.content_type,
            ends_at=info.offset,
            closed=info.is_closed,
            expires_when_idle_for=None if info.ttl_seconds is None else f"{info.ttl_seconds:,} s",
            expires=info.expires_at,
            starts_at=info.start_offset,
            max_age=None if info.max_age_seconds is None else f"{info.max_age_seconds:,} s",
            max_bytes=info.max_bytes,
            max_count=info.max_count,
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
    """Close a stream, optionally with a last append. Later appends are refused, and readers reach the end."""
    with connected() as client:
        body = read_data(data, file)
        if body is None:
            done = client.streams.close(stream, project=project)
        else:
            media = content_type or content_type_of(client, stream, project)
            done = client.streams.close(stream, body_of(body, media), content_type=media, project=project)
        _print_result(done, as_json, f"closed {stream}, which ends at {done.offset}")


def _print_result(done: "Appended", as_json: bool, text: str) -> None:
    if as_json:
        print_json(done)
    else:
        typer.echo(text)
