"""Options and errors of `postroad pipeline`; tests/pipeline tests its work."""

from pathlib import Path

import pytest

from tests.cli.shell import Shell

pytestmark = pytest.mark.engine


@pytest.fixture
def bare(anonymous: Shell, tmp_path: Path) -> Shell:
    return anonymous.with_environment(POSTROAD_DATA_DIR=str(tmp_path))


def test_a_missing_engine_is_reported_before_spark_starts(bare: Shell) -> None:
    done = bare.run_process("pipeline", "run", "--once")
    assert done.code == 1
    assert "POSTROAD_NATS_URL is not set" in done.stderr
    assert bare.run_process("pipeline", "migrate").code == 1
    gone = bare.with_environment(POSTROAD_NATS_URL="nats://user:secret@127.0.0.1:1").run_process(
        "pipeline", "backfill", "--days", "2"
    )
    assert gone.code == 1
    assert "no NATS server can be reached" in gone.stderr
    assert "secret" not in gone.stderr


def test_the_engine_of_the_local_installation_is_found(bare: Shell, tmp_path: Path) -> None:
    (tmp_path / "engine.url").write_text("nats://127.0.0.1:1\n")
    done = bare.run_process("pipeline", "run", "--once")
    assert done.code == 1
    assert "127.0.0.1:1" in done.stderr


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--jobs", "latency,weather", "there is no job 'weather'; known jobs: ingest"),
        ("--every", "soon", "'soon' is not a period such as `10s` or `5m`"),
        ("--every", "0s", "is not a period"),
    ],
)
def test_invalid_options_are_refused(bare: Shell, option: str, value: str, complaint: str) -> None:
    done = bare.invoke("pipeline", "run", option, value)
    assert done.code == 2
    assert complaint in " ".join(done.stderr.replace("│", " ").split())


def test_the_state_of_a_pipeline_that_never_ran(operator: Shell) -> None:
    assert operator.run("pipeline", "status", "--json").json["state"] == "off"
    assert "off" in operator.run("pipeline", "status").stdout


def test_the_sources_that_would_have_been_banned_on_a_day_are_printed(bare: Shell, tmp_path: Path) -> None:
    """By the rollups of the lake. The default thresholds flag a share above 80 %."""
    from postroad.pipeline.delta_table import LakeTable, write_file
    from postroad.pipeline.measures import measures
    from postroad.pipeline.rollups import stored_rollups
    from postroad.pipeline.storage import storage_at
    from postroad.pipeline.tables import table_formats
    from tests.pipeline.command_samples import delivered
    from tests.pipeline.frames import events_table

    sources = ["acme/shop"] * 78 + ["globex/billing"] * 22
    events = [delivered(second / 2, source) for second, source in enumerate(sources)]
    storage = storage_at(str(tmp_path / "lake"))
    table = LakeTable(storage, table_formats()["rollups"])
    rollups = stored_rollups(measures(events_table(events, "command_events"), "command_events"), table.format.schema)
    table.commit([write_file(storage, table.format, "2026-11-16", rollups, "b00000000")])
    lake = ("--lake", str(tmp_path / "lake"))
    assert bare.run("pipeline", "fairness", "--day", "2026-11-16", *lake, "--json").json == []
    found = bare.run("pipeline", "fairness", "--day", "2026-11-16", *lake, "--dominant", "0.75").stdout
    [line] = [line for line in found.splitlines() if "acme/shop" in line]
    assert "12:00" in line and "78% of 100" in line and "globex/bot send" in line
    assert bare.run("pipeline", "fairness", "--day", "yesterday", *lake, "--dominant", "0.1", "--json").json == []
    refused = bare.invoke("pipeline", "fairness", "--day", "monday", *lake)
    assert (refused.code, "is not a day such as" in refused.stderr) == (2, True)
