"""Freshness and micro-batches at a steady rate: `python -m benchmarks.pipeline_freshness [seconds=90] [events per second=1000]`.

Starts its own engine and a pipeline with all jobs and its usual period. Half of the events are those of jobs, half those of
commands. In the second half of the time reports are being read: a reader requests a batch every second, as a gateway does. The
freshness of an event is the time from its timestamp until it is in the published results. Then the cost of each job is measured
with the events of one period, over the rollups of the run.
"""

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from tests.pipeline.command_samples import command_traffic
from tests.pipeline.frames import events_table
from tests.pipeline.traffic import Traffic, engine_of, framed, own_engine, send

from benchmarks.harness import table
from benchmarks.pipeline_batches import _children, tree_cpu_seconds
from postroad.api.insights import Grain
from postroad.contracts.batch_requests import SUBJECT
from postroad.kernel.clock import rfc3339
from postroad.kernel.event import Event
from postroad.pipeline.driver import BatchProgress, Pipeline, PipelineConfig
from postroad.pipeline.fairness_auditor import DEFAULT_AUDITOR, FairnessAuditor
from postroad.pipeline.lake import Lake
from postroad.pipeline.report_messages import report_messages
from postroad.pipeline.reports import computed_reports
from postroad.pipeline.rollups import merge
from postroad.pipeline.spark_session import make_session
from postroad.settings import Settings
from spark_jetstream.client import Client
from spark_jetstream.options import write_options
from spark_jetstream.protocol import encode_publish

PERIOD = 10.0
_FRAME = 20
_WARM_SECONDS = 30.0


def events_of_second(seed: int, rate: int, at_ms: int) -> list[Event]:
    """Events of jobs and commands whose time is this second."""
    jobs = Traffic(seed, start=at_ms).jobs(rate // 6 + 1, minutes=1)[: rate // 2]
    commands = command_traffic(seed, rate // 4 + 1, minutes=1, start=at_ms)[: rate // 2]
    return [_at(event, at_ms) for event in (*jobs, *commands)]


def _at(event: Event, at_ms: int) -> Event:
    return msgspec.structs.replace(event, timestamp=rfc3339(at_ms))


class Load:
    """Sends a frame of events for each second, and watches what is published."""

    def __init__(self, settings: Settings, pipeline: Pipeline, rate: int) -> None:
        self._settings, self._pipeline, self._rate = settings, pipeline, rate
        self.sent = 0
        self.fresh: list[tuple[float, float]] = []  # when it was seen, and the time up to which results are complete

    def send_for(self, seconds: float, *, is_read: bool) -> tuple[list[float], int]:
        """Freshness of the events of each second of this time, and of how many seconds no results were seen: they count with the
        time for which they were waited for."""
        begun = time.time()
        stop = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(stop,), daemon=True)
        watcher.start()
        while (now := time.time()) < begun + seconds:
            send(self._settings, framed(events_of_second(self.sent, self._rate, int(now * 1000)), _FRAME))
            self.sent += 1
            if is_read:
                self._request()
            time.sleep(max(0.0, now + 1 - time.time()))
        deadline = time.time() + 3 * PERIOD + 30
        while time.time() < deadline and (not self.fresh or self.fresh[-1][1] < begun + seconds):
            time.sleep(0.2)
        stop.set()
        watcher.join()
        found: list[float] = []
        missing = 0
        for number in range(int(seconds)):
            at = begun + number + 0.05
            seen = [when for when, until in self.fresh if until >= at]
            missing += not seen
            found.append(min(seen, default=time.time()) - at)
        return found, missing

    def _watch(self, stop: threading.Event) -> None:
        while not stop.wait(0.05):
            until = self._pipeline.fresh_until
            if until is not None and (not self.fresh or self.fresh[-1][1] != until.timestamp()):
                self.fresh.append((time.time(), until.timestamp()))

    def _request(self) -> None:
        options = write_options(engine_of(self._settings).options)
        with Client(options.connection) as client:
            client.open()
            client.send(encode_publish(SUBJECT.encode(), b"", b"", b""))


def measure(seconds: float, rate: int) -> None:
    with tempfile.TemporaryDirectory(prefix="postroad-bench-") as folder, own_engine(Path(folder)) as settings:
        engine_processes = _children()
        spark = make_session("local[2]")
        batches: list[BatchProgress] = []
        lake = Lake(settings.lake_root, spark)
        pipeline = Pipeline(lake, engine_of(settings), PipelineConfig(period_seconds=PERIOD, on_progress=batches.append))
        stop = threading.Event()
        running = threading.Thread(target=pipeline.run, args=(stop,), daemon=True)
        running.start()
        load = Load(settings, pipeline, rate)
        load.send_for(_WARM_SECONDS, is_read=False)
        for is_read in (False, True):
            batches.clear()
            cpu, own = tree_cpu_seconds(os.getpid(), engine_processes), time.process_time()
            found, missing = load.send_for(seconds / 2, is_read=is_read)
            found.sort()
            line = {
                "reports_are_read": is_read,
                "events_per_second": rate,
                "freshness_p50": round(statistics.median(found), 1),
                "freshness_p95": round(found[int(len(found) * 0.95)], 1),
                "seconds_without_results": missing,
                "batches": len(batches),
                "events_per_batch": round(sum(one.counts.events for one in batches) / max(1, len(batches))),
                "longest_batch": round(max((one.seconds for one in batches), default=0.0), 2),
                "processor_seconds": round(tree_cpu_seconds(os.getpid(), engine_processes) - cpu, 1),
                "of_the_driver_and_the_load": round(time.process_time() - own, 1),
            }
            print(json.dumps(line), flush=True)
        stop.set()
        running.join(60)
        print(job_costs(lake, settings, rate))
        spark.stop()


def job_costs(lake: Lake, settings: Settings, rate: int) -> str:
    """Processor seconds for the events of one period, by job."""
    now = int(time.time() * 1000)
    events = [event for second in range(int(PERIOD)) for event in events_of_second(second, rate, now - 1000 * second)]
    silver = {
        name: events_table([event for event in events if event.table == name], name) for name in ("events", "command_events")
    }
    rollups = merge(lake.read_rollups(lake.files("rollups")))
    rows = []
    for one in computed_reports():
        measured = sum(_cost(lambda one=one, name=name: one.measures[name](silver[name])) for name in one.measures)  # type: ignore[misc]
        published = _cost(lambda one=one: _publication(one, rollups))  # type: ignore[misc]
        rows.append((one.report.job_name, one.report.name, f"{measured:.3f}", f"{published:.3f}"))
    auditor = FairnessAuditor(lake, engine_of(settings), DEFAULT_AUDITOR)
    rows.append(("fairness", "auditor, once a minute", "", f"{_cost(lambda: auditor.audit(datetime.now(UTC))):.3f}"))
    return table(("job", "report", "measures of 10 s of events", "rows and messages"), rows)


def _publication(one: Any, rollups: Any) -> Sequence[Any]:
    now = datetime.now(UTC)
    if one.report.is_snapshot:
        return report_messages(one.rows(rollups, now), one.report, None, 1, now)
    return [message for grain in Grain for message in report_messages(one.rows(rollups, grain), one.report, grain, 1, now)]


def _cost(work: Callable[[], object], rounds: int = 3) -> float:
    taken = []
    for _ in range(rounds):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)


if __name__ == "__main__":
    measure(float(sys.argv[1]) if len(sys.argv) > 1 else 90.0, int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
