"""The `postroad` command line."""

from typing import Annotated

import typer

from postroad import __version__
from postroad.cli.audit import audit
from postroad.cli.check import check
from postroad.cli.demo import demo
from postroad.cli.generated import GROUPS
from postroad.cli.insights import insights
from postroad.cli.invites import invites
from postroad.cli.jobs import jobs
from postroad.cli.keys import keys, whoami
from postroad.cli.pipeline import pipeline
from postroad.cli.profile_commands import profile_names, profiles
from postroad.cli.profiles import GlobalOptions, global_options
from postroad.cli.queues import health, queues
from postroad.cli.queues_dlq import queues_dlq
from postroad.cli.report import report
from postroad.cli.secrets import secrets
from postroad.cli.server import openapi_command, serve_command, up_command
from postroad.cli.sessions import sessions
from postroad.cli.settings import settings
from postroad.cli.streams import streams
from postroad.cli.tasks import tasks
from postroad.cli.tenants import tenants
from postroad.cli.worker import worker

cli = typer.Typer(
    name="postroad",
    help="Messaging over HTTP: queues, topics, durable streams, sessions, buckets and governed commands.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@cli.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            help="Profile (server and key) to use; overrides POSTROAD_URL, POSTROAD_KEY and POSTROAD_TENANT. "
            "(env: POSTROAD_PROFILE, which does not override them)",
            show_default=False,
            autocompletion=profile_names,
        ),
    ] = None,
    tenant: Annotated[
        str | None, typer.Option(help="The tenant that a platform key acts for. (env: POSTROAD_TENANT)", show_default=False)
    ] = None,
) -> None:
    if version:
        typer.echo(f"postroad {__version__}")
        raise typer.Exit
    global_options.set(GlobalOptions(profile, tenant))


_SERVER, _USE, _GOVERN = "Server", "Messaging", "Access"

cli.command("up", rich_help_panel=_SERVER)(up_command)
cli.command("serve", rich_help_panel=_SERVER)(serve_command)
cli.command("openapi", rich_help_panel=_SERVER)(openapi_command)
cli.command("check", rich_help_panel=_SERVER)(check)
cli.command("health", rich_help_panel=_SERVER)(health)

queues.add_typer(queues_dlq, name="dlq")
cli.add_typer(queues, name="queues", rich_help_panel=_USE)
cli.add_typer(streams, name="streams", rich_help_panel=_USE)
cli.add_typer(sessions, name="sessions", rich_help_panel=_USE)
cli.add_typer(jobs, name="jobs", rich_help_panel=_USE)
cli.add_typer(insights, name="insights", rich_help_panel=_USE)
cli.add_typer(tasks, name="tasks", rich_help_panel=_USE)
cli.command("worker", rich_help_panel=_USE)(worker)
cli.add_typer(pipeline, name="pipeline", rich_help_panel=_SERVER)
cli.command("demo", rich_help_panel=_SERVER)(demo)
cli.command("report", rich_help_panel=_SERVER)(report)

cli.command("whoami", rich_help_panel=_GOVERN)(whoami)
cli.add_typer(keys, name="keys", rich_help_panel=_GOVERN)
cli.add_typer(secrets, name="secrets", rich_help_panel=_GOVERN)
cli.add_typer(settings, name="settings", rich_help_panel=_GOVERN)
cli.add_typer(tenants, name="tenants", rich_help_panel=_GOVERN)
cli.add_typer(invites, name="invites", rich_help_panel=_GOVERN)
cli.add_typer(audit, name="audit", rich_help_panel=_GOVERN)
cli.add_typer(profiles, name="profiles", rich_help_panel=_GOVERN)

for _name, _group in GROUPS.items():
    cli.add_typer(_group, name=_name, rich_help_panel=_USE)
