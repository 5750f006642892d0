"""Test tiers, xdist groups and Hypothesis profiles, for `tests/` and `packages/`.

Every test belongs to one tier: the one it is marked with, else the one that its fixtures imply.
"""

import gc
import os
from collections.abc import Generator

import hypothesis
import pytest

_LONGEST_FIRST = ("spark", "slow", "engine", "unit")

_SLOW_FIXTURES = {"install"}
_ENGINE_FIXTURES = {"engine_url", "own_server", "running", "own", "nats", "start_nats"}

_patient = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("ci", _patient, max_examples=30)
hypothesis.settings.register_profile("thorough", _patient, max_examples=2000)
_profile = os.environ.get("HYPOTHESIS_PROFILE", "ci")
hypothesis.settings.load_profile(_profile)
IS_THOROUGH = _profile == "thorough"


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


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """With `-n auto`: two workers more than cores, because a test mostly waits for servers; unit tests do not."""
    return (os.cpu_count() or 1) + (0 if config.option.markexpr == "unit" else 2)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """With `-n`, the tests of a group share a worker, and groups start in the order of the items."""
    if config.getoption("numprocesses", None):
        config.option.dist = "loadgroup"
        config.option.loadscopereorder = False


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
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(_group_of(item)))
    items.sort(key=lambda item: _LONGEST_FIRST.index(tiers[item]))


def _group_of(item: pytest.Item) -> str:
    """Which tests share a worker: with it they share one Spark, one installation, or the fixtures of their module."""
    fixtures = getattr(item, "fixturenames", ())
    if "spark" in fixtures:
        return "spark"
    return item.path.parent.name if "running" in fixtures else item.nodeid.partition("::")[0]
