"""`postroad pipeline`: run, backfill, migrate, status. Spark is imported where it is started."""

import logging
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from postroad.cli.output import AsJson, connected, show, show_one
from postroad.cli.server import DataDir
from postroad.pipeline.job_names import job_names

if TYPE_CHECKING:
    from postroad.pipeline.driver import Pipeline, PipelineConfig
    from postroad.settings import Settings

pipeline = typer.Typer(
    help="The data pipeline: stores events in Delta tables and computes reports from them.", no_args_is_help=True
)

_PERIOD = re.compile(r"(\d+(?:\.\d+)?)(s|m|)")

Master = Annotated[
    str | None,
    typer.Option(
        help="Spark master: `local[2]`, `spark://host:7077`, `k8s://…`. (env: POSTROAD_PIPELINE_MASTER)", show_default=False
    ),
]
LakeRoot = Annotated[
    str | None,
    typer.Option(
        "--lake",
        help="Root of the tables: a folder or a URL such as `s3://…`. (env: POSTROAD_LAKE, default <data>/lake)",
        show_default=False,
    ),
]
JobNames = Annotated[
    str | None,
    typer.Option(
        "--jobs",
        help=f"Only these jobs, comma separated: {', '.join(job_names())}.",
        show_default=False,
    ),
]


def _seconds(text: str) -> float:
    found = _PERIOD.fullmatch(text.strip())
    if found is None or float(found[1]) <= 0:
        raise typer.BadParameter(f"{text!r} is not a period such as `10s` or `5m`")
    return float(found[1]) * (60 if found[2] == "m" else 1)


@pipeline.command("run")
def run_pipeline(
    once: Annotated[bool, typer.Option("--once", help="Process all pending events, then exit.")] = False,
    every: Annotated[
        str | None,
        typer.Option(help="Time between batches: `10s`, `5m`. (env: POSTROAD_PIPELINE_SECONDS, default 10s)", show_default=False),
    ] = None,
    jobs: JobNames = None,
    master: Master = None,
    lake: LakeRoot = None,
    data_dir: DataDir = None,
    max_messages: Annotated[int, typer.Option(help="Messages per stream and batch.", min=1)] = 20_000,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only batches with quarantined events.")] = False,
) -> None:
    """Ingest events into the lake, compute the reports and publish them, in small batches. Ctrl-C stops it.

    It may be stopped or killed at any time: no event is lost or counted twice. `postroad up` starts it automatically.
    """
    settings = _settings(data_dir, master, lake, _seconds(every) if every else None)
    config = _config(settings, jobs, quiet=quiet, messages_max=max_messages)
    with _opened(settings, config) as running:
        if once:
            running.run_once()
            return
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        running.run(stop)


@pipeline.command("backfill")
def backfill_pipeline(
    days: Annotated[int, typer.Option(help="Number of days to compute, today included.", min=1, max=400)] = 7,
    jobs: JobNames = None,
    master: Master = None,
    lake: LakeRoot = None,
    data_dir: DataDir = None,
) -> None:
    """Recompute and publish the reports of past days from the events in the lake.

    Use it after a report was added or fixed. The pipeline must not run meanwhile: `postroad up --no-pipeline`.
    """
    settings = _settings(data_dir, master, lake, None)
    with _opened(settings, _config(settings, jobs, quiet=True)) as running:
        today = datetime.now(UTC).date()
        running.backfill([today - timedelta(days=number) for number in range(days)], typer.echo)


@pipeline.command("migrate")
def migrate_lake(master: Master = None, lake: LakeRoot = None, data_dir: DataDir = None) -> None:
    """Convert a lake of an earlier version, with its own manifests, to Delta tables, in place.

    `postroad pipeline run` does the same when it starts. It may be interrupted and repeated.
    """
    settings = _settings(data_dir, master, lake, None)
    with _opened(settings, _config(settings, None, quiet=True)) as running:
        if not running.migrate():
            typer.echo("The lake has Delta tables already.")


