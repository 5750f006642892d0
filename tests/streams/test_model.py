"""Streams compared with a model: for random operations through two workers that restart, contents, offsets and refusals match the
model, and nothing remains after everything is deleted."""

import asyncio
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postroad.kernel.errors import PostroadError
from postroad.runtime.embedded_server import EmbeddedServerSettings
from postroad.streams import appender, reading
from postroad.streams.rules import AppendOutcome, ProducerClaim
from postroad.streams.store import StreamName
from tests.servers import Server
from tests.streams.naive import Naive
from tests.streams.workers import Worker, open_worker
from tests.tiers import long_runs

pytestmark = pytest.mark.slow

PATHS = ("a", "b", "a/b", "c")
MOSTLY = ("a", "a", "a", *PATHS)
NAMES = (
    *["produce"] * 6,
    *["in_turn"] * 4,
    *["plain", "create", "fork", "read", "burst"] * 3,
    *["delete", "restart"] * 2,
    "close",
)
STEPS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(MOSTLY), st.integers(0, 11), st.booleans()), min_size=20, max_size=60
)


@dataclass(eq=False)
class Lifecycle:
    """Expected state of one incarnation of a stream. `content`: each message with the offset after it."""

    content: list[tuple[int, bytes]] = field(default_factory=list)
    base: int = 0
    rules: Naive = field(default_factory=Naive)
    origin: "Lifecycle | None" = None
    fork: tuple[str, int, int] | None = None
    forks: int = 0
    is_hidden: bool = False

    @property
    def tail(self) -> int:
        return max(self.base, self.content[-1][0] if self.content else 0)

    @property
    def offsets(self) -> list[int]:
        return sorted({0, self.base, *[offset for offset, _ in self.content]})

    def after(self, position: int) -> list[bytes]:
        return [payload for offset, payload in self.content if offset > position]


