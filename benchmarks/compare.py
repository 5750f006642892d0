"""Compare Postroad with other servers: the same load on each, in one run, on loopback, in less than 25 minutes.

    make bench      (or: .venv/bin/python -m benchmarks.compare [--seconds 5] [--rounds 2] [--only queues|topics|appends|live …])

- queues: wrk publishes 200 bytes of JSON over 64 and 256 connections; then consumers (pulling.py) pull and acknowledge these
  messages one at a time over 16 and 64, and 10 and 100 at a time over 16. The rounds alternate the order of the servers; the
  table shows the means. A row whose queue ran empty says so and has no ratio.
- topics: wrk publishes the same to a topic; peer: RabbitMQ.
- appends: 64 connections append 100 bytes of JSON to durable streams; peer: the protocol's reference server (streams.py).
- live: 200 readers of server-sent events, and one writer (streams.py, sse_readers.py), peers: nchan and the reference server.

Each server runs in a temporary directory on free ports. scripts/setup-peers installs missing servers; if one is unavailable,
its row states the reason. Writes benchmarks/results.md, except with --only.
"""

import argparse
import contextlib
import os
import platform
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import streams
from benchmarks.harness import Load, mean, wrk
from benchmarks.interpreter import description as python_of_postroad
from benchmarks.peers import fauxqs, ministack, moto, nchan, postroad, rabbitmq, reference, webdis
from benchmarks.peers.peer import FSYNC, INTERVAL, MEMORY, Peer, Queue, Request, Unavailable, answered, install
from benchmarks.processor_time import processor_us, tree_seconds
from benchmarks.pulling import Pulled, pulled
from benchmarks.report import (
    APPEND_MANY,
    APPEND_ONE,
    LIVE,
    PACED,
    PUBLISH,
    PUBLISH_TOPIC,
    PULL,
    PULL_BATCHES,
    US,
    Results,
    Row,
    written,
)

RESULTS = Path(__file__).with_name("results.md")
QUEUES = (
    postroad.GROUP,
    postroad.ALWAYS,
    postroad.TIMED,
    rabbitmq.PEER,
    webdis.ALWAYS,
    webdis.EVERYSEC,
    moto.PEER,
    ministack.PEER,
    fauxqs.PEER,
)
TOPICS = (postroad.TOPIC_GROUP, postroad.TOPIC_ALWAYS, postroad.TOPIC_TIMED, rabbitmq.PEER)
PUBLISHERS, CONSUMERS = (64, 256), (16, 64)
BATCH_CONSUMERS, BATCH_SECONDS = 16, 2.0
APPENDERS = 64
READERS, MESSAGES = 200, 500
CALM_SECONDS_MAX = 20
SECONDS_MAX = 24 * 60  # no measurement starts after this

