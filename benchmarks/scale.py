"""Cost of a publish, pull, ack and append with little and with much in the installation: it should not grow.

    .venv/bin/python -m benchmarks.scale [--quick] [--minutes 25] [--only depth queues sessions registry repeats]

Each part runs two installations at the same time, one almost empty and one filled, and measures them in turns. The cost is the
processor time per operation of all processes: gateway, nats-server, and background (the control and delivery workers: the job
index, samples, sweeps). What they use without requests is measured before and after the rounds, printed, and subtracted:
it is work at intervals, and grows with the number of queues.

Each ratio must be at most 1.2. The exit code is 1 if one is not, or was not measured. A part begins to measure when the job index
is current and the processes rest. No run takes longer than `--minutes`: what is not measured by then is said to be missing, and
can be run with `--only`. Estimated, at full size on two quiet cores: 4 to 6 minutes a part, `repeats` 1. `--quick`: 10 in all.
"""

import argparse
import asyncio
import itertools
import json
import re
import sys
import time
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import aiohttp
import uvloop

from benchmarks.harness import Server, postroad, table
from benchmarks.processor_time import Cost, Meter
from benchmarks.publish import BODY
from benchmarks.registry import fill as fill_registry

CONNECTIONS = 64
RATIO_MAX = 1.2
FOLLOW_UP_SECONDS = 2.5  # after the last response: the job index batches events for up to a second
IDLE_SECONDS = 20  # two samples of all queues
QUIET_CORES_MAX = 0.3  # an installation that uses less, twice in succession, has done what followed from filling it
PAYLOAD = json.loads(BODY)["payload"]
HEAD = ["filled", "operation", "few µs: gateway + engine + background", "many µs", "ratio", f"at most {RATIO_MAX}"]


@dataclass(frozen=True, slots=True)
class Size:
    """Of the filled installation, and of a measurement."""

    waiting: int = 1_000_000
    queues: int = 2_000
    sessions: int = 100_000
    registry: int = 1_000_000
    operations: int = 3_000
    rounds: int = 4


QUICK = Size(waiting=20_000, queues=200, sessions=1_000, registry=20_000, operations=1_000, rounds=3)


@dataclass(frozen=True, slots=True)
class Window:
    """A measurement of one operation: processor seconds that all processes used, its duration, and how often it was done."""

    used: Cost
    seconds: float
    count: int


def cost_of(windows: Sequence[Window], idle: Cost) -> Cost:
    """Of one operation, in seconds, over all rounds together: work at intervals falls into some of them only."""
    used, seconds = Cost(0, 0), 0.0
    for window in windows:
        used, seconds = used + window.used, seconds + window.seconds
    return (used - idle.per(1 / seconds)).per(sum(window.count for window in windows))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of one operation on both installations. Without costs it was not measured."""

    part: str
    operation: str
    few: Cost | None = None
    many: Cost | None = None

    @property
    def ratio(self) -> float | None:
        """None if it was not measured, or so shortly that less was used than without requests."""
        if self.few is None or self.many is None or min(self.few.sum, self.many.sum) <= 0:
            return None
        return self.many.sum / self.few.sum

    @property
    def is_flat(self) -> bool:
        return self.ratio is not None and self.ratio <= RATIO_MAX

    def cells(self) -> list[object]:
        if self.few is None or self.many is None:
            return [self.part, self.operation, "not measured", "", "", "no"]
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        return [self.part, self.operation, _shown(self.few), _shown(self.many), ratio, "yes" if self.is_flat else "no"]


def _shown(cost: Cost, scale: float = 1e6) -> str:
    return " + ".join(f"{scale * part:.0f}" for part in (cost.gateway, cost.engine, cost.background))


@dataclass(slots=True)
class Site:
    """An installation, a client of it, and what was measured, by operation."""

    server: Server
    session: aiohttp.ClientSession
    meter: Meter
    windows: dict[str, list[Window]] = field(default_factory=dict)
    idle: list[Cost] = field(default_factory=list)  # processor seconds per second, without requests
    receipts: list[str] = field(default_factory=list)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def post(self, path: str, body: object, *, content_type: str = "application/json") -> object:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(path, data=data, headers={"Content-Type": content_type}) as answer:
            if answer.status == 503:
                raise Busy(f"{path} was answered 503: {await answer.text()}")
            if answer.status >= 300:
                raise SystemExit(f"{path} was answered {answer.status}: {await answer.text()}")
            return await answer.json() if "json" in answer.headers.get("Content-Type", "") else None

    async def put(self, path: str) -> None:
        async with self.session.put(path, headers={"Content-Type": "application/json"}) as answer:
            answer.raise_for_status()

    async def measure(self, operation: str, count: int, work: Callable[[], Awaitable[object]]) -> None:
        before, started = self.meter.read(), time.monotonic()
        await concurrently(count, work)
        await asyncio.sleep(FOLLOW_UP_SECONDS)
        window = Window(self.meter.read() - before, time.monotonic() - started, count)
        self.windows.setdefault(operation, []).append(window)

    async def measure_idle(self) -> None:
        self.idle.append(await self.meter.measure_idle(IDLE_SECONDS))

    async def wait_quiet(self) -> None:
        """Return when the job index is current and the processes rest: what follows from filling it is done."""
        quiet = 0
        while quiet < 2:
            used = (await self.meter.measure_idle(5)).sum
            quiet = quiet + 1 if used < QUIET_CORES_MAX and await self._events_behind() == 0 else 0

    async def _events_behind(self) -> float:
        """Frames of events that the job index has not read, as of the last two seconds."""
        key = tomllib.loads((self.server.home / "credentials.toml").read_text())["admin_key"]
        async with self.session.get("/metrics", headers={"Authorization": f"Bearer {key}"}) as answer:
            answer.raise_for_status()
            found = re.findall(r"^postroad_jobs_behind_frames(?:{.*})? (\S+)$", await answer.text(), re.MULTILINE)
        if not found:
            raise SystemExit("/metrics has no postroad_jobs_behind_frames")
        return sum(map(float, found))


class Busy(Exception):
    """The installation asks to try again later."""


async def patiently(work: Callable[[], Awaitable[object]]) -> None:
    """For filling, of which a part may be done twice: many queues are created at once, each with a sync of the filesystem."""
    for pause in (1, 2, 4, 8):
        try:
            await work()
            return
        except Busy:
            await asyncio.sleep(pause)
    await work()


async def concurrently(count: int, work: Callable[[], Awaitable[object]]) -> None:
    """Call `work` `count` times, from as many tasks as there are connections."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            await work()

    await asyncio.gather(*[worker() for _ in range(CONNECTIONS)])