class Player:
    """Executes each operation on the streams and on the model, and compares."""

    def __init__(self, url: str, workers: list[Worker], tenant: str) -> None:
        self.url, self.workers, self.tenant = url, workers, tenant
        self.lives: dict[str, Lifecycle] = {}
        self.count = 0

    async def play(self, step: str, path: str, number: int, is_second: bool) -> None:
        self.worker, self.other = self.workers[is_second], self.workers[not is_second]
        await getattr(self, step)(path, number)
        await self.check(path)

    def name(self, path: str) -> StreamName:
        return StreamName(self.tenant, path)

    def data(self) -> bytes:
        self.count += 1
        return b"%d;" % self.count

    def missing(self, path: str) -> str | None:
        """Error code of a stream that does not exist; None if it exists."""
        life = self.lives.get(path)
        return "stream-not-found" if life is None else "stream-gone" if life.is_hidden else None

    async def refused(self, code: str, work: Awaitable[object]) -> None:
        with pytest.raises(PostroadError) as refusal:
            await work
        assert refusal.value.code == code

    # Steps

    async def create(self, path: str, number: int) -> None:
        is_closed, body = number == 0, self.data() if number % 2 else b""
        life = self.lives.get(path)
        work = self.worker.create(self.name(path), body, is_closed=is_closed)
        if life is not None and (life.is_hidden or life.fork is not None or life.rules.is_closed != is_closed):
            await self.refused("stream-exists", work)
            return
        made = await work
        assert made.is_new == (life is None)
        if life is None:
            life = self.lives[path] = Lifecycle()
            life.rules.is_closed = is_closed
            life.content += [(made.tail, body)] if body else []
        assert made.tail == life.tail

    async def fork(self, path: str, number: int) -> None:
        """Fork another stream, at one of its offsets or right after one, sometimes with a sub-offset."""
        source_path = PATHS[(PATHS.index(path) + 1 + number % 3) % len(PATHS)]
        source, life = self.lives.get(source_path), self.lives.get(path)
        offset = 0 if source is None else source.offsets[number % len(source.offsets)]
        if source is not None and number % 4 == 3 and offset < source.tail:
            offset += 1
        following = [] if source is None else source.after(offset)
        part = number % 2 if following else 0
        work = self.worker.fork(self.name(path), self.name(source_path), offset, part)
        if life is not None:
            is_same = not life.is_hidden and life.fork == (source_path, offset, part) and not life.rules.is_closed
            if not is_same:
                await self.refused("stream-exists", work)
                return
            assert not (await work).is_new
            return
        if source is None or source.is_hidden:
            await self.refused("stream-not-found" if source is None else "precondition-failed", work)
            return
        made = await work
        assert made.is_new
        source.forks += 1
        life = Lifecycle(
            [one for one in source.content if one[0] <= offset], offset, Naive(), source, (source_path, offset, part)
        )
        if part:
            life.content.append((made.tail, following[0][:part]))
        self.lives[path] = life
        assert made.tail == life.tail

    async def append(
        self, path: str, claim: ProducerClaim | None, seq: str | None, *, closes: bool = False, has_data: bool = True
    ) -> None:
        data = self.data() if has_data else None
        said = None if claim is None else (claim.id, claim.epoch, claim.sequence)
        work = self.worker.append(self.name(path), data, said, seq=seq, closes=closes)
        verdict = self.missing(path) or self.lives[path].rules.append(claim, seq, closes, has_data)
        if verdict not in ("new", "duplicate"):
            await self.refused(verdict, work)
            return
        outcome, life = await work, self.lives[path]
        if verdict == "new" and data is not None:
            assert outcome.next_offset > life.tail
            life.content.append((outcome.next_offset, data))
        expected = claim
        if claim is not None and verdict == "duplicate" and not life.rules.is_closed:
            expected = ProducerClaim(claim.id, *life.rules.producers[claim.id])
        assert outcome == AppendOutcome(life.tail, life.rules.is_closed, verdict == "duplicate", expected)

    async def plain(self, path: str, _number: int) -> None:
        await self.append(path, None, None)

    async def produce(self, path: str, number: int) -> None:
        """Mostly the next sequence; sometimes an earlier one, a gap, or another epoch."""
        producer = f"p{number % 2}"
        life = self.lives.get(path)
        epoch, last = life.rules.producers.get(producer, (0, -1)) if life is not None else (0, -1)
        again, gap, earlier = (epoch, max(0, last)), (epoch, last + 2), (max(0, epoch - 1), 0)
        claims = {6: again, 7: again, 8: gap, 9: earlier, 10: (epoch + 1, 0), 11: (epoch + 1, 1)}
        await self.append(path, ProducerClaim(producer, *claims.get(number, (epoch, last + 1))), None)

    async def in_turn(self, path: str, number: int) -> None:
        await self.append(path, None, f"{number // 2}")

    async def close(self, path: str, number: int) -> None:
        claim = ProducerClaim("closer", 0, 0) if number % 3 == 0 else None
        await self.append(path, claim, None, closes=True, has_data=number % 2 == 0)

    async def burst(self, path: str, number: int) -> None:
        """Append concurrently through both workers: all are stored at the returned offsets."""
        life = self.lives.get(path)
        if life is None or self.missing(path) or life.rules.is_closed:
            return
        sent = [self.data() for _ in range(number)]
        outcomes = await asyncio.gather(
            *[self.workers[index % 2].append_in_time(self.name(path), data) for index, data in enumerate(sent)]
        )
        life.content += sorted((outcome.next_offset, data) for outcome, data in zip(outcomes, sent, strict=True))

    async def read(self, path: str, number: int) -> None:
        missing = self.missing(path)
        if missing is not None:
            await self.refused(missing, self.worker.streams.read(self.name(path), 0))
            return
        life = self.lives[path]
        for position in (life.offsets[number % len(life.offsets)], life.tail + number):
            assert await self.worker.read_all(self.name(path), position) == life.after(position)

    async def delete(self, path: str, _number: int) -> None:
        missing = self.missing(path)
        if missing is not None:
            await self.refused(missing, self.worker.streams.delete(None, self.name(path)))
            return
        await self.worker.streams.delete(None, self.name(path))
        life = self.lives[path]
        life.is_hidden = True
        ended: Lifecycle | None = life
        while ended is not None and ended.is_hidden and ended.forks == 0:
            self.lives = {where: one for where, one in self.lives.items() if one is not ended}
            ended = ended.origin
            if ended is not None:
                ended.forks -= 1

    async def restart(self, _path: str, number: int) -> None:
        """Replace a worker by a new one with empty caches."""
        gone = self.workers[number % 2]
        self.workers[number % 2] = await open_worker(self.url)
        await gone.close()
        self.worker, self.other = self.workers

    # Comparison

    async def check(self, path: str) -> None:
        missing = self.missing(path)
        if missing is not None:
            await self.refused(missing, self.other.streams.snapshot(self.name(path)))
            return
        life = self.lives[path]
        known = await self.other.streams.snapshot(self.name(path))
        assert known.record is not None
        assert (known.tail, known.record.is_closed) == (life.tail, life.rules.is_closed)
        chunks = await self.other.chunks(self.name(path))
        assert [payload for _, payloads in chunks for payload in payloads] == life.after(0)
        read = 0
        for next_offset, payloads in chunks[:-1]:
            read += len(payloads)
            assert next_offset == (life.content[read - 1][0] if payloads else next_offset)
        assert chunks[-1][0] == life.tail


async def play(steps: list[tuple[str, str, int, bool]], url: str, workers: list[Worker], tenant: str) -> None:
    player = Player(url, workers, tenant)
    await player.play("create", "a", 1, False)
    for step in steps:
        await player.play(*step)
    for path in PATHS:
        await player.check(path)
    assert sorted(await workers[0].streams.paths(tenant)) == sorted(
        path for path, life in player.lives.items() if not life.is_hidden
    )
    player.worker = workers[1]
    for path in PATHS:
        await player.delete(path, 0)
    assert player.lives == {}

    left = await workers[0].subjects(tenant)
    assert [one for one in left if not one.startswith("p.")] == [], "except for checkpoints that were in flight"


def test_streams_behave_like_their_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hypothesis is synchronous, so this test has its own event loop in its own thread."""
    monkeypatch.setattr(reading, "CHUNK_MESSAGES_MAX", 2)
    monkeypatch.setattr(appender, "_CHECKPOINT_EVERY", 4)
    server = Server(EmbeddedServerSettings(tmp_path)).start()
    try:
        with ThreadPoolExecutor(1) as apart:
            apart.submit(try_many, server.url).result()
    finally:
        server.stop()


def try_many(url: str) -> None:
    with asyncio.Runner() as runner:
        workers = [runner.run(open_worker(url)) for _ in range(2)]
        count = 0

        @long_runs(15)
        @given(STEPS)
        def try_it(steps: list[tuple[str, str, int, bool]]) -> None:
            nonlocal count
            count += 1
            runner.run(play(steps, url, workers, f"t{count}"))

        try:
            try_it()
        finally:
            for worker in workers:
                runner.run(worker.close())
