"""Types of events in the telemetry queue."""

import pytest

from postroad.kernel.event import encoded_type
from postroad.telemetry_queue.rules import DROPPED, EventFilter, count_dropped, day_of, day_start_ms


@pytest.mark.parametrize(
    ("changes", "name", "is_included"),
    [
        ((), "snavio.command.delivered", True),
        ((), "route.unhealthy", False),
        (("route.*",), "route.unhealthy", True),
        (("route.*",), "snavio.command.failed", True),
        (("!snavio.telemetry.skew_sample",), "snavio.telemetry.skew_sample", False),
        (("!snavio.>", "route.*"), "snavio.command.failed", False),
        (("!snavio.>", "route.*"), "route.recovered", True),
    ],
)
def test_the_setting_adds_and_removes_types(changes: tuple[str, ...], name: str, is_included: bool) -> None:
    chosen = EventFilter(changes)
    line = b'{"event":"%b","x":1}' % name.encode()
    assert chosen.includes(name) is is_included
    assert chosen.select([line, b"no event", b"{}"]) == ([line] if is_included else [])
    assert chosen.select([line]) == ([line] if is_included else [])


def test_reports_of_dropped_events_do_not_count_as_dropped() -> None:
    assert count_dropped([b'{"event":"snavio.x"}', b'{"event":"%b"}' % DROPPED.encode()]) == 1
    assert encoded_type(b'{"event":"snavio.x"}') == b"snavio.x"
    assert encoded_type(b"[]") == b""


def test_days_are_those_of_utc() -> None:
    assert day_of(day_start_ms("2026-11-17")) == "2026-11-17"
    assert day_of(day_start_ms("2026-11-17") - 1) == "2026-11-16"
