"""The report of `make bench`: a table of results, the servers that are ahead, and the targets; computed from the rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.harness import Load, table
from benchmarks.peers.peer import FSYNC, INTERVAL, MEMORY

US = "Postroad"
PUBLISH, PULL = "publish", "pull and acknowledge"
PULL_BATCHES = {10: "pull 10 and acknowledge, messages", 100: "pull 100 and acknowledge, messages"}
PUBLISH_TOPIC = "publish to a topic"
APPEND_ONE, APPEND_MANY = "append to 1 stream", "append to 64 streams"
LIVE, PACED = "live, one writer at full speed", "live, 20 messages per second"

_HEAD = ["load", "connections", "server", "per second", "p50 ms", "p99 ms", "processor µs", "ratio", "durability", "meaning"]


@dataclass(frozen=True, slots=True)
class Row:
    """Result of one server under one load, or the reason why there is none. Without `is_comparable` it has no ratio."""

    load: str
    connections: int
    server: str
    promise: str
    says: str
    result: Load | None
    note: str = ""
    is_comparable: bool = True

    @property
    def is_ours(self) -> bool:
        return self.server.startswith(US)


@dataclass(frozen=True, slots=True)
class Target:
    what: str
    needed: float
    found: float | None

    @property
    def verdict(self) -> str:
        if self.found is None:
            return "not measured"
        return "met" if self.found >= self.needed else "missed"


class Results:
    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def ours(self, row: Row, promise: str = "") -> Load | None:
        """Postroad's first row for the same load and durability: fsync for fsync, otherwise the interval; or for `promise`."""
        wanted = row.load, row.connections, promise or (FSYNC if row.promise == FSYNC else INTERVAL)
        alike = (
            one.result
            for one in self.rows
            if one.is_ours and one.is_comparable and (one.load, one.connections, one.promise) == wanted
        )
        return next(alike, None)

    def ratio(self, row: Row, promise: str = "") -> float | None:
        ours = self.ours(row, promise)
        if row.is_ours or not row.is_comparable or row.result is None or ours is None or not row.result.per_second:
            return None
        return ours.per_second / row.result.per_second

    def table(self) -> str:
        return table(_HEAD, [self._cells(row) for row in self.rows])

    def _cells(self, row: Row) -> list[object]:
        if row.result is None:
            return [row.load, row.connections, row.server, f"not measured: {row.note}", "", "", "", "", row.promise, row.says]
        ratio = self.ratio(row)
        says = f"{row.says} ({row.note})" if row.note else row.says
        cost = "" if row.result.processor_us is None else f"{row.result.processor_us:,.0f}"
        numbers = f"{row.result.per_second:,.0f}", f"{row.result.p50_ms:.1f}", f"{row.result.p99_ms:.1f}", cost
        shown = "" if ratio is None or row.load == PACED else f"{ratio:.2f}"
        return [row.load, row.connections, row.server, *numbers, shown, row.promise, says]

    def ahead(self) -> Iterator[str]:
        """Rows in which a peer with the same durability has a higher rate than Postroad, or a lower latency at a fixed rate."""
        for row in self.rows:
            ours, ratio = self.ours(row), self.ratio(row)
            if row.result is None or ours is None or ratio is None:
                continue
            where = f"{row.server} ({row.promise}), {row.load}, {row.connections} connections"
            if row.load == PACED:
                if row.result.p99_ms < ours.p99_ms:
                    yield f"{where}: p99 of {row.result.p99_ms:.1f} ms, Postroad {ours.p99_ms:.1f}"
            elif ratio < 1:
                yield f"{where}: {1 / ratio:.1f} times Postroad"

    def targets(self) -> list[Target]:
        rabbit = "compared with RabbitMQ's management API"
        memory = "compared with the best in-memory SQS server"
        files = "compared with the reference server with files"
        return [
            *(
                Target(
                    f"publish, fsynced, {connections} connections, {rabbit}",
                    needed,
                    self._least(PUBLISH, connections, "RabbitMQ"),
                )
                for connections, needed in ((64, 8), (256, 12))
            ),
            *(
                Target(
                    f"publish to a topic, fsynced, {connections} connections, {rabbit}",
                    needed,
                    self._least(PUBLISH_TOPIC, connections, "RabbitMQ"),
                )
                for connections, needed in ((64, 4), (256, 6.5))
            ),
            *(
                Target(
                    f"publish, fsynced, {connections} connections, {memory}", 1.3, self._least(PUBLISH, connections, "SQS", FSYNC)
                )
                for connections in (64, 256)
            ),
            *(
                Target(f"{load}, interval, {connections} connections, {memory}", needed, self._least(load, connections, "SQS"))
                for load, connections, needed in (
                    (PUBLISH, 64, 1.5),
                    (PUBLISH, 256, 1.5),
                    (PULL, 16, 0.9),
                    (PULL, 64, 1.2),
                    (PULL_BATCHES[10], 16, 1),
                )
            ),
            *(
                Target(
                    f"publish, fsynced, {connections} connections, compared with webdis over Redis that fsyncs",
                    0.4,
                    self._least(PUBLISH, connections, "Redis appendfsync always"),
                )
                for connections in (64, 256)
            ),
            Target(f"append to 1 stream, fsynced, {files}", 12, self._least(APPEND_ONE, 64, "reference")),
            Target(f"append to 64 streams, fsynced, {files}", 6, self._least(APPEND_MANY, 64, "reference")),
            Target("live, 200 readers, interval, compared with nchan", 0.6, self._least(LIVE, 200, "nchan")),
        ]

    def _least(self, load: str, connections: int, server: str, promise: str = "") -> float | None:
        """The smallest ratio to the servers of that name; for the reference only rows with the same durability.

        `promise`: the durability of Postroad's row, if it is not that of the comparison.
        """
        ratios = [
            ratio
            for row in self.rows
            if (row.load, row.connections) == (load, connections)
            and server in row.server
            and not (load in (APPEND_ONE, APPEND_MANY) and row.promise == MEMORY)
            and (ratio := self.ratio(row, promise)) is not None
        ]
        return min(ratios, default=None)


def written(results: Results, facts: Sequence[str]) -> str:
    targets = results.targets()
    verdicts = [
        [target.what, f"{target.needed:g}", "" if target.found is None else f"{target.found:.2f}", target.verdict]
        for target in targets
    ]
    ahead = [f"- {line}" for line in results.ahead()] or ["- none"]
    return "\n".join(
        [
            "# Postroad compared with other servers",
            "",
            "Generated by `make bench`.",
            "",
            *(f"- {fact}" for fact in facts),
            "",
            "Only the ratios (Postroad divided by the other server) are comparable between machines. Servers that fsync before",
            "they respond are compared with Postroad's first row that does, all others with Postroad with an interval.",
            "",
            results.table(),
            "",
            "## Where another server is ahead",
            "",
            *ahead,
            "",
            "## Targets",
            "",
            table(["target", "required ratio", "measured", "result"], verdicts),
            "",
        ]
    )
