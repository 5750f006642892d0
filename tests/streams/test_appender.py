"""Appends through two workers at once: no append is lost or repeated, and none is decided from outdated state."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest

from postroad.api.streams import ContentTypeMismatch, ProducerFenced, ProducerGap, SequenceConflict, StreamClosed, StreamNotFound
from postroad.jetstream import stream_reader
from postroad.jetstream.commit import Committer, PendingMessage, PublishAck
from postroad.jetstream.connection import Connection
from postroad.jetstream.submitted_write import OnOutcome
from postroad.kernel.clock import now_ms
from postroad.kernel.errors import Conflict, EngineUnavailable, PostroadError, TooLarge
from postroad.streams import appender
from postroad.streams.rules import AppendOutcome, AppendRequest, ProducerClaim, StreamSnapshot
from postroad.streams.store import StreamName, StreamStore
from tests.streams.workers import JSON, TEXT, OpenWorker, Worker
from tests.waiting import eventually

# Two workers at once


async def produce(name: StreamName, workers: tuple[Worker, Worker], producer: str, count: int) -> None:
    """Send each append through both workers at once; one of them reports a duplicate."""
    for number in range(count):
        data, said = f"{producer} {number}".encode(), (producer, 0, number)
        outcomes = await asyncio.gather(*[one.append_in_time(name, data, said) for one in workers])
        assert sorted(outcome.is_duplicate for outcome in outcomes) == [False, True]
        assert all(outcome.claim == ProducerClaim(producer, 0, number) for outcome in outcomes)


async def write_unguarded(name: StreamName, worker: Worker, writer: str, count: int) -> None:
    for number in range(0, count, 5):
        await asyncio.gather(*[worker.append_in_time(name, f"{writer} {one}".encode()) for one in range(number, number + 5)])


async def write_with_seq(
    name: StreamName, worker: Worker, turns: "itertools.count[int]", accepted: list[str], count: int
) -> None:
    """Two writers share a counter without waiting for each other; a late one is refused."""
    for _ in range(count):
        seq = f"{next(turns):06d}"
        try:
            await worker.append_in_time(name, f"turn {seq}".encode(), seq=seq)
            accepted.append(seq)
        except SequenceConflict:
            continue


async def test_concurrent_writers_of_all_kinds_lose_and_repeat_nothing(worker: Worker, other: Worker, name: str) -> None:
    stream = StreamName(name, "shared")
    await worker.create(stream)
    accepted: list[str] = []
    turns = itertools.count()
    async with asyncio.TaskGroup() as writers:
        for producer in ("p1", "p2", "p3"):
            writers.create_task(produce(stream, (worker, other), producer, 12))
        for number, one in enumerate((worker, other)):
            writers.create_task(write_unguarded(stream, one, f"plain{number}", 60))
            writers.create_task(write_with_seq(stream, one, turns, accepted, 15))
    content = [payload.decode().split() for payload in await worker.read_all(stream)]
    for producer in ("p1", "p2", "p3"):
        assert [int(number) for who, number in content if who == producer] == list(range(12))
    for writer in ("plain0", "plain1"):
        assert sorted(int(number) for who, number in content if who == writer) == list(range(60))
    in_turn = [seq for who, seq in content if who == "turn"]
    assert in_turn == sorted(accepted), "all accepted appends in ascending order, and no others"
    assert accepted
    assert len(content) == 3 * 12 + 2 * 60 + len(accepted)


async def test_an_offset_in_a_response_is_the_end_of_the_data(worker: Worker, other: Worker, name: str) -> None:
    stream = StreamName(name, "shared")
    await worker.create(stream)

    async def write(one: Worker, number: int) -> tuple[int, bytes]:
        data = f"{number}".encode()
        claim = (f"p{number}", 0, 0) if number % 3 == 0 else None
        return (await one.append_in_time(stream, data, claim)).next_offset, data

    written = await asyncio.gather(*[write(one, number) for number, one in enumerate([worker, other] * 30)])
    in_order = [data for _, data in sorted(written)]
    assert await worker.read_all(stream) == in_order
    for position, (offset, _) in enumerate(sorted(written)):
        if position % 10 == 0:
            assert await other.read_all(stream, offset) == in_order[position + 1 :]


async def test_another_worker_detects_a_duplicate(worker: Worker, other: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)
    for number in range(3):
        await worker.append(stream, b"x", ("p", 1, number))
    assert await other.append(stream, b"other words", ("p", 1, 1)) == AppendOutcome(
        await worker.tail(stream), is_closed=False, is_duplicate=True, claim=ProducerClaim("p", 1, 2)
    )
    await other.append(stream, b"x", ("p", 1, 3))
    assert (await worker.append(stream, b"x", ("p", 1, 3))).is_duplicate
    with pytest.raises(ProducerGap) as gap:
        await worker.append(stream, b"x", ("p", 1, 5))
    assert dict(gap.value.headers) == {"Producer-Expected-Seq": "4", "Producer-Received-Seq": "5"}
    await other.append(stream, b"x", ("p", 2, 0))
    with pytest.raises(ProducerFenced):
        await worker.append(stream, b"x", ("p", 1, 4))
    assert await worker.read_all(stream) == [b"x"] * 5


@pytest.mark.parametrize("is_gap", [False, True])
async def test_a_gap_is_not_reported_from_an_outdated_snapshot(
    worker: Worker, other: Worker, name: str, monkeypatch: pytest.MonkeyPatch, is_gap: bool
) -> None:
    """In a partition, a leader that was replaced answers reads as of the time when it was cut off."""
    stream = StreamName(name, "a")
    await worker.create(stream)
    await worker.append(stream, b"0", ("p", 0, 0))
    outdated = [await other.store.snapshot(stream, with_producers=True)]
    await worker.append(stream, b"1", ("p", 0, 1))
    snapshot = StreamStore.snapshot

    async def first_outdated(self: StreamStore, name: StreamName, *, with_producers: bool = False) -> StreamSnapshot:
        return outdated.pop() if outdated else await snapshot(self, name, with_producers=with_producers)

    monkeypatch.setattr(StreamStore, "snapshot", first_outdated)
    monkeypatch.setattr(StreamStore, "may_lag", True)
    if is_gap:
        with pytest.raises(ProducerGap) as gap:
            await other.append(stream, b"3", ("p", 0, 3))
        assert ("Producer-Expected-Seq", "2") in gap.value.headers
    else:
        await other.append(stream, b"2", ("p", 0, 2))
    assert not outdated
    monkeypatch.undo()
    assert (await worker.append(stream, b"2", ("p", 0, 2))).is_duplicate is not is_gap
    assert await worker.read_all(stream) == [b"0", b"1", b"2"]


async def test_stream_seq_is_checked_across_workers_and_unguarded_appends(worker: Worker, other: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)
    await worker.append(stream, b"1", seq="b")
    await other.append(stream, b"plain")
    with pytest.raises(SequenceConflict):
        await other.append(stream, b"2", seq="b")
    await other.append(stream, b"3", seq="c")
    for late in ("bb", "c"):
        with pytest.raises(SequenceConflict):
            await worker.append(stream, b"4", seq=late)
    assert await worker.read_all(stream) == [b"1", b"plain", b"3"]


# Concurrent changes by another worker


Append = Callable[[Worker, StreamName], Awaitable[AppendOutcome]]
KINDS: dict[str, Append] = {
    "plain": lambda worker, name: worker.append(name, b"late"),
    "producer": lambda worker, name: worker.append(name, b"late", ("p", 0, 1)),
    "seq": lambda worker, name: worker.append(name, b"late", seq="b"),
    "closing": lambda worker, name: worker.append(name, b"late", closes=True),
}
every_kind = pytest.mark.parametrize("kind", KINDS)


async def fill_cache(worker: Worker, stream: StreamName, kind: str) -> None:
    """Append, so that the worker has a cached snapshot for this kind of append."""
    await worker.create(stream)
    if kind == "plain":
        await worker.append(stream, b"early")
    else:
        await worker.append(stream, b"early", ("p", 0, 0), seq="a")


@every_kind
async def test_an_append_to_a_stream_that_another_worker_closed_is_refused(
    worker: Worker, other: Worker, name: str, kind: str
) -> None:
    stream = StreamName(name, "a")
    await fill_cache(worker, stream, kind)
    end = (await other.append(stream, b"the end", closes=True)).next_offset
    with pytest.raises(StreamClosed) as refusal:
        await KINDS[kind](worker, stream)
    assert dict(refusal.value.headers) == {"Stream-Closed": "true", "Stream-Next-Offset": f"{0:016d}_{end:016d}"}
    assert await worker.read_all(stream) == [b"early", b"the end"]


@every_kind
async def test_an_append_to_a_stream_that_another_worker_deleted_is_refused(
    worker: Worker, other: Worker, name: str, kind: str
) -> None:
    stream = StreamName(name, "a")
    await fill_cache(worker, stream, kind)
    await other.streams.delete(None, stream)
    with pytest.raises(StreamNotFound):
        await KINDS[kind](worker, stream)
    assert await worker.subjects(name) == []


@every_kind
async def test_an_append_for_a_deleted_stream_is_not_written_to_its_successor(
    worker: Worker, other: Worker, name: str, kind: str
) -> None:
    """The new stream has the same name and another content type."""
    stream = StreamName(name, "a")
    await fill_cache(worker, stream, kind)
    await other.streams.delete(None, stream)
    await other.create(stream, b"[1]", JSON)
    with pytest.raises(ContentTypeMismatch):
        await KINDS[kind](worker, stream)
    assert await worker.read_all(stream) == [b"1"]


async def test_a_recreated_stream_has_no_producers_and_no_seq(worker: Worker, other: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await fill_cache(worker, stream, "producer")
    await other.streams.delete(None, stream)
    await other.create(stream, b"new")
    with pytest.raises(ProducerGap) as gap:
        await worker.append(stream, b"x", ("p", 0, 1))
    assert dict(gap.value.headers)["Producer-Expected-Seq"] == "0"
    assert not (await worker.append(stream, b"x", ("p", 0, 0), seq="0")).is_duplicate
    assert await other.read_all(stream) == [b"new", b"x"]


async def test_an_append_during_delete_and_create_is_in_one_incarnation_or_none(worker: Worker, other: Worker, name: str) -> None:
    """One worker appends the number of the current incarnation; the other deletes and creates the stream."""
    stream = StreamName(name, "a")
    life = 0
    answered: set[tuple[int, int]] = set()
    is_over = False

    async def write(writer: int) -> None:
        for number in itertools.count():
            if is_over:
                return
            believed = life
            claim = (f"w{writer}-{number}", 0, 0) if writer == 0 else None
            try:
                await worker.append(stream, f"{believed} {writer}".encode(), claim, content_type=f"text/life-{believed}")
                answered.add((believed, writer))
            except (StreamNotFound, ContentTypeMismatch, StreamClosed):
                await asyncio.sleep(0)

    def has_appends() -> bool:
        return {(life, 0), (life, 1)} <= answered

    async with asyncio.TaskGroup() as writers:
        await other.create(stream, content_type="text/life-0")
        for writer in range(3):
            writers.create_task(write(writer))
        for following in range(1, 8):
            await eventually(has_appends)
            content = await other.read_all(stream)
            assert {payload.split()[0] for payload in content} == {str(life).encode()}, "of this incarnation and no other"
            await other.streams.delete(None, stream)
            life = following
            await other.create(stream, content_type=f"text/life-{following}")
        await eventually(has_appends)
        is_over = True
    assert {payload.split()[0] for payload in await other.read_all(stream)} == {str(life).encode()}


async def test_a_cached_snapshot_of_a_deleted_tenant_is_not_used_for_a_new_one(worker: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)
    await worker.append(stream, b"old")
    await worker.streams.delete_all(name)
    await worker.create(stream, b"", JSON)
    with pytest.raises(ContentTypeMismatch):
        await worker.append(stream, b"not JSON")


# Checkpoints


async def test_producers_are_restored_from_a_checkpoint_and_later_appends(
    new_worker: OpenWorker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appender, "_CHECKPOINT_EVERY", 4)
    first, second = await new_worker(), await new_worker()
    stream = StreamName(name, "a")
    await first.create(stream)
    for number in range(10):
        await first.append(stream, b"x", ("p", 0, number), seq=f"{number}")

    async def is_saved() -> bool:
        return await stream_reader.last(first.connection, stream.store, stream.checkpoint) is not None

    await eventually(is_saved)
    for _ in range(5):
        await second.append(stream, b"plain")
    await second.append(stream, b"x", ("q", 0, 0))
    for late in (await new_worker(), first):
        assert (await late.append(stream, b"x", ("p", 0, 9))).is_duplicate
        assert (await late.append(stream, b"x", ("q", 0, 0))).is_duplicate
        with pytest.raises(SequenceConflict):
            await late.append(stream, b"x", seq="9")
        with pytest.raises(ProducerGap):
            await late.append(stream, b"x", ("p", 0, 11))
    third = await new_worker()
    assert not (await third.append(stream, b"x", ("p", 0, 10))).is_duplicate
    assert await first.read_all(stream) == [*[b"x"] * 10, *[b"plain"] * 5, b"x", b"x"]


async def test_checkpoints_under_load_change_nothing(new_worker: OpenWorker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """New workers join while others write, and each of them detects earlier appends."""
    monkeypatch.setattr(appender, "_CHECKPOINT_EVERY", 3)
    stream = StreamName(name, "a")
    await (await new_worker()).create(stream)
    for generation in range(5):
        workers = (await new_worker(), await new_worker())
        async with asyncio.TaskGroup() as writers:
            for producer in range(3):
                claims = [(f"p{producer}", 0, generation * 8 + number) for number in range(8)]
                writers.create_task(produce_all(stream, workers[producer % 2], claims))
            writers.create_task(write_unguarded(stream, workers[0], f"plain{generation}", 20))
    content = [payload.decode().split() for payload in await (await new_worker()).read_all(stream)]
    for producer in range(3):
        assert [int(number) for who, number in content if who == f"p{producer}"] == list(range(40))
    assert len(content) == 3 * 40 + 5 * 20


async def produce_all(stream: StreamName, worker: Worker, claims: list[tuple[str, int, int]]) -> None:
    """Send all at once, in order, so that they share a few batches."""
    sent = [
        worker.append_in_time(stream, f"{producer} {number}".encode(), (producer, 0, number)) for producer, _, number in claims
    ]
    assert not any(outcome.is_duplicate for outcome in await asyncio.gather(*sent))
    last = claims[-1]
    assert (await worker.append_in_time(stream, b"never", last)).is_duplicate


# One worker, many requests at once


async def test_concurrent_requests_are_decided_in_their_order(worker: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)
    requests: list[tuple[AppendRequest, object]] = [
        (AppendRequest(b"0", TEXT, ProducerClaim("p", 0, 0)), False),
        (AppendRequest(b"0", TEXT, ProducerClaim("p", 0, 0)), True),
        (AppendRequest(b"1", TEXT), False),
        (AppendRequest(b"2", TEXT, ProducerClaim("p", 0, 2)), ProducerGap),
        (AppendRequest(b"2", TEXT, ProducerClaim("p", 0, 1), seq="b"), False),
        (AppendRequest(b"3", TEXT, seq="a"), SequenceConflict),
        (AppendRequest(b"3", JSON), ContentTypeMismatch),
        (AppendRequest(b"3", TEXT, ProducerClaim("p", 1, 0), closes=True), False),
        (AppendRequest(b"4", TEXT), StreamClosed),
        (AppendRequest(b"3", TEXT, ProducerClaim("p", 1, 0), closes=True), True),
        (AppendRequest(b"5", TEXT, ProducerClaim("p", 1, 1)), StreamClosed),
        (AppendRequest(None, None, closes=True), True),
    ]
    for _ in range(2):  # repeated requests have the same outcome
        found = await asyncio.gather(
            *[worker.streams.append(None, stream, request) for request, _ in requests], return_exceptions=True
        )
        for (request, expected), outcome in zip(requests, found, strict=True):
            if isinstance(expected, bool):
                assert isinstance(outcome, AppendOutcome), (request, outcome)
                assert outcome.is_duplicate is expected
            else:
                assert type(outcome) is expected, request
        content = [payload for _, payload in await worker.chunks(stream)]
        assert content == [[b"0", b"1", b"2", b"3"]]
        await worker.streams.delete(None, stream)
        await worker.create(stream)


async def test_a_thousand_concurrent_appends_are_stored_in_their_order(worker: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)
    outcomes = await asyncio.gather(*[worker.append(stream, b"%d " % number) for number in range(1000)])
    offsets = [outcome.next_offset for outcome in outcomes]
    assert offsets == sorted(set(offsets))
    assert b"".join(await worker.read_all(stream)).split() == [b"%d" % number for number in range(1000)]


async def test_writers_that_append_all_the_time_leave_the_batches(
    worker: Worker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first appends share a batch, as their stream must be read. Later ones need none, although others always wait."""
    stream = StreamName(name, "busy")
    await worker.create(stream)
    batches: list[int] = []
    append_together = Committer.append_together

    async def counted(self: Committer, messages: Sequence[PendingMessage], *, uses_reserve: bool = False) -> Sequence[PublishAck]:
        batches.append(len(messages))
        return await append_together(self, messages, uses_reserve=uses_reserve)

    monkeypatch.setattr(Committer, "append_together", counted)

    async def write(writer: int) -> None:
        for number in range(20):
            await worker.append_in_time(stream, f"{writer} {number}".encode())

    first = [asyncio.create_task(write(writer)) for writer in range(16)]
    await eventually(lambda: batches)
    others = [asyncio.create_task(write(writer)) for writer in range(16, 32)]  # they wait for the batch that is being written
    await asyncio.gather(*first, *others)
    found = [payload.decode() for payload in await worker.read_all(stream)]
    assert sorted(found) == sorted(f"{writer} {number}" for writer in range(32) for number in range(20))
    for writer in range(32):
        of_writer = [int(one.split()[1]) for one in found if one.split()[0] == str(writer)]
        assert of_writer == list(range(20)), "the appends of a writer that waits for each are in order"
    assert sum(batches) <= 2 * 32


