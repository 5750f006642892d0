"""Test tiers, xdist groups and Hypothesis profiles, for `tests/` and `packages/`.

Every test belongs to one tier: the one it is marked with, else the one that its fixtures imply.
"""

import gc
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

_LONGEST_FIRST = ("spark", "browser", "slow", "engine", "unit")

# A module that is marked as a whole has no unit tests, and need not be imported to find that out.
_MARKED_MODULE = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.(engine|slow|spark|browser)\b", re.MULTILINE)
_PROCESS_EVENTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn"}

_SLOW_FIXTURES = {"install"}
_ENGINE_FIXTURES = {"engine_url", "own_server", "running", "own", "nats", "start_nats"}

_patient = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("ci", _patient, max_examples=30)
hypothesis.settings.register_profile("thorough", _patient, max_examples=2000)
_profile = os.environ.get("HYPOTHESIS_PROFILE", "ci")
hypothesis.settings.load_profile(_profile)
IS_THOROUGH = _profile == "thorough"


_MEMORY = Path("/dev/shm")
_MEMORY_BYTES_MIN = 6 * 1024**3


def use_memory_for_files() -> None:
    """Keep temporary files in memory where there is room, unless `TMPDIR` is set.

    Several workers share one disk: one test that writes much delays the fsync of every other test's engine by seconds.
    """
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK) or os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC:
        return
    if shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES_MIN:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None  # ask the environment again


use_memory_for_files()


def examples(count: int) -> int:
    """For a test with a size of its own: many times as many examples in the profile `thorough`."""
    return count * 40 if IS_THOROUGH else count


def long_runs(count: int) -> hypothesis.settings:
    """For examples that are long runs on real servers: a failure is reported unshrunk, because shrinking takes minutes."""
    return hypothesis.settings(
        max_examples=examples(count),
        derandomize=not IS_THOROUGH,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )


def tier_of(item: pytest.Item) -> str:
    marked = next((mark.name for mark in item.iter_markers() if mark.name in _LONGEST_FIRST), None)
    if marked is not None:
        return marked
    fixtures = set(getattr(item, "fixturenames", ()))
    if "spark" in fixtures:
        return "spark"
    if fixtures & _SLOW_FIXTURES:
        return "slow"
    return "engine" if fixtures & _ENGINE_FIXTURES else "unit"


def pytest_xdist_auto_num_workers() -> int:
    """With `-n auto`: two workers more than cores, because a test mostly waits for servers."""
    return (os.cpu_count() or 1) + 2


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.option.markexpr == "unit" and collection_path.name.startswith("test_") and collection_path.suffix == ".py":
        return True if _MARKED_MODULE.search(collection_path.read_text()) else None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """With `-n`, groups of tests are distributed, in the order of the items."""
    if config.getoption("numprocesses", None):
        config.option.dist = "loadgroup"
        config.option.loadscopereorder = False
    if hasattr(config, "workerinput"):  # a worker parses the command line again
        config.option.loadgroup = True


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadGroupScheduling:
    return _ByGroupOrModule(config, log)


class _ByGroupOrModule(LoadGroupScheduling):  # type: ignore[misc]
    """A worker gets a whole group, or a whole module, so that its fixtures are set up once."""

    def _split_scope(self, nodeid: str) -> str:
        return str(super()._split_scope(nodeid)).partition("::")[0]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules and items stay for good: leave them out of garbage collections."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each item with its tier and its group; put those first that take longest."""
    tiers = {item: tier_of(item) for item in items}
    for item, tier in tiers.items():
        item.add_marker(tier)
        fixtures = getattr(item, "fixturenames", ())
        if "spark" in fixtures or tier == "browser":  # one Spark, or one installation and browser
            item.add_marker(pytest.mark.xdist_group(tier))
        elif "running" in fixtures:  # one installation for a folder
            item.add_marker(pytest.mark.xdist_group(item.path.parent.name))
    items.sort(key=lambda item: _LONGEST_FIRST.index(tiers[item]))


_unit_test: str | None = None  # that runs now


def _forbid_processes(event: str, _arguments: tuple[object, ...]) -> None:
    if event in _PROCESS_EVENTS and _unit_test is not None:
        raise RuntimeError(f"{_unit_test} starts a process: mark it as `engine`")


sys.addaudithook(_forbid_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that starts a process is not a unit test."""
    global _unit_test
    _unit_test = item.nodeid if tier_of(item) == "unit" else None
    try:
        return (yield)
    finally:
        _unit_test = None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A timeout interrupts a call to Spark and leaves its response unread: the next test needs a new connection."""
    try:
        return (yield)
    except BaseException:
        if "spark" in getattr(item, "fixturenames", ()):
            _close_spark_connection()
        raise


def _close_spark_connection() -> None:
    from pyspark import SparkContext  # most test processes do without it

    if (gateway := SparkContext._gateway) and (connection := gateway._gateway_client.get_thread_connection()):
        connection.close()


def pytest_collection_finish(session: pytest.Session) -> None:
    """A release of pytest-xdist or pytest that ignores groups fails here, and does not start a Spark in each worker."""
    if hasattr(session.config, "workerinput"):
        grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
        assert all("@" in item.nodeid for item in grouped), "pytest-xdist does not apply the groups"