# Operations


async def publish(site: Site) -> None:
    await site.post("/v1/queues/bench/messages", {"payload": PAYLOAD})


async def publish_with_key(site: Site, share: float) -> None:
    """A share of the keys, evenly spread, repeats an earlier one."""
    number = next(site.numbers)
    is_repeated = int((number + 1) * share) > int(number * share)
    key = f"used-{number % 47}" if is_repeated else f"new-{number}"
    await site.post("/v1/queues/bench/messages", {"payload": PAYLOAD, "idempotencyKey": key})


async def pull(site: Site) -> None:
    answer = await site.post("/v1/queues/bench/pull", {"maxMessages": 1})
    assert isinstance(answer, dict)
    site.receipts += [message["receiptId"] for message in answer["messages"]]


async def ack(site: Site) -> None:
    await site.post("/v1/queues/bench/ack", {"receiptId": site.receipts.pop()})


async def append(site: Site) -> None:
    await site.post("/v1/stream/bench", PAYLOAD)


async def queue_round(site: Site, count: int) -> None:
    await site.measure("publish", count, lambda: publish(site))
    await site.measure("pull", count, lambda: pull(site))
    await site.measure("ack", len(site.receipts), lambda: ack(site))


async def append_round(site: Site, count: int) -> None:
    await site.measure("append", count, lambda: append(site))


# Parts: what the second installation is filled with