def report(on_outcome: OnOutcome, done: "asyncio.Future[Sequence[PublishAck]]") -> None:
    problem = done.exception()
    on_outcome(problem if isinstance(problem, Exception) else done.result())


def with_callback(
    submit: "Callable[[Sequence[PendingMessage]], asyncio.Future[Sequence[PublishAck]]]",
) -> Callable[[Sequence[PendingMessage], OnOutcome], None]:
    return lambda messages, on_outcome: submit(messages).add_done_callback(partial(report, on_outcome))


@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("kind", ["plain", "guarded"])
async def test_an_append_that_a_replaced_leader_rejects_is_not_stored_twice(
    worker: Worker, name: str, monkeypatch: pytest.MonkeyPatch, kind: str, count: int
) -> None:
    """Its successor has stored the same message."""
    stream = StreamName(name, "s")
    await fill_cache(worker, stream, kind)
    before = await worker.read_all(stream)
    submit, rejected = Committer.submit, list[Sequence[PendingMessage]]()

    def submit_twice(
        self: Committer, messages: Sequence[PendingMessage], **options: bool
    ) -> "asyncio.Future[Sequence[PublishAck]]":
        if rejected or not any(b"doubtful" in message.payload for message in messages):
            return submit(self, messages, **options)
        rejected.append(messages)
        return asyncio.ensure_future(stored_and_rejected(submit(self, messages, **options)))

    async def stored_and_rejected(stored: "asyncio.Future[Sequence[PublishAck]]") -> Sequence[PublishAck]:
        await stored
        raise Conflict("wrong last sequence")

    def submit_callback(self: Committer, messages: Sequence[PendingMessage], on_outcome: OnOutcome) -> None:
        submit_twice(self, messages).add_done_callback(partial(report, on_outcome))

    monkeypatch.setattr(Committer, "submit", submit_twice)
    monkeypatch.setattr(Committer, "submit_callback", submit_callback)
    data = [f"doubtful {number}".encode() for number in range(count)]
    outcomes = await asyncio.gather(*[worker.append_in_time(stream, one) for one in data])
    assert rejected
    assert await worker.read_all(stream) == [*before, *data]
    assert len({outcome.next_offset for outcome in outcomes}) == count


