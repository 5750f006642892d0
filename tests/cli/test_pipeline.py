"""`postroad pipeline` where it has nothing to run on; what it does is in tests/pipeline."""

from pathlib import Path

import pytest

from tests.cli.shell import Shell


@pytest.fixture
def bare(stranger: Shell, tmp_path: Path) -> Shell:
    return stranger.with_environment(POSTROAD_DATA_DIR=str(tmp_path))


def test_without_an_engine_it_says_so_before_spark_starts(bare: Shell) -> None:
    done = bare.by_process("pipeline", "run", "--once")
    assert done.code == 1
    assert "POSTROAD_NATS_URL is not set" in done.complaints
    gone = bare.with_environment(POSTROAD_NATS_URL="nats://somebody:secret@127.0.0.1:1").by_process(
        "pipeline", "backfill", "--days", "2"
    )
    assert gone.code == 1
    assert "no NATS server can be reached" in gone.complaints
    assert "secret" not in gone.complaints


def test_the_engine_of_an_installation_here_is_found(bare: Shell, tmp_path: Path) -> None:
    (tmp_path / "engine.url").write_text("nats://127.0.0.1:1\n")
    done = bare.by_process("pipeline", "run", "--once")
    assert done.code == 1
    assert "127.0.0.1:1" in done.complaints


@pytest.mark.parametrize(
    ("option", "value", "complaint"),
    [
        ("--jobs", "latency,weather", "there is no job 'weather'; there are ingest, latency"),
        ("--every", "soon", "'soon' is no time such as `10s` or `5m`"),
        ("--every", "0s", "is no time"),
    ],
)
def test_what_makes_no_sense_is_refused(bare: Shell, option: str, value: str, complaint: str) -> None:
    done = bare.try_to("pipeline", "run", option, value)
    assert done.code == 2
    assert complaint in " ".join(done.complaints.replace("│", " ").split())


def test_the_state_of_one_that_never_ran(operator: Shell) -> None:
    assert operator.run("pipeline", "status", "--json").json["state"] == "off"
    assert "off" in operator.run("pipeline", "status").output
