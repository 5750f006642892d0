import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.waiting import eventually

from postroad.jetstream.bucket import Bucket, Follower, Value
from postroad.jetstream.commit import Committers
from postroad.jetstream.connection import Connection
from postroad.jetstream.management import stream_info
from postroad.kernel.clock import now_ms
from postroad.kernel.errors import Conflict


@pytest.fixture
async def bucket(connection: Connection, committers: Committers, name: str) -> Bucket:
    made = Bucket(connection, name, committers)
    await made.ensure()
    return made


@asynccontextmanager
async def _followed(bucket: Bucket, after: int = 0) -> AsyncIterator[tuple[list[Value], Follower]]:
    """The changes that a follower receives, once it has loaded the present values."""
    changes: list[Value] = []
    follower = bucket.follower(changes.append, after=after)
    assert follower.staleness_seconds == float("inf")
    running = asyncio.ensure_future(follower.run())
    try:
        await eventually(lambda: follower.staleness_seconds < 5)
        yield changes, follower
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


# Writing


async def test_get_returns_the_value_and_its_revision(bucket: Bucket) -> None:
    assert await bucket.get("a.b") is None
    first = await bucket.put("a.b", b"one")
    assert await bucket.get("a.b") == Value("a.b", b"one", first)
    second = await bucket.put("a.b", b"two")
    assert second > first
    assert await bucket.get("a.b") == Value("a.b", b"two", second)
    assert await bucket.get("a") is None


async def test_an_empty_value_is_a_value(bucket: Bucket) -> None:
    revision = await bucket.put("a", b"")
    assert await bucket.get("a") == Value("a", b"", revision)
    with pytest.raises(Conflict):
        await bucket.create("a", b"again")


async def test_a_key_is_created_once(bucket: Bucket) -> None:
    revision = await bucket.create("a", b"first")
    with pytest.raises(Conflict):
        await bucket.create("a", b"second")
    assert await bucket.get("a") == Value("a", b"first", revision)


async def test_of_concurrent_creates_one_succeeds(bucket: Bucket) -> None:
    for state in ("never there", "deleted"):
        if state == "deleted":
            await bucket.delete("a")
        outcomes = await asyncio.gather(*[bucket.create("a", b"%d" % number) for number in range(30)], return_exceptions=True)
        winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, int)]
        assert len(winners) == 1, state
        assert all(isinstance(outcome, Conflict) for number, outcome in enumerate(outcomes) if number not in winners)
        found = await bucket.get("a")
        assert found is not None and found.value == b"%d" % winners[0]


async def test_an_update_needs_the_latest_revision(bucket: Bucket) -> None:
    first = await bucket.create("a", b"one")
    second = await bucket.update("a", b"two", first)
    for stale in (first, second + 1, 0):
        with pytest.raises(Conflict):
            await bucket.update("a", b"three", stale)
    assert await bucket.get("a") == Value("a", b"two", second)
    await bucket.put("b", b"other")
    assert await bucket.update("a", b"three", second) > second, "another key's change does not matter"


async def test_concurrent_compare_and_set_updates_lose_none(bucket: Bucket) -> None:
    await bucket.create("count", b"0")

    async def add_one() -> None:
        while True:
            seen = await bucket.get("count")
            assert seen is not None and seen.value is not None
            try:
                await bucket.update("count", b"%d" % (int(seen.value) + 1), seen.revision)
                return
            except Conflict:
                pass

    async with asyncio.timeout(30):
        await asyncio.gather(*[add_one() for _ in range(25)])
    found = await bucket.get("count")
    assert found is not None and found.value == b"25"


async def test_a_deleted_key_can_be_created_again(bucket: Bucket) -> None:
    await bucket.create("a", b"one")
    await bucket.delete("a")
    assert await bucket.get("a") is None
    revision = await bucket.create("a", b"two")
    assert await bucket.get("a") == Value("a", b"two", revision)


async def test_deleting_a_missing_key_succeeds(bucket: Bucket) -> None:
    await bucket.delete("a")
    await bucket.delete("a")
    assert await bucket.get("a") is None


async def test_a_delete_can_require_a_revision(bucket: Bucket) -> None:
    first = await bucket.create("a", b"one")
    second = await bucket.update("a", b"two", first)
    with pytest.raises(Conflict):
        await bucket.delete("a", first)
    assert await bucket.get("a") == Value("a", b"two", second)
    await bucket.delete("a", second)
    assert await bucket.get("a") is None