async def test_a_cancelled_append_does_not_cancel_others(worker: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)
    short_deadline = asyncio.create_task(worker.append(stream, b"1"))
    patient = asyncio.create_task(worker.append(stream, b"2"))
    await asyncio.sleep(0)
    short_deadline.cancel()
    await patient
    assert (await worker.read_all(stream))[-1] == b"2"
    assert (await worker.append(stream, b"3")).next_offset == await worker.tail(stream)


async def test_an_append_that_is_too_large_fails_alone(worker: Worker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream)
    monkeypatch.setattr(Connection, "max_payload", property(lambda _connection: 8192))
    sent = [worker.append(stream, data) for data in (b"small", b"x" * 5000, b"small too")]
    outcomes = await asyncio.gather(*sent, return_exceptions=True)
    assert [type(one) for one in outcomes] == [AppendOutcome, TooLarge, AppendOutcome]


async def test_an_appender_continues_after_an_error(worker: Worker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting callers get the error, and the next request is decided from a fresh snapshot."""
    stream = StreamName(name, "a")
    await worker.create(stream)
    await worker.append(stream, b"1", ("p", 0, 0))
    committer = worker.store.committer(stream)
    with monkeypatch.context() as broken:

        async def fail(_messages: object) -> None:
            raise EngineUnavailable("not now")

        broken.setattr(committer, "append_together", fail)
        failed = await asyncio.gather(*[worker.append(stream, b"2", ("p", 0, 1)) for _ in range(3)], return_exceptions=True)
        assert [type(one) for one in failed] == [EngineUnavailable] * 3
    assert not (await worker.append(stream, b"2", ("p", 0, 1))).is_duplicate
    assert await worker.read_all(stream) == [b"1", b"2"]


async def test_a_conflict_of_an_unguarded_append_does_not_block_a_guarded_one(
    worker: Worker, other: Worker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record changes while an unguarded append is in flight; the conflict arrives during the append of a producer."""
    stream = StreamName(name, "a")
    await worker.create(stream)
    await worker.append(stream, b"1")
    committer = worker.store.committer(stream)
    really = committer.submit
    late: asyncio.Future[Sequence[PublishAck]] = asyncio.get_running_loop().create_future()

    def submit(messages: Sequence[PendingMessage], *, uses_reserve: bool = False) -> "asyncio.Future[Sequence[PublishAck]]":
        if messages[0].payload == b"plain" and not late.done():
            return late
        if messages[-1].payload == b"guarded" and not late.done():
            late.set_exception(Conflict("the record is another by now"))
        return really(messages, uses_reserve=uses_reserve)

    monkeypatch.setattr(committer, "submit", submit)
    monkeypatch.setattr(committer, "submit_callback", with_callback(submit))
    plain = asyncio.create_task(worker.append(stream, b"plain"))
    await asyncio.sleep(0)
    await other.fork(StreamName(name, "fork"), stream)
    async with asyncio.timeout(30):
        assert not (await worker.append(stream, b"guarded", ("p", 0, 0))).is_duplicate
        await plain
    assert sorted(await worker.read_all(stream)) == [b"1", b"guarded", b"plain"]


async def test_appends_that_share_a_batch_with_the_delete_are_refused(
    worker: Worker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = StreamName(name, "a")
    await fill_cache(worker, stream, "producer")
    committer = worker.store.committer(stream)
    really = committer.submit
    held: list[tuple[Sequence[PendingMessage], asyncio.Future[Sequence[PublishAck]]]] = []

    def submit(messages: Sequence[PendingMessage], *, uses_reserve: bool = False) -> "asyncio.Future[Sequence[PublishAck]]":
        """Hold the appends back until right after the delete."""
        if messages[-1].payload == b"late" and not held:
            held.append((messages, asyncio.get_running_loop().create_future()))
            return held[0][1]
        stored = really(messages, uses_reserve=uses_reserve)
        if held and not held[0][1].done():
            late = really(held[0][0])
            late.add_done_callback(lambda done: copy_result(done, held[0][1]))
        return stored

    monkeypatch.setattr(committer, "submit", submit)
    monkeypatch.setattr(committer, "submit_callback", with_callback(submit))
    late = [asyncio.create_task(worker.append(stream, b"late", ("p", 0, number))) for number in (1, 2)]
    await eventually(lambda: held)
    await worker.streams.delete(None, stream)
    for one in late:
        with pytest.raises(StreamNotFound):
            await one
    with pytest.raises(StreamNotFound):
        await worker.append(stream, b"later", ("p", 0, 3))


def copy_result(done: "asyncio.Future[Sequence[PublishAck]]", to: "asyncio.Future[Sequence[PublishAck]]") -> None:
    problem = done.exception()
    if problem is None:
        to.set_result(done.result())
    else:
        to.set_exception(problem)


# Expiry


async def test_an_append_is_refused_as_expired_only_by_a_fresh_snapshot(worker: Worker, other: Worker, name: str) -> None:
    """The snapshot of this worker is older than the TTL; the other worker has used the stream since."""
    stream = StreamName(name, "a")
    await worker.create(stream, ttl_seconds=10)
    await worker.append(stream, b"1")
    last_heard = now_ms()
    await eventually(lambda: now_ms() >= last_heard + 300)
    await other.append(stream, b"2")
    worker.clock.ahead_ms = last_heard + 10_100 - now_ms()
    await worker.append(stream, b"3")
    assert await other.read_all(stream) == [b"1", b"2", b"3"]


async def test_an_append_to_an_expired_stream_is_refused(worker: Worker, other: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream, ttl_seconds=10)
    await worker.append(stream, b"1", ("p", 0, 0))
    worker.clock.ahead_ms = 10_500
    for claim in (None, ("p", 0, 1), ("p", 0, 0)):
        with pytest.raises(StreamNotFound, match="expired"):
            await worker.append(stream, b"2", claim)
    assert await other.read_all(stream) == [b"1"]


async def test_refusals_have_their_error_codes(worker: Worker, name: str) -> None:
    with pytest.raises(PostroadError) as refusal:
        await worker.append(StreamName(name, "none"), b"x")
    assert (refusal.value.code, refusal.value.status) == ("stream-not-found", 404)
