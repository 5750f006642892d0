"""`postroad verify`: check the guarantees of a running installation."""

from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, exit_on_error, to_json
from postroad.cli.profiles import GlobalOptions, global_options, missing_key_hint, resolve_target
from postroad.cli.progress import ProgressLine

if TYPE_CHECKING:
    from postroad.verification.verify import CheckResult

_MARKS = {"ok": "ok     ", "failed": "FAILED ", "skipped": "skipped"}


def verify(
    new_tenant: Annotated[
        bool, typer.Option("--new-tenant", help="Use two temporary tenants instead of a queue of yours. Needs a platform key.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check the guarantees of the server in a temporary queue, by requests. Exit code 1 if one does not hold.

    The checks are those of the page Verify of the web console. They need a key with the scopes publish, consume, read and write;
    a check whose scope is missing is skipped. Takes about ten seconds, and removes what it created.
    """
    line = ProgressLine()
    with exit_on_error():
        target = resolve_target(global_options.get(GlobalOptions()))
        if target.key is None:
            raise ValueError(missing_key_hint())
        from postroad.verification.installation import CheckFailed
        from postroad.verification.verify import verify as run

        try:
            results = run(
                target.url,
                target.key,
                lambda check: line.show(f"{check.name} …"),
                lambda result: None if as_json else _print(line, result),
                tenant=target.tenant,
                ca_file=target.ca_file,
                in_new_tenant=new_tenant,
            )
        except CheckFailed as failure:
            typer.echo(f"postroad: {failure}", err=True)
            raise typer.Exit(1) from None
        finally:
            line.clear()
    held = sum(result.state == "ok" for result in results)
    if as_json:
        typer.echo(to_json({"holds": not _failed(results), "checks": results}).decode())
    else:
        typer.echo(f"{held} of {len(results)} hold")
    if _failed(results):
        raise typer.Exit(1)


def _failed(results: "list[CheckResult]") -> bool:
    return any(result.state == "failed" for result in results)


def _print(line: ProgressLine, result: "CheckResult") -> None:
    line.clear()
    detail = f": {result.detail}" if result.detail else ""
    typer.echo(f"{_MARKS[result.state]} {result.name} ({result.seconds:.1f} s){detail}")
