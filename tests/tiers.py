"""Test tiers, xdist groups and Hypothesis profiles, for `tests/` and `packages/`.

Every test belongs to one tier: the one it is marked with, else the one that its fixtures imply.
"""

import os

import hypothesis
import pytest

TIERS = ("unit", "engine", "spark", "slow")

_SLOW_FIXTURES = {"install"}
_ENGINE_FIXTURES = {"engine_url", "own_server", "running", "own", "nats", "start_nats"}

_patient = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("ci", _patient, max_examples=50)
hypothesis.settings.register_profile("thorough", _patient, max_examples=2000)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def tier_of(item: pytest.Item) -> str:
    marked = next((mark.name for mark in item.iter_markers() if mark.name in TIERS), None)
    if marked is not None:
        return marked
    fixtures = set(getattr(item, "fixturenames", ()))
    if "spark" in fixtures:
        return "spark"
    if fixtures & _SLOW_FIXTURES:
        return "slow"
    return "engine" if fixtures & _ENGINE_FIXTURES else "unit"


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """With `-n auto`: two workers more than cores, because a test mostly waits for servers; unit tests do not."""
    return (os.cpu_count() or 1) + (0 if config.option.markexpr == "unit" else 2)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """With `-n`, tests of one `xdist_group` share a worker; without this, each worker would start a Spark."""
    if config.getoption("numprocesses", None) and config.option.dist in ("no", "load"):
        config.option.dist = "loadgroup"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(tier_of(item))
        fixtures = getattr(item, "fixturenames", ())
        if "spark" in fixtures:
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif "running" in fixtures:  # one installation for a folder, not one in each worker
            item.add_marker(pytest.mark.xdist_group(item.path.parent.name))
