"""`postroad replay select`, `run` and `dead-letters`: send archived commands or dead letters again."""

import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, connected, print_json
from postroad.cli.progress import ProgressLine, watched
from postroad.cli.times import Since, Until, ago

if TYPE_CHECKING:
    from postroad.client import Postroad, Replay

replay = typer.Typer(help="Send archived commands or dead letters again, re-signed and checked.", no_args_is_help=True)

Reason = Annotated[str, typer.Option("--reason", help="Why; the audit log, the events and the target's headers have it.")]
Rate = Annotated[int, typer.Option(help="Commands per second.", min=1, max=10_000)]
NewIds = Annotated[bool, typer.Option("--new-ids", help="Send the commands with new ids.")]
Run = Annotated[bool, typer.Option("--run", help="Send them at once.")]
_BAR = 30
_SELECTED_SECONDS = 0.2


@replay.command("select")
def select(
    since: Since = None,
    until: Until = None,
    failed_with: Annotated[
        list[str] | None, typer.Option("--failed-with", help="Only commands that failed for this reason; may be repeated.")
    ] = None,
    outcome: Annotated[list[str] | None, typer.Option(help="Only this outcome; may be repeated.")] = None,
    source: Annotated[str | None, typer.Option(help="Only commands of this sender.")] = None,
    target: Annotated[str | None, typer.Option(help="Only commands to this target.")] = None,
    command: Annotated[str | None, typer.Option(help="Only commands of this name.")] = None,
    command_id: Annotated[list[str] | None, typer.Option("--id", help="Only this command; may be repeated.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=100_000)] = 100_000,
    reason: Reason = "selected with the CLI",
    rate: Rate = 100,
    new_ids: NewIds = False,
    run: Run = False,
    as_json: AsJson = False,
) -> None:
    """Select commands of the archive, and print the id of the replay. `postroad replay run` sends them."""
    from postroad.api.replays import CommandSelection

    outcomes = tuple(outcome or ()) or (("failed",) if failed_with else ())
    selection = CommandSelection(
        source=source,
        target=target,
        command=command,
        since=ago(since) if since else None,
        until=ago(until) if until else None,
        outcomes=outcomes,  # type: ignore[arg-type]
        reasons=tuple(failed_with or ()),
        ids=tuple(command_id or ()),
        limit=limit,
    )
    with connected() as client:
        made = client.replays.create(
            reason, selection=selection, rate_per_second=rate, dry_run=not run, keep_ids=False if new_ids else None
        )
        _finish(client, made, as_json)


@replay.command("dead-letters")
def dead_letters(
    queue: Annotated[str, typer.Argument(help="Queue of a route.")],
    dead_reason: Annotated[str | None, typer.Option("--dead-reason", help="Only dead letters with this reason.")] = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int | None, typer.Option(help="At most so many.", min=1, max=100_000)] = None,
    reason: Reason = ...,  # type: ignore[assignment]
    rate: Rate = 100,
    new_ids: NewIds = False,
    run: Run = False,
    as_json: AsJson = False,
) -> None:
    """Select the dead letters of a queue that are commands. A dead letter is removed once its command is delivered."""
    from postroad.api.dead_letters import DeadLetterFilter

    chosen = DeadLetterFilter(reason=dead_reason, since=ago(since) if since else None, until=ago(until) if until else None)
    with connected() as client:
        made = client.replays.create(
            reason,
            origin="dead-letters",
            queue=queue,
            filter=chosen,
            limit=limit,
            rate_per_second=rate,
            dry_run=not run,
            keep_ids=False if new_ids else None,
        )
        _finish(client, made, as_json)


@replay.command("run")
def run_replay(
    replay_id: Annotated[str, typer.Argument(metavar="ID|-", help="Id of a replay; `-` reads it from standard input.")],
    as_json: AsJson = False,
) -> None:
    """Send the selected commands, and show the progress. Ctrl-C stops waiting; the replay continues."""
    chosen = sys.stdin.readline().strip() if replay_id == "-" else replay_id
    with connected() as client:
        client.replays.resume(chosen)
        _finish(client, client.replays.get(chosen), as_json, is_run=True)


def _finish(client: "Postroad", made: "Replay", as_json: bool, *, is_run: bool = False) -> None:
    """Wait for the replay and print it: the id of a selection, which `replay run -` takes, or the counts."""
    done = _watch(client, made, is_run=is_run)
    if as_json:
        print_json(done)
    elif done.state == "selected":
        typer.echo(f"{done.counts.selected:,} commands selected; to send them: postroad replay run {done.id}", err=True)
        typer.echo(done.id)
    else:
        refused = "".join(f", {count:,} {reason}" for reason, count in sorted(done.counts.refused.items()))
        duplicates = f", {done.counts.duplicates:,} duplicates" if done.counts.duplicates else ""
        typer.echo(f"{done.state}: {done.counts.delivered:,} of {done.counts.selected:,} delivered{duplicates}{refused}")
        if done.error:
            typer.echo(done.error, err=True)
    if done.state in ("failed", "cancelled"):
        raise typer.Exit(1)


def _watch(client: "Postroad", made: "Replay", *, is_run: bool) -> "Replay":
    otherwise = f"stopped watching; the replay continues. To cancel it: postroad replay cancel {made.id}"
    with watched(otherwise) as line:
        if not is_run:
            return client.replays.wait(made, on_progress=lambda one: _show(line, one))
        while True:  # a dry run that was resumed is `selected` until its task begins
            found = client.replays.wait(made, on_progress=lambda one: _show(line, one))
            if found.state != "selected":
                return found
            time.sleep(_SELECTED_SECONDS)


def _show(line: ProgressLine, one: "Replay") -> None:
    counts = one.counts
    filled = _BAR * counts.sent // counts.selected if counts.selected else 0
    waits = f", limited until {one.throttled_until}" if one.throttled_until else f", {one.note}" if one.note else ""
    line.show(f"{one.state} [{'#' * filled}{'.' * (_BAR - filled)}] {counts.sent:,} of {counts.selected:,}{waits}")
