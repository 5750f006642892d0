"""Retention: the oldest appends are dropped by age, bytes and number; offsets stay valid, and those before the start are gone."""

import asyncio
import random
from typing import Any

import pytest

from postroad.api.streams import OffsetGone, ProducerFenced, StreamExists
from postroad.kernel.errors import Conflict, InvalidParameter
from postroad.streams.capability import StreamsCapability
from postroad.streams.offsets import NOW, START, offset_text
from postroad.streams.records import Retention
from postroad.streams.store import StreamName, StreamStore
from tests.gateway import Gateway, Tenant
from tests.streams.workers import Worker

TEXT = {"Content-Type": "text/plain"}


async def kept(worker: Worker, name: StreamName) -> list[bytes]:
    return list((await worker.streams.read(name, START)).payloads)


async def filled(worker: Worker, tenant: str, count: int, **limits: int) -> tuple[StreamName, list[int]]:
    name = StreamName(tenant, "a")
    await worker.create(name, retention=Retention(**limits))
    return name, [(await worker.append(name, b"%03d" % number)).next_offset for number in range(count)]


# Limits


@pytest.mark.parametrize("limits", [{"max_count": 3}, {"max_bytes": 9}, {"max_bytes": 11}, {"max_count": 3, "max_bytes": 100}])
async def test_the_newest_appends_are_kept(worker: Worker, other: Worker, name: str, limits: dict[str, int]) -> None:
    stream, offsets = await filled(worker, name, 10, **limits)
    assert await worker.streams.retention.enforce(name) == 7
    for one in (worker, other):
        assert await kept(one, stream) == [b"007", b"008", b"009"]
    assert await worker.streams.retention.enforce(name) == 0
    for number in range(10, 14):
        await other.append(stream, b"%03d" % number)
    assert await worker.streams.retention.enforce(name) == 4
    assert await kept(other, stream) == [b"011", b"012", b"013"]
    assert await worker.tail(stream) > offsets[-1]


async def test_old_appends_are_dropped(worker: Worker, name: str) -> None:
    stream, offsets = await filled(worker, name, 3, max_age_seconds=60)
    assert await worker.streams.retention.enforce(name) == 0
    worker.clock.ahead_ms = 61_000
    assert await worker.streams.retention.enforce(name) == 3
    assert await kept(worker, stream) == []
    assert await worker.tail(stream) == offsets[-1], "the end does not move back"
    result = await worker.streams.read(stream, offsets[-1])
    assert (result.payloads, result.next_offset, result.is_end) == ([], offsets[-1], True)
    after = (await worker.append(stream, b"new")).next_offset
    assert after > offsets[-1]
    assert await kept(worker, stream) == [b"new"]


async def test_the_newest_append_stays_if_it_is_larger_than_the_limit(worker: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream, retention=Retention(max_bytes=10))
    for _ in range(3):
        await worker.append(stream, b"x" * 50)
    assert await worker.streams.retention.enforce(name) == 2
    assert await kept(worker, stream) == [b"x" * 50]


async def test_random_appends_are_trimmed_like_a_list(worker: Worker, name: str) -> None:
    chosen = random.Random(7)
    stream = StreamName(name, "a")
    await worker.create(stream, retention=Retention(max_bytes=200, max_count=12))
    model: list[bytes] = []
    for _ in range(8):
        some = [bytes([chosen.randrange(97, 123)]) * chosen.randrange(1, 60) for _ in range(chosen.randrange(0, 25))]
        for data in some:
            await worker.append(stream, data)
        model = (model + some)[-12:]
        while len(model) > 1 and sum(map(len, model)) > 200:
            del model[0]
        await worker.streams.retention.enforce(name)
        assert await kept(worker, stream) == model


async def test_a_stream_without_limits_is_not_trimmed(worker: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream, b"x")
    worker.clock.ahead_ms = 10**12
    assert await worker.streams.retention.enforce(name) == 0
    assert await kept(worker, stream) == [b"x"]


# Offsets