async def fill_queue(site: Site, name: str, count: int) -> None:
    body = json.dumps({"messages": [{"payload": PAYLOAD}] * 1000}).encode()
    batches = iter(range(count // 1000))

    async def publish_batches() -> None:
        for _ in batches:
            await patiently(lambda: site.post(f"/v1/queues/{name}/messages/batch", body))

    await asyncio.gather(*(publish_batches() for _ in range(8)))


async def depth(few: Site, many: Site, size: Size) -> None:
    await fill_queue(few, "bench", 1000)
    await fill_queue(many, "bench", size.waiting)


async def queues(few: Site, many: Site, size: Size) -> None:
    numbers = itertools.count()

    async def create() -> None:
        path = f"/v1/queues/q{next(numbers)}/messages"
        await patiently(lambda: many.post(path, {"payload": PAYLOAD}))

    await concurrently(size.queues, create)


async def sessions(few: Site, many: Site, size: Size) -> None:
    """A hundred streams with as many subscribers each; the stream that is measured has none."""
    numbers = itertools.count()

    async def subscribe(site: Site) -> None:
        number = next(numbers)
        body = {"sessionId": f"s{number:08d}", "streamId": f"source{number % max(1, size.sessions // 100)}"}
        await patiently(lambda: site.post("/v1/default/subscribe", body))

    for number in range(max(1, size.sessions // 100)):
        await many.put(f"/v1/stream/source{number}")
    await concurrently(size.sessions, lambda: subscribe(many))


async def registry(few: Site, many: Site, size: Size) -> None:
    await fill_registry(many.server.engine, size.registry // 1000, 1000)


async def repeats(few: Site, many: Site, size: Size) -> None:
    for site in (few, many):
        await concurrently(47, lambda site=site: publish_with_key(site, 1))  # type: ignore[misc]
        site.numbers = itertools.count(1000)


# Measuring


async def measured(part: str, few: Site, many: Site, size: Size) -> list[Comparison]:
    fill, both = PARTS[part], (few, many)
    for site in both:
        await site.put("/v1/stream/bench")
        await site.post("/v1/queues/bench/messages", {"payload": PAYLOAD})
    started = time.monotonic()
    await fill(few, many, size)
    await asyncio.gather(*[concurrently(200, lambda site=site: publish(site)) for site in both])  # type: ignore[misc]
    filled = time.monotonic()
    await asyncio.gather(*[site.wait_quiet() for site in both])
    print(f"{part}: filled in {filled - started:.0f} s, quiet after {time.monotonic() - filled:.0f} s more", flush=True)
    await asyncio.gather(*[site.measure_idle() for site in both])
    for number in range(size.rounds):
        shares = ((few, 0.0), (many, 0.1))
        for site, share in shares if number % 2 == 0 else shares[::-1]:
            if fill is repeats:
                await site.measure(
                    "publish with keys",
                    size.operations,
                    lambda site=site, share=share: publish_with_key(site, share),  # type: ignore[misc]
                )
                continue
            await queue_round(site, size.operations)
            await append_round(site, size.operations)
    await asyncio.gather(*[site.measure_idle() for site in both])
    return compared(part, few, many)


def compared(part: str, few: Site, many: Site) -> list[Comparison]:
    idle = [(site.idle[0] + site.idle[-1]).per(2) for site in (few, many)]
    print(f"{part}: no requests, ms per second: {_shown(idle[0], 1000)}; {_shown(idle[1], 1000)}", flush=True)
    return [
        Comparison(part, name, cost_of(few.windows[name], idle[0]), cost_of(many.windows[name], idle[1])) for name in few.windows
    ]


async def measured_part(part: str, few: Server, many: Server, size: Size, seconds: float) -> list[Comparison]:
    async with _session(few) as one, _session(many) as other:
        sites = Site(few, one, Meter(few)), Site(many, other, Meter(many))
        try:
            async with asyncio.timeout(seconds):
                return await measured(part, *sites, size)
        except (TimeoutError, Busy) as problem:
            print(f"{part}: {str(problem) or 'no time was left'}", flush=True)
            return [Comparison(part, "all")]


def _session(server: Server) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {server.key}"}
    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    return aiohttp.ClientSession(server.url, headers=headers, connector=connector, timeout=aiohttp.ClientTimeout(120))


PARTS = {"depth": depth, "queues": queues, "sessions": sessions, "registry": registry, "repeats": repeats}


def run(names: Iterable[str], size: Size, minutes: float) -> list[Comparison]:
    ends = time.monotonic() + 60 * minutes
    found: list[Comparison] = []
    for name in names:
        started = time.monotonic()
        if started >= ends:
            found.append(Comparison(name, "all"))
            continue
        with ExitStack() as stack:
            limits = {"POSTROAD_QUEUES_PER_TENANT_MAX": str(size.queues + 10)}
            few, many = (stack.enter_context(postroad(**limits)) for _ in range(2))
            rows = uvloop.run(measured_part(name, few, many, size, ends - time.monotonic()))
        found += rows
        print(table(HEAD, [row.cells() for row in rows]))
        print(f"{name}: {(time.monotonic() - started) / 60:.1f} minutes", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--minutes", type=float, default=25, help="longest duration of the run")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="some of the parts")
    chosen = parser.parse_args()
    size = QUICK if chosen.quick else Size()
    found = run(chosen.only, size, chosen.minutes)
    print(f"\n{size}")
    print(table(HEAD, [one.cells() for one in found]))
    sys.exit(0 if all(one.is_flat for one in found) else 1)


if __name__ == "__main__":
    main()
