"""Processor time per message of requests of this checkout beside another one, such as a clone of an earlier commit.

    .venv/bin/python -m benchmarks.checkouts OTHER [--rounds 8] [--seconds 1] [--sync 2s] [--connections 64]

Two installations run at the same time, with the packages of this environment. They are loaded in turns, a second each, and swap
their order after each round. The ratios are medians of neighbouring rounds: they tell more than the times on a machine that does
other work, too.
"""

import argparse
import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.compare import published
from benchmarks.harness import Load, Server, postroad, table
from benchmarks.peers.peer import Queue
from benchmarks.peers.postroad import queue_of
from benchmarks.pulling import pulled
from benchmarks.topics import processes, processor_seconds

_ROOT = Path(__file__).parents[1]
_FILL_SECONDS = 6.0  # batches take more than a round publishes
_BATCH = 10
_BATCHES = f"pull {_BATCH} and ack"


@dataclass(slots=True)
class Side:
    server: Server
    queue: Queue
    costs: dict[tuple[str, str], list[float]] = field(default_factory=dict)  # µs by load and role
    rates: dict[str, list[float]] = field(default_factory=dict)

    def run(self, load: str, connections: int, seconds: float) -> None:
        before = self._seconds()
        outcome = _loaded(self.queue, load, connections, seconds)
        done = outcome.per_second * seconds
        for role, used in self._seconds().items():
            self.costs.setdefault((load, role), []).append(1e6 * (used - before.get(role, 0)) / max(done, 1))
        self.rates.setdefault(load, []).append(outcome.per_second)

    def _seconds(self) -> dict[str, float]:
        return {role: processor_seconds(pids) for role, pids in processes(self.server.pid).items()}


def _loaded(queue: Queue, load: str, connections: int, seconds: float) -> Load:
    if load == "publish":
        return published(queue, connections, seconds)
    consumed = queue.of_batches(_BATCH) if load == _BATCHES else queue
    return pulled(consumed or queue, connections, seconds, 0).load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="root of the other checkout")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--sync", default="2s")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        start = partial(postroad, POSTROAD_SYNC=chosen.sync)
        this, other = (
            Side(server := stack.enter_context(start(PYTHONPATH=str(root / "src"))), queue_of(server))
            for root in (_ROOT, chosen.other.resolve())
        )
        for side in (this, other):
            published(side.queue, 64, _FILL_SECONDS)
        for number in range(chosen.rounds):
            for load in ("publish", "pull and ack", _BATCHES):
                for side in (this, other) if number % 2 else (other, this):
                    side.run(load, chosen.connections, chosen.seconds)
    rows = []
    for load, role in this.costs:
        ours, theirs = this.costs[load, role], other.costs[load, role]
        ratios = [one / two for one, two in zip(ours, theirs, strict=True) if two]
        rows.append(
            [load, role, f"{statistics.median(theirs):.0f}", f"{statistics.median(ours):.0f}", f"{statistics.median(ratios):.2f}"]
        )
    for load in this.rates:
        ratios = [one / two for one, two in zip(this.rates[load], other.rates[load], strict=True) if two]
        rows.append(
            [
                load,
                "per second",
                *(f"{statistics.median(one.rates[load]):,.0f}" for one in (other, this)),
                f"{statistics.median(ratios):.2f}",
            ]
        )
    print(table(["load", "µs of", "other", "this", "ratio"], rows))


if __name__ == "__main__":
    main()
