"""The verdict of `benchmarks.scale`: work at intervals is subtracted from all rounds together, and every process counts."""

import pytest
from benchmarks.processor_time import Cost
from benchmarks.scale import Comparison, Window, cost_of

IDLE = Cost(0.01, 0.02, 0.03)  # per second


def test_work_at_intervals_that_falls_into_one_window_is_subtracted_from_all() -> None:
    requests = Cost(0.1, 0.2, 0.1)
    at_intervals = Cost(0.04, 0.08, 0.12)  # of four seconds, done at once
    windows = [Window(requests + at_intervals, 2, 1000), Window(requests, 2, 1000)]

    cost = cost_of(windows, IDLE)

    assert (cost.gateway, cost.engine, cost.background) == pytest.approx((1e-4, 2e-4, 1e-4))


@pytest.mark.parametrize(("background", "is_flat"), [(0.0, True), (1.2, False)])
def test_the_background_workers_are_part_of_the_ratio(background: float, is_flat: bool) -> None:
    found = Comparison("queues", "publish", Cost(1, 1, 0.5), Cost(1, 1, 0.5 + background))

    assert found.ratio == (2.5 + background) / 2.5
    assert found.is_flat == is_flat


def test_what_was_not_measured_is_not_flat() -> None:
    found = Comparison("queues", "all")

    assert not found.is_flat
    assert found.cells() == ["queues", "all", "not measured", "", "", "no"]


@pytest.mark.parametrize(("few", "many"), [(Cost(1, 1), Cost(1, -2)), (Cost(-2, 1), Cost(1, 1))])
def test_a_measurement_that_is_shorter_than_the_work_at_intervals_has_no_verdict(few: Cost, many: Cost) -> None:
    found = Comparison("queues", "publish", few, many)

    assert (found.ratio, found.is_flat) == (None, False)
