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