async def test_a_deleted_key_cannot_be_updated_by_its_old_revision(bucket: Bucket) -> None:
    revision = await bucket.create("a", b"one")
    await bucket.delete("a")
    with pytest.raises(Conflict):
        await bucket.update("a", b"two", revision)


async def test_a_bucket_keeps_its_configured_number_of_revisions(
    connection: Connection, committers: Committers, name: str
) -> None:
    for history, stored in ((1, 1), (3, 3)):
        bucket = Bucket(connection, f"{name}-{history}", committers)
        await bucket.ensure(history=history)
        for number in range(5):
            await bucket.put("a", b"%d" % number)
        info = await stream_info(connection, bucket.stream)
        assert info is not None and info.state.messages == stored


async def test_ensuring_a_bucket_again_keeps_its_values(bucket: Bucket) -> None:
    await bucket.put("a", b"one")
    await bucket.ensure()
    found = await bucket.get("a")
    assert found is not None and found.value == b"one"


# Expiry


async def test_a_key_with_a_ttl_expires_and_followers_are_notified(bucket: Bucket) -> None:
    async with _followed(bucket) as (changes, _):
        started = asyncio.get_running_loop().time()
        await bucket.create("short", b"1", ttl_seconds=1)
        await bucket.create("long", b"1", ttl_seconds=1000)
        assert await bucket.get("short") is not None
        await eventually(lambda: [change.key for change in changes if change.value is None] == ["short"])
        assert 0.9 <= asyncio.get_running_loop().time() - started < 3
        assert await bucket.get("short") is None
        assert await bucket.get("long") is not None
        revision = await bucket.create("short", b"2")
        assert await bucket.get("short") == Value("short", b"2", revision)
        await eventually(lambda: changes[-1] == Value("short", b"2", revision))


async def test_an_update_renews_the_ttl_of_a_key(bucket: Bucket) -> None:
    revision = await bucket.create("renewed", b"1", ttl_seconds=1)
    revision = await bucket.update("renewed", b"2", revision, ttl_seconds=1000)
    await bucket.create("witness", b"1", ttl_seconds=1)
    await eventually(lambda: _is_gone(bucket, "witness"))
    renewed = await bucket.get("renewed")
    assert renewed is not None and (renewed.value, renewed.revision) == (b"2", revision)


async def test_the_time_of_an_expiry_is_known(bucket: Bucket) -> None:
    before = now_ms()
    await bucket.put("short", b"1", ttl_seconds=100)
    await bucket.put("long", b"1")
    short, long = await bucket.get("short"), await bucket.get("long")
    assert short is not None and short.expires_at_ms is not None
    assert before - 1_000 <= short.expires_at_ms - 100_000 <= now_ms() + 1_000
    assert long is not None and long.expires_at_ms is None


async def _is_gone(bucket: Bucket, key: str) -> bool:
    return await bucket.get(key) is None


# Change notification


async def test_a_follower_receives_the_present_values_and_then_each_change(bucket: Bucket) -> None:
    first = await bucket.put("a", b"old")
    second = await bucket.put("b", b"old")
    async with _followed(bucket) as (changes, follower):
        assert changes == [Value("a", b"old", first), Value("b", b"old", second)]
        third = await bucket.put("a", b"new")
        fourth = await bucket.delete("b")
        await eventually(lambda: len(changes) == 4)
        assert changes[2:] == [Value("a", b"new", third), Value("b", None, fourth)]
        assert follower.revision == fourth


async def test_a_follower_can_start_after_a_revision(bucket: Bucket) -> None:
    await bucket.put("a", b"1")
    second = await bucket.put("b", b"2")
    third = await bucket.put("c", b"3")
    async with _followed(bucket, after=second) as (changes, _):
        assert changes == [Value("c", b"3", third)]
    async with _followed(bucket, after=third) as (changes, _):
        assert changes == []


async def test_a_running_follower_is_not_stale(bucket: Bucket) -> None:
    async with _followed(bucket) as (_, follower):
        seen = asyncio.get_running_loop().time()
        await eventually(lambda: asyncio.get_running_loop().time() - follower.staleness_seconds > seen + 0.1)


async def test_two_buckets_are_independent(connection: Connection, committers: Committers, bucket: Bucket, name: str) -> None:
    other = Bucket(connection, name + "-other", committers)
    await other.ensure()
    async with _followed(bucket) as (changes, _):
        await other.put("a", b"elsewhere")
        await bucket.put("a", b"here")
        await eventually(lambda: len(changes) > 0)
        assert [change.value for change in changes] == [b"here"]
