"""`postroad up`, `serve` and `openapi`. The server is imported where it is started, so that other commands start quickly."""

import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from postroad.settings import Settings

Host = Annotated[
    str | None, typer.Option(help="Address to listen on. (env: POSTROAD_HOST, default 127.0.0.1)", show_default=False)
]
Port = Annotated[
    int | None, typer.Option(help="Port to listen on; 0 picks a free one. (env: POSTROAD_PORT, default 8080)", show_default=False)
]
Workers = Annotated[
    int | None,
    typer.Option(help="Number of worker processes that share the port. (env: POSTROAD_WORKERS, default 1)", show_default=False),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="Directory of data, credentials and the platform key. (env: POSTROAD_DATA_DIR, default ./var)",
        show_default=False,
    ),
]
Open = Annotated[
    bool | None,
    typer.Option(
        "--open",
        help="Allow access to the default tenant's streams without a key; loopback only. (env: POSTROAD_OPEN)",
        show_default=False,
    ),
]
WithPipeline = Annotated[
    bool | None,
    typer.Option(
        "--pipeline/--no-pipeline",
        help="Run the data pipeline beside the service, if Spark is installed. (env: POSTROAD_PIPELINE, default on)",
        show_default=False,
    ),
]
RoleName = Literal["all", "gateway", "control", "delivery", "background", "backstage"]
_RENAMED_ROLES = {"backstage": "background"}  # the old name is accepted for one release


def up_command(
    host: Host = None,
    port: Port = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    is_open: Open = None,
    pipeline: WithPipeline = None,
) -> None:
    """Start the engine, workers of all roles and the data pipeline on this machine. Ctrl-C stops them.

    Without POSTROAD_NATS_URL a nats-server runs as a child process, with its data under ./var. The first start creates the
    tenant `default`, its key and a platform admin key, and writes the keys to var/credentials.toml.
    """
    from postroad.cli.banner import print_banner
    from postroad.runtime.supervisor import up

    _run(
        lambda settings: up(settings, print_banner),
        host=host,
        port=port,
        workers=workers,
        data_dir=data_dir,
        open=is_open,
        pipeline=pipeline,
    )


def serve_command(
    role: Annotated[RoleName, typer.Option(help="Role of the processes.", metavar="ROLE")] = "all",
    host: Host = None,
    port: Port = None,
    workers: Workers = None,
    data_dir: DataDir = None,
) -> None:
    """Start stateless workers against the engine at POSTROAD_NATS_URL.

    All workers of an installation need the same POSTROAD_PLATFORM_KEY. `gateway` serves the API, `control` runs the background
    jobs that only one process at a time may run, `delivery` fans out to sessions and wakes stream subscribers, `background`
    does both, `all` everything; every role serves /healthz, /readyz and /metrics.
    """
    if role in _RENAMED_ROLES:
        typer.echo(f"postroad: the role {role} was renamed: use --role {_RENAMED_ROLES[role]}", err=True)
    from postroad.cli.banner import print_banner
    from postroad.container import Role
    from postroad.runtime.supervisor import serve

    _run(
        lambda settings: serve(settings, Role(_RENAMED_ROLES.get(role, role)), print_banner),
        host=host,
        port=port,
        workers=workers,
        data_dir=data_dir,
    )


def openapi_command() -> None:
    """Print the OpenAPI 3.1 description of the HTTP API."""
    from postroad.container import openapi
    from postroad.kernel.json import encode

    sys.stdout.buffer.write(encode(openapi()) + b"\n")


def _run(start: "Callable[[Settings], Coroutine[None, None, None]]", **overrides: object) -> None:
    import asyncio
    import os

    from postroad.kernel.errors import PostroadError
    from postroad.logs import configure_logging
    from postroad.runtime.private_files import PRIVATE_UMASK, make_private_directory
    from postroad.settings import SettingsInvalid, load_settings

    try:
        settings = load_settings(overrides=overrides)
        configure_logging(settings.log_level, settings.log_format)
        os.umask(PRIVATE_UMASK)  # of all child processes, the engine and the pipeline included
        if settings.data_dir.exists():  # `serve` may need none
            make_private_directory(settings.data_dir)
        asyncio.run(start(settings))
    except SettingsInvalid as faults:
        typer.echo(f"Invalid settings:\n{faults}", err=True)
        raise typer.Exit(2) from None
    except PostroadError as problem:
        typer.echo(f"postroad: {problem}", err=True)
        raise typer.Exit(1) from None