@pipeline.command("fairness")
def evaluate_fairness(
    day: Annotated[str, typer.Option(help="Day (UTC): `2027-01-31`, `today` or `yesterday`.")] = "today",
    dominant: Annotated[float | None, typer.Option(help="Share on one route that is flagged.", min=0, max=1)] = None,
    across: Annotated[float | None, typer.Option(help="Share on each of several routes that is flagged.", min=0, max=1)] = None,
    dispatches: Annotated[int | None, typer.Option(help="Commands per minute below which no source is flagged.", min=1)] = None,
    lake: LakeRoot = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Print the sources that the fairness auditor would have banned on a day, by the thresholds of the settings or others.

    Thresholds that routes have set are not considered. Needs the lake, and neither Spark nor a server.
    """
    settings = _settings(data_dir, None, lake, None)
    _require_spark()
    from postroad.commands.settings import CommandsSettings
    from postroad.pipeline.delta_table import LakeBroken
    from postroad.pipeline.fairness_evaluation import evaluate, rollups_of_day
    from postroad.pipeline.fairness_rules import Thresholds
    from postroad.pipeline.storage import storage_at

    chosen = settings.section(CommandsSettings)
    thresholds = Thresholds(
        chosen.auditor_dominant_share if dominant is None else dominant,
        chosen.auditor_across_share if across is None else across,
        chosen.auditor_dispatches_min if dispatches is None else dispatches,
    )
    try:
        rollups = rollups_of_day(storage_at(settings.lake_root, settings.lake_endpoint), day_of(day))
    except LakeBroken as problem:
        typer.echo(f"postroad: {problem}", err=True)
        raise typer.Exit(1) from None
    found = evaluate(rollups, thresholds, chosen.auditor_ban_seconds)
    show(
        found,
        as_json,
        ("source", "bans", "minutes", "first", "largest share", "on"),
        lambda one: [
            one.source,
            one.bans,
            one.minutes,
            f"{one.first:%H:%M}",
            f"{one.largest.share:.0%} of {one.largest.dispatched}",
            f"{one.largest.route.target} {one.largest.route.command}",
        ],
    )


def day_of(text: str) -> str:
    """Raises BadParameter."""
    today = datetime.now(UTC).date()
    named = {"today": today, "yesterday": today - timedelta(days=1)}
    try:
        return (named.get(text) or date.fromisoformat(text)).isoformat()
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a day such as `2027-01-31`, `today` or `yesterday`") from None


@pipeline.command("status")
def show_status(as_json: AsJson = False) -> None:
    """Show the progress and the lag of the pipeline. Needs a platform key."""
    with connected() as client:
        found = client.pipeline.status()
        lags = ", ".join(f"{one.stream} {one.lag}" for one in found.streams)
        faults = ", ".join(f"{reason} {count}" for reason, count in sorted(found.quarantined.items()))
        show_one(
            found,
            as_json,
            state=found.state,
            batch=found.batch,
            computed=found.computed_at,
            age=None if found.age is None else f"{found.age:.0f} s",
            every=None if found.period is None else f"{found.period:.0f} s",
            lag=f"{found.lag} messages" + (f" ({lags})" if lags else ""),
            events=found.events,
            took=None if found.seconds is None else f"{found.seconds:.1f} s",
            quarantined=faults or None,
            late=found.late,
            duplicates=found.duplicates,
        )


def _settings(data_dir: object, master: str | None, lake: str | None, seconds: float | None) -> "Settings":
    from postroad.runtime.embedded_server import with_running_engine
    from postroad.runtime.private_files import PRIVATE_UMASK
    from postroad.settings import SettingsInvalid, load_settings

    os.umask(PRIVATE_UMASK)  # the tables contain what tenants send
    overrides = {"data_dir": data_dir, "pipeline_master": master, "lake": lake, "pipeline_seconds": seconds}
    try:
        return with_running_engine(load_settings(overrides=overrides))
    except SettingsInvalid as faults:
        typer.echo(f"Invalid settings:\n{faults}", err=True)
        raise typer.Exit(2) from None


def _config(settings: "Settings", jobs: str | None, *, quiet: bool, messages_max: int = 20_000) -> "PipelineConfig":
    _require_spark()
    from postroad.commands.settings import CommandsSettings
    from postroad.pipeline.driver import BatchProgress, PipelineConfig
    from postroad.pipeline.fairness_auditor import AuditorConfig
    from postroad.pipeline.fairness_rules import Thresholds
    from postroad.pipeline.reports import ReportSettings

    commands = settings.section(CommandsSettings)
    known = job_names()
    chosen = tuple(name.strip().replace("-", "_") for name in jobs.split(",")) if jobs else known
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise typer.BadParameter(f"there is no job {unknown[0]!r}; known jobs: {', '.join(known)}")

    def print_progress(progress: BatchProgress) -> None:
        if not quiet or progress.counts.quarantined:
            typer.echo(progress.line())

    return PipelineConfig(
        jobs=chosen,
        period_seconds=settings.pipeline_seconds,
        bronze_days=settings.lake_bronze_days,
        days=settings.lake_days,
        archive_days=settings.lake_archive_days,
        report_settings=ReportSettings(commands.commands_window_seconds),
        auditor=AuditorConfig(
            commands.auditor != "off",
            Thresholds(commands.auditor_dominant_share, commands.auditor_across_share, commands.auditor_dispatches_min),
            min(commands.auditor_ban_seconds, commands.auditor_ban_seconds_max),  # the service drops longer ones
        ),
        messages_max=messages_max,
        on_progress=print_progress,
        on_migrated=lambda line: typer.echo(f"migrated {line}"),
        on_ahead=lambda ahead: typer.echo(f"postroad: {ahead}", err=True),
    )


def _require_spark() -> None:
    try:
        import spark_jetstream  # noqa: F401  (it imports pyspark)
    except ModuleNotFoundError:
        typer.echo("postroad: the pipeline needs Spark: pip install 'postroad[pipeline]'", err=True)
        raise typer.Exit(1) from None


@contextmanager
def _opened(settings: "Settings", config: "PipelineConfig") -> Iterator["Pipeline"]:
    """The pipeline with Spark, the lake and the engine, for the duration of the block. Errors end the command."""
    from postroad.pipeline.driver import LakeBusy, Pipeline
    from postroad.pipeline.jetstream import JetStreamError, open_engine
    from postroad.pipeline.lake import Lake, LakeBroken, OtherWriter
    from postroad.pipeline.spark_session import NoJava, make_session

    logging.getLogger("py4j").setLevel(logging.ERROR)
    try:
        engine = open_engine(settings)
        engine.streams(("JOBS",))  # fails before Spark takes its time to start
        spark = make_session(
            settings.pipeline_master, memory=settings.pipeline_memory, python_memory=settings.pipeline_python_memory
        )
        try:
            yield Pipeline(Lake(settings.lake_root, spark, settings.lake_endpoint), engine, config)
        finally:
            spark.stop()
    except (NoJava, LakeBusy, LakeBroken, OtherWriter, JetStreamError, ValueError) as problem:
        typer.echo(f"postroad: {problem}", err=True)
        raise typer.Exit(1) from None