Key = tuple[str, int]  # load and connections


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one load on one server, in one round."""

    key: Key
    load: Load
    note: str = ""
    is_comparable: bool = True


class Clock:
    """Elapsed time of the run, and CPU use by other processes."""

    def __init__(self) -> None:
        self._started, self._busy, self._own = time.monotonic(), busy_seconds(), own_seconds()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    @property
    def others(self) -> float:
        """Share of the CPU time used by processes outside this run."""
        used = busy_seconds() - self._busy - (own_seconds() - self._own)
        return max(0.0, used / (self.seconds * (os.cpu_count() or 1)))

    def check(self) -> None:
        if self.seconds > SECONDS_MAX:
            raise Unavailable("no time was left")


def busy_seconds() -> float:
    """CPU time of all processors since boot; the fourth and fifth numbers are idle time."""
    numbers = [int(number) for number in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(numbers) - numbers[3] - numbers[4]) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def say(text: str) -> None:
    print(text, flush=True)


# Queues


def script(request: Request) -> str:
    headers = "".join(f"wrk.headers[ [==[{name}]==] ] = [==[{value}]==]\n" for name, value in request.headers.items())
    return f'wrk.method = "{request.method}"\nwrk.body = [==[{request.body}]==]\n{headers}'


def published(queue: Queue, connections: int, seconds: float) -> Load:
    """Failed requests do not count as published."""
    before = tree_seconds(os.getpid())
    load = wrk(queue.url + queue.publish.path, connections, seconds, script(queue.publish))
    done = load.per_second * seconds - load.failed
    return replace(load, per_second=done / seconds, processor_us=processor_us(os.getpid(), before, done))


def tried(queue: Queue) -> None:
    """Publish and pull one message, to verify the requests before measuring."""
    for request in (queue.publish, queue.pull):
        status, body = answered(queue.url, request)
        if status >= 300:
            raise Unavailable(f"{request.method} {request.path} was answered {status}: {body[:200].decode(errors='replace')}")
    if not queue.taken(body):
        raise Unavailable(f"the message did not come back: {body[:200].decode(errors='replace')}")
    if queue.ack is not None:
        status, body = answered(queue.url, queue.ack(body))
        if status >= 300:
            raise Unavailable(f"the acknowledgement was answered {status}: {body[:200].decode(errors='replace')}")


def wait_until_responsive(queue: Queue) -> None:
    """Wait until a publish is answered quickly: a slow server still processes requests that wrk sent before it stopped."""
    until = time.monotonic() + CALM_SECONDS_MAX
    while time.monotonic() < until:
        started = time.monotonic()
        with contextlib.suppress(OSError):
            answered(queue.url, queue.publish)
            if time.monotonic() - started < 0.25:
                return


def published_outcome(queue: Queue, load_name: str, connections: int, seconds: float) -> Outcome:
    load = published(queue, connections, seconds)
    return Outcome((load_name, connections), load, f"{load.failed} failed" if load.failed else "")


def pulled_outcome(key: Key, outcome: Pulled) -> Outcome:
    notes = [f"{outcome.load.failed} failed"] if outcome.load.failed else []
    if outcome.dry_after is not None:
        notes.append(f"the queue ran empty after {outcome.dry_after:.1f} s: not comparable")
    elif outcome.empty:
        notes.append(f"{outcome.empty} empty answers")
    if not outcome.load.per_second:
        notes.append("none ended in time")
    return Outcome(key, outcome.load, ", ".join(notes), outcome.dry_after is None)


def queue_loads(peer: Peer, seconds: float) -> Iterator[Outcome]:
    with peer.running() as queue:
        tried(queue)
        published(queue, 8, 1)
        waiting = 0.0
        for connections in PUBLISHERS:
            outcome = published_outcome(queue, PUBLISH, connections, seconds)
            waiting += outcome.load.per_second * seconds
            yield outcome
        needed = 0.0
        for connections in CONSUMERS:
            if waiting < needed:  # the consumers would otherwise empty the queue
                waiting += published(queue, max(CONSUMERS), seconds).per_second * seconds
            wait_until_responsive(queue)
            taken = pulled(queue, connections, seconds - 1)
            waiting -= taken.load.per_second * seconds
            needed = 2 * taken.load.per_second * seconds
            yield pulled_outcome((PULL, connections), taken)
        for size, load_name in PULL_BATCHES.items():
            batches = queue.of_batches(size)
            if batches is not None:
                yield pulled_outcome((load_name, BATCH_CONSUMERS), pulled_batches(queue, batches, seconds))


def pulled_batches(queue: Queue, batches: Queue, seconds: float) -> Pulled:
    """If the queue runs empty, once more with as many messages as are published in three times as long."""
    for filling in (seconds, 3 * seconds):
        published(queue, max(PUBLISHERS), filling)
        wait_until_responsive(queue)
        taken = pulled(batches, BATCH_CONSUMERS, BATCH_SECONDS)
        if taken.dry_after is None:
            break
    return taken


def topic_loads(peer: Peer, seconds: float) -> Iterator[Outcome]:
    with peer.running() as queue:
        tried(queue)
        published(queue, 8, 1)
        for connections in PUBLISHERS:
            yield published_outcome(queue, PUBLISH_TOPIC, connections, seconds)


Loads = Callable[[Peer, float], Iterator[Outcome]]


def rows_of(peers: Sequence[Peer], loads: Loads, keys: Sequence[Key], seconds: float, rounds: int, clock: Clock) -> list[Row]:
    """A row for each load and peer. The rounds alternate the order of the peers."""
    found: dict[tuple[Key, str], list[Outcome]] = {}
    why: dict[str, str] = {}
    for number in range(rounds):
        for peer in peers if number % 2 == 0 else peers[::-1]:
            if peer.name in why:
                continue
            try:
                clock.check()
                install(peer.setup)
                for outcome in loads(peer, seconds):
                    found.setdefault((outcome.key, peer.name), []).append(outcome)
                    (load_name, connections), load = outcome.key, outcome.load
                    numbers = f"{load.per_second:,.0f}/s, p99 {load.p99_ms:.1f} ms {outcome.note}"
                    say(f"{load_name}, {connections} connections, {peer.name}: {numbers}")
            except (Unavailable, SystemExit, OSError, subprocess.SubprocessError) as problem:
                if peer.name.startswith(US):
                    raise
                why[peer.name] = " ".join(str(problem).split())
                say(f"{peer.name}: {why[peer.name]}")
    rows = []
    for key in keys:
        for peer in peers:
            outcomes = found.get((key, peer.name), [])
            if not outcomes and key[0] in PULL_BATCHES.values() and peer.name not in why:
                continue  # more than the server allows
            says = peer.one_pull if key[0] in (PULL, *PULL_BATCHES.values()) else peer.says
            rows.append(row_of(key, peer, says, outcomes, why.get(peer.name, "")))
    return rows


def row_of(key: Key, peer: Peer, says: str, outcomes: Sequence[Outcome], why: str) -> Row:
    """The means of the rounds; of those that are comparable, if there are any."""
    if not outcomes:
        return Row(*key, peer.name, peer.promise, says, None, why)
    shown = [one for one in outcomes if one.is_comparable] or outcomes
    return Row(*key, peer.name, peer.promise, says, mean([one.load for one in shown]), shown[-1].note, shown[-1].is_comparable)


def queues(seconds: float, rounds: int, clock: Clock) -> list[Row]:
    keys = [(PUBLISH, connections) for connections in PUBLISHERS] + [(PULL, connections) for connections in CONSUMERS]
    keys += [(load, BATCH_CONSUMERS) for load in PULL_BATCHES.values()]
    return rows_of(QUEUES, queue_loads, keys, seconds, rounds, clock)


def topics(seconds: float, rounds: int, clock: Clock) -> list[Row]:
    return rows_of(TOPICS, topic_loads, [(PUBLISH_TOPIC, connections) for connections in PUBLISHERS], seconds, rounds, clock)


# Streams


def appends(seconds: float, _rounds: int, clock: Clock) -> list[Row]:
    rows = []
    for name, count in ((APPEND_ONE, 1), (APPEND_MANY, 64)):
        sides = (("files", postroad.GROUP, "group"), ("memory", postroad.TIMED, postroad.INTERVAL_SECONDS))
        for kind, peer, sync in sides:
            load, other, why = None, None, ""
            try:
                clock.check()
                install(reference.SETUP)
                load, other = streams.side_by_side(kind, sync, count, seconds)
                say(f"{name}, {peer.name}: {load.per_second:,.0f}/s; the reference in {kind}: {other.per_second:,.0f}/s")
            except Unavailable as problem:
                why = str(problem)
            note = f"{other.failed} failed" if other and other.failed else why
            rows.append(Row(name, APPENDERS, peer.name, peer.promise, peer.says, load, why))
            if peer is postroad.GROUP:
                rows.append(appends_with_always(name, count, seconds, clock))
            rows.append(Row(name, APPENDERS, f"reference server, {kind}", *reference.PROMISES[kind], other, note))
    return rows


def appends_with_always(name: str, count: int, seconds: float, clock: Clock) -> Row:
    peer, load, why = postroad.ALWAYS, None, ""
    try:
        clock.check()
        with streams.ours(POSTROAD_SYNC="always") as server:
            load = streams.appended(server, "bench", count, seconds)
        say(f"{name}, {peer.name}: {load.per_second:,.0f}/s")
    except Unavailable as problem:
        why = str(problem)
    return Row(name, APPENDERS, peer.name, peer.promise, peer.says, load, why)


# Live

_Opened = Callable[[], contextlib.AbstractContextManager[streams.Peer]]


def live(_seconds: float, rounds: int, clock: Clock) -> list[Row]:
    sides: list[tuple[str, str, str, str, _Opened]] = [
        (postroad.GROUP.name, FSYNC, postroad.GROUP.says, "", lambda: streams.ours(POSTROAD_SYNC="group")),
        (
            postroad.TIMED.name,
            INTERVAL,
            postroad.TIMED.says,
            "",
            lambda: streams.ours(POSTROAD_SYNC=postroad.INTERVAL_SECONDS),
        ),
        ("nchan", MEMORY, "in shared memory", nchan.SETUP, nchan.running),
        ("reference server, memory", *reference.PROMISES["memory"], reference.SETUP, lambda: reference.running("memory")),
    ]
    fast: dict[str, list[Load]] = {}
    wait_until_responsive: dict[str, list[Load]] = {}
    why: dict[str, str] = {}
    for number in range(rounds):
        for name, _, _, setup, opened in sides if number % 2 == 0 else sides[::-1]:
            try:
                clock.check()
                install(setup)
                with opened() as peer:
                    fast.setdefault(name, []).append(heard(peer, "fast"))
                    wait_until_responsive.setdefault(name, []).append(heard(peer, "calm", streams.PACED))
                say(
                    f"live, {name}: {fast[name][-1].per_second:,.0f}/s, paced p99 {wait_until_responsive[name][-1].p99_ms:.1f} ms"
                )
            except Unavailable as problem:
                why[name] = str(problem)
    return [
        Row(
            load,
            READERS,
            name,
            promise,
            says,
            mean(found[name]) if name in found else None,
            why.get(name, "") or lost(found.get(name, [])),
        )
        for load, found in ((LIVE, fast), (PACED, wait_until_responsive))
        for name, promise, says, _, _ in sides
    ]


def heard(peer: streams.Peer, name: str, per_second: float = 0) -> Load:
    messages = 5 * streams.PACED if per_second else MESSAGES
    found = streams.delivered(peer, name, READERS, messages, per_second=per_second)
    return Load(found.per_second, found.p50_ms, found.p99_ms, READERS * messages - found.delivered, found.processor_us)


def lost(loads: list[Load]) -> str:
    missing = sum(load.failed for load in loads)
    return f"{missing} not delivered" if missing else ""


# The machine


def fsync_ms() -> float:
    """Median time of 200 fsyncs of 4 KiB appends in the benchmarks' temporary directory."""
    times = []
    with tempfile.TemporaryFile() as file:
        for _ in range(200):
            file.write(bytes(4096))
            file.flush()
            started = time.perf_counter()
            os.fsync(file.fileno())
            times.append(1000 * (time.perf_counter() - started))
    return statistics.median(times)


