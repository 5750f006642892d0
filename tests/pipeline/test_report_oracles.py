"""Every report of queues and sessions beside plain Python over the same events, at every grain."""

from typing import Any

import msgspec
import pytest

from postroad.kernel.event import Event
from postroad.pipeline.measures import measures
from tests.pipeline.frames import events_table
from tests.pipeline.recount import GRAINS, assert_equal, recount
from tests.pipeline.test_command_oracles import rows_of
from tests.pipeline.traffic import NOON, Traffic


@pytest.mark.parametrize("report", ["usage", "latency", "dead-letters", "sessions", "backlog"])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_report_equals_a_count_in_plain_python(report: str, seed: int) -> None:
    today, yesterday = Traffic(seed), Traffic(seed + 10, start=NOON - 86_400_000)
    events: list[Event] = [*today.jobs(150, minutes=90), *today.samples(70), *today.sessions(20), *yesterday.jobs(20)]
    raw: dict[str, list[dict[str, Any]]] = {"acme": [], "globex": []}
    for event in events:
        raw[event.tenant].append({**msgspec.json.decode(msgspec.json.encode(event)), "stream": event.stream})
    rollups = measures(events_table(events))
    for tenant in raw:
        for grain in GRAINS:
            wanted = recount(report, tenant, raw, grain)
            assert wanted, "the traffic has something for each report"
            assert_equal(rows_of(report, rollups, grain, tenant), wanted, report, grain)
