"""The `postroad` command line."""

from typing import Annotated

import typer

from postroad import __version__
from postroad.cli.generated import GROUPS, MODULES
from postroad.cli.lazy_group import Entry, lazy_group
from postroad.cli.profiles import GlobalOptions, global_options, profile_names

_SERVER, _USE, _GOVERN = "Server", "Messaging", "Access"


def _command(name: str, panel: str, module: str, attribute: str, text: str) -> Entry:
    return Entry(name, panel, text, (f"postroad.cli.{module}",), attribute)


def _group(name: str, panel: str, text: str, *more: str) -> Entry:
    """A group of the module with its name, which has its generated commands, too; `more` are modules with further commands."""
    own = (f"postroad.cli.{name}",) if name not in GROUPS else ()
    generated = [f"postroad.cli.generated.{one}" for one in (name, *more) if one in MODULES]
    return Entry(name, panel, text, (*own, *(f"postroad.cli.{one}" for one in more), *generated), name)


ENTRIES = (
    _command(
        "up",
        _SERVER,
        "server",
        "up_command",
        "Start the engine, workers of all roles and the data pipeline on this machine. Ctrl-C stops them.",
    ),
    _command("serve", _SERVER, "server", "serve_command", "Start stateless workers against the engine at POSTROAD_NATS_URL."),
    _command("openapi", _SERVER, "server", "openapi_command", "Print the OpenAPI 3.1 description of the HTTP API."),
    _command(
        "check",
        _SERVER,
        "check",
        "check",
        "Verify the stored data: read every message of every stream and compare the counts. Exit code 1 if there is damage.",
    ),
    _command(
        "init",
        _SERVER,
        "init",
        "init",
        "Write the secrets of a new installation for containers: platform key, first keys, NATS user.",
    ),
    _command("backup", _SERVER, "backup", "backup", "Write a backup of all data to a directory, with the state of one moment."),
    _command("restore", _SERVER, "backup", "restore", "Restore a backup into an empty engine, all of it or nothing."),
    _command(
        "upgrade",
        _SERVER,
        "upgrade",
        "upgrade",
        "Compare the formats of the stored data with those of this version. Exit code 1 if this version cannot read them.",
    ),
    _command(
        "verify",
        _SERVER,
        "verify",
        "verify",
        "Check the guarantees of the server in a temporary queue, by requests. Exit code 1 if one does not hold.",
    ),
    _command(
        "health",
        _SERVER,
        "queues",
        "health",
        "Show the readiness checks of the server. The exit code is 5 while it is not ready.",
    ),
    _command(
        "demo",
        _SERVER,
        "demo",
        "demo",
        "Generate the traffic of three tenants, demo-shop, demo-bank and demo-chat, so that reports and lists have content.",
    ),
    _command(
        "report",
        _SERVER,
        "report",
        "report",
        "Write one HTML page about a day: queue health, latency, backlog, dead letters, usage and sessions.",
    ),
    _command(
        "topology",
        _SERVER,
        "live",
        "topology",
        "Show the processes and NATS servers of the installation, and streams that are not healthy. Needs a platform key.",
    ),
    _group("snapshot", _SERVER, "Snapshots of the registry of commands, from which workers start. Needs access to the engine."),
    _group("pipeline", _SERVER, "The data pipeline: stores events in Delta tables and computes reports from them."),
    _command(
        "worker",
        _USE,
        "worker",
        "worker",
        "Run a command for each message of a queue, with the payload on standard input and the rest in the environment.",
    ),
    _group("queues", _USE, "Queues and their messages.", "messages", "queues_dlq"),
    _group("topics", _USE, "Topics and their messages."),
    _group("subscriptions", _USE, "Messages of topics, delivered to endpoints and queues."),
    _group("buckets", _USE, "Buckets: values by key, with revisions."),
    _group("commands", _USE, "Governed commands between services: send, sign, verify and find."),
    _group("replay", _USE, "Send archived commands or dead letters again, re-signed and checked."),
    _command(
        "apply",
        _USE,
        "apply",
        "apply",
        "Make the resources of the tenant those of files; show the differences first. Repeating it changes nothing.",
    ),
    _command("diff", _USE, "apply", "diff", "Show how the server differs from files. The exit code is 6 if it does, 0 if not."),
    _command("export", _USE, "apply", "export", "Print the resources of the tenant as a file for `postroad apply`."),
    _group("streams", _USE, "Durable streams: append-only logs that can be read from any offset, live or as history."),
    _group("sessions", _USE, "Sessions: messages published to a stream are copied to the stream of each subscribed session."),
    _group("jobs", _USE, "Jobs: the state and history of each message."),
    _group("telemetry", _USE, "Events of the tenant, live and from its telemetry queue."),
    _group("insights", _USE, "Reports of the data pipeline."),
    _command(
        "regions", _USE, "regions", "regions", "Show the regions, their servers, and where your queues, topics and buckets are."
    ),
    _command(
        "asyncapi",
        _USE,
        "asyncapi",
        "asyncapi",
        "Print the AsyncAPI 3 document of the tenant: queues and topics with schemas, streams, events.",
    ),
    _command("live", _USE, "live", "live", "Show rows of the live state, then each change, until interrupted."),
    _group("tasks", _USE, "Long-running work on the server, such as a redrive."),
    *(_group(name, _USE, text) for name, text in GROUPS.items()),
    _command("console", _GOVERN, "console", "console", "Print a link that opens the web console signed in as your key, once."),
    _command("whoami", _GOVERN, "keys", "whoami", "Show the tenant, scopes and restrictions of the credential."),
    _group("keys", _GOVERN, "API keys. Needs the scope admin. A key grants no resources that it may not use itself."),
    _group("secrets", _GOVERN, "JWT secrets: the tenant signs JWTs for its own users with them (HS256). Needs the scope admin."),
    _group("settings", _GOVERN, "Run-time settings of the tenant, or the platform's defaults. Needs the scope admin."),
    _group("tenants", _GOVERN, "Tenants. All commands need a platform key."),
    _group(
        "invites", _GOVERN, "Invites: single-use codes that create a tenant and its first key. All but claim need a platform key."
    ),
    _group(
        "audit",
        _GOVERN,
        "List the audit log, newest first. Tenant keys see their tenant's entries, platform keys all. --json prints all fields.",
    ),
    Entry(
        "profiles",
        _GOVERN,
        "Named servers and keys, stored in a file that only you can read.",
        ("postroad.cli.profile_commands",),
        "profiles",
    ),
)

# Options of time ranges had these names in some commands. Accepted for one release.
_OLD_OPTIONS = {"since": "from", "until": "to"}

cli = typer.Typer(
    name="postroad",
    help="Messaging over HTTP: queues, topics, durable streams, sessions, buckets and governed commands.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    cls=lazy_group(ENTRIES),
    context_settings={"token_normalize_func": lambda name: _OLD_OPTIONS.get(name, name)},
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