def first_line(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return "?"
    return (subprocess.run(command, capture_output=True, text=True).stdout.strip().splitlines() or ["?"])[0]


def versions() -> Iterator[str]:
    for peer in (postroad.ALWAYS, rabbitmq.PEER, webdis.ALWAYS, moto.PEER, ministack.PEER, fauxqs.PEER):
        yield f"{re.split(', | append', peer.name)[0]} {peer.version()}"
    yield f"nchan {nchan.version()}"
    yield f"Durable Streams reference server {reference.version()}"
    yield first_line(str(Path(sys.executable).with_name("nats-server")), "--version").replace(": v", " ")
    yield python_of_postroad()
    yield f"Node.js {first_line('.venv/bin/node', '--version')}"


def facts(chosen: argparse.Namespace, clock: Clock) -> list[str]:
    seconds, rounds = chosen.seconds, chosen.rounds
    commit = first_line("git", "describe", "--always", "--dirty= with uncommitted changes", "--exclude=*")
    machine = f"{os.cpu_count()} cores of {platform.machine()} shared by servers and load generators"
    measures = f"each number of publishing from {seconds} s of wrk, of pulling from {seconds - 1} s; means of the rounds"
    return [
        f"commit: {commit}",
        f"machine: {machine}; an fsync of 4 KiB takes {fsync_ms():.2f} ms",
        f"other load during the run: {100 * clock.others:.0f} % of the processors; well above 0, the ratios are inaccurate",
        f"versions: {'; '.join(versions())}",
        f"command: `python -m benchmarks.compare --seconds {seconds} --rounds {rounds}`; {clock.seconds / 60:.0f} minutes",
        f"measures: {measures}",
        f"load: 200 bytes of JSON for queues, 100 for streams; live: {READERS} readers of {MESSAGES} messages",
        "processor µs: time of all processes of the server, per request, message or delivery, with what it does at intervals",
        "Postroad and nginx with one worker; callers of Postroad and RabbitMQ have credentials, those of the others need none",
    ]


PARTS: dict[str, Callable[[float, int, Clock], list[Row]]] = {
    "queues": queues,
    "topics": topics,
    "appends": appends,
    "live": live,
}


def interrupted(_signal: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=5, help="for each number that wrk measures")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=[])
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, interrupted)  # so that running servers are stopped
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))  # the servers inherit it
    for setup in ("wrk", reference.SETUP, nchan.SETUP, *(peer.setup for peer in QUEUES)):
        with contextlib.suppress(Unavailable):  # its rows state the reason
            install(setup)
    clock = Clock()  # after the installation, which is not part of the run
    rows = [row for part in chosen.only or PARTS for row in PARTS[part](chosen.seconds, chosen.rounds, clock)]
    text = written(Results(rows), facts(chosen, clock))
    say("\n" + text)
    if not chosen.only:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