async def test_offsets_stay_valid_and_those_before_the_start_are_gone(worker: Worker, name: str) -> None:
    other = StreamName(name, "other")
    await worker.create(other)
    stream = StreamName(name, "a")
    await worker.create(stream, retention=Retention(max_count=2))
    offsets = []
    for number in range(5):
        offsets.append((await worker.append(stream, b"%d" % number)).next_offset)
        await worker.append(other, b"between")
    await worker.streams.retention.enforce(name)
    for offset in (0, *offsets[:2]):
        with pytest.raises(OffsetGone) as gone:
            await worker.streams.read(stream, offset)
        assert dict(gone.value.headers) == {"Stream-Start-Offset": offset_text(offsets[2])}
    assert (await worker.streams.read(stream, offsets[2])).payloads == [b"3", b"4"], "nothing after it was dropped"
    assert (await worker.streams.read(stream, offsets[3])).payloads == [b"4"]
    assert (await worker.streams.read(stream, NOW)).next_offset == offsets[4]


async def test_an_interrupted_trim_is_completed(
    worker: Worker, other: Worker, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, offsets = await filled(worker, name, 5, max_count=2)

    async def dies(*_: object) -> int:
        raise Conflict("died")

    with monkeypatch.context() as patched:
        patched.setattr(StreamStore, "purge_subject", dies)
        assert await worker.streams.retention.enforce(name) == 0
    assert await kept(other, stream) == [b"003", b"004"], "what is not removed yet is not readable"
    with pytest.raises(OffsetGone):
        await other.streams.read(stream, offsets[0])
    assert await other.streams.retention.enforce(name) == 3


async def test_a_read_during_a_trim_has_no_gap(worker: Worker, other: Worker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream, offsets = await filled(worker, name, 10, max_count=3)
    record = StreamStore.record
    trimmed = False

    async def record_and_trim(self: StreamStore, wanted: StreamName) -> Any:
        nonlocal trimmed
        found = await record(self, wanted)
        if not trimmed:
            trimmed = True
            assert await other.streams.retention.enforce(name) == 7
        return found

    monkeypatch.setattr(StreamStore, "record", record_and_trim)
    with pytest.raises(OffsetGone):
        await worker.streams.read(stream, offsets[2])
    trimmed = True
    assert await kept(worker, stream) == [b"007", b"008", b"009"]


# Other features of streams


async def test_producers_survive_a_trim(worker: Worker, other: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream, retention=Retention(max_count=1))
    for number in range(4):
        await worker.append(stream, b"%d" % number, ("p", 1, number), seq=f"{number}")
    await worker.streams.retention.enforce(name)
    repeated = await other.append(stream, b"1", ("p", 1, 1))
    assert repeated.is_duplicate
    with pytest.raises(ProducerFenced):
        await other.append(stream, b"x", ("p", 0, 9))
    assert not (await other.append(stream, b"4", ("p", 1, 4), seq="4")).is_duplicate
    assert await kept(worker, stream) == [b"3", b"4"]


async def test_appends_continue_while_a_stream_is_trimmed(worker: Worker, other: Worker, name: str) -> None:
    stream, _ = await filled(worker, name, 1, max_count=5)

    async def trim() -> None:
        for _ in range(10):
            await other.streams.retention.enforce(name)

    async def append() -> None:
        for number in range(60):
            await worker.append_in_time(stream, b"%d" % number)

    await asyncio.gather(trim(), append())
    await other.streams.retention.enforce(name)
    assert await kept(worker, stream) == [b"%d" % number for number in range(55, 60)]


async def test_trimming_is_no_use_of_a_stream(worker: Worker, name: str) -> None:
    stream = StreamName(name, "a")
    await worker.create(stream, ttl_seconds=100, retention=Retention(max_count=1))
    for number in range(3):
        await worker.append(stream, b"%d" % number)
    before = (await worker.streams.snapshot(stream)).used_at_ms
    await worker.streams.retention.enforce(name)
    assert (await worker.streams.snapshot(stream)).used_at_ms == before
    await worker.append(stream, None, closes=True)
    assert (await worker.streams.snapshot(stream)).used_at_ms > before, "closing is"


async def test_a_source_of_forks_is_trimmed_when_they_are_gone(worker: Worker, name: str) -> None:
    stream, offsets = await filled(worker, name, 4, max_count=2)
    assert await worker.streams.retention.enforce(name) == 2
    fork = StreamName(name, "fork")
    with pytest.raises(InvalidParameter):
        await worker.fork(fork, stream, offsets[0])
    await worker.fork(fork, stream)
    for number in range(4, 8):
        await worker.append(stream, b"%03d" % number)
    assert await worker.streams.retention.enforce(name) == 0
    assert await kept(worker, fork) == [b"002", b"003"]
    with pytest.raises(OffsetGone):
        await worker.streams.read(fork, 0)
    await worker.streams.delete(None, fork)
    assert await worker.streams.retention.enforce(name) == 4
    assert await kept(worker, stream) == [b"006", b"007"]


async def test_a_recreated_stream_has_its_own_limits(worker: Worker, name: str) -> None:
    stream, _ = await filled(worker, name, 4, max_count=2)
    await worker.streams.retention.enforce(name)
    await worker.streams.delete(None, stream)
    await worker.create(stream)
    for number in range(5):
        await worker.append(stream, b"%d" % number)
    assert await worker.streams.retention.enforce(name) == 0
    assert len(await kept(worker, stream)) == 5
    with pytest.raises(StreamExists):
        await worker.create(stream, retention=Retention(max_count=2))


# HTTP


async def test_retention_over_http(gateway: Gateway, tenant: Tenant) -> None:
    path = "/v1/stream/log"
    limits = {"Stream-Max-Age": "3600", "Stream-Max-Bytes": "1000", "Stream-Max-Count": "2"}
    assert (await tenant.client.call("PUT", path, headers={**TEXT, **limits})).status == 201
    assert (await tenant.client.call("PUT", path, headers={**TEXT, **limits})).status == 200
    (await tenant.client.call("PUT", path, headers={**TEXT, "Stream-Max-Count": "3"})).problem(409, "stream-exists")
    offsets = [
        (await tenant.client.post(path, data=b"%d" % number, headers=TEXT)).headers["stream-next-offset"] for number in range(4)
    ]
    assert "stream-start-offset" not in (await tenant.client.call("HEAD", path)).headers
    await gateway.node.platform.use(StreamsCapability).service.retention.enforce(tenant.id)
    head = (await tenant.client.call("HEAD", path)).headers
    assert {name: head[name.lower()] for name in limits} == limits
    assert (head["stream-start-offset"], head["stream-next-offset"]) == (offsets[1], offsets[3])
    for query in ("", "?offset=-1", f"?offset={offsets[1]}"):
        assert (await tenant.client.get(path + query)).body == b"23"
    for query in (f"?offset={offsets[0]}", f"?offset={offset_text(0)}"):
        for live in ("", "&live=long-poll", "&live=sse"):
            answer = await tenant.client.get(path + query + live)
            assert offsets[1] in answer.problem(410, "offset-gone")["detail"]
            assert answer.headers["stream-start-offset"] == offsets[1]
    async with tenant.client.events(f"{path}?offset=-1&live=sse") as reader:
        event = await reader.next()
        assert event is not None and event.data == "23"


@pytest.mark.parametrize("header", ["Stream-Max-Age", "Stream-Max-Bytes", "Stream-Max-Count"])
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "01", "many", "1" * 17])
async def test_an_invalid_limit_is_refused(tenant: Tenant, header: str, value: str) -> None:
    answer = await tenant.client.call("PUT", "/v1/stream/a", headers={header: value})
    assert header in answer.problem(400, "invalid-parameter")["detail"]


async def test_a_fork_has_no_limits_of_its_own(tenant: Tenant) -> None:
    await tenant.client.call("PUT", "/v1/stream/a", headers=TEXT)
    headers = {"Stream-Forked-From": "/v1/stream/a", "Stream-Max-Count": "1"}
    (await tenant.client.call("PUT", "/v1/stream/b", headers=headers)).problem(400, "invalid-parameter")
