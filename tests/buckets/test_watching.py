"""Watches of buckets: current values, changes, resuming."""

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

from postroad.buckets import watching
from postroad.buckets.capability import BucketsCapability
from postroad.jetstream import shared_tail
from postroad.jetstream.shared_tail import SharedTail
from tests.buckets.test_values import make_bucket, put
from tests.gateway import EventReader, Gateway, ShiftedClock, Tenant


async def take_until_ready(reader: EventReader) -> list[tuple[str, Any]]:
    """The events up to `ready`, which is left out."""
    found: list[tuple[str, Any]] = []
    while True:
        [event] = await reader.take(1, 20)
        if event.event == "ready":
            return found
        found.append((event.event, json.loads(event.data)))


async def changes_of(reader: EventReader, count: int) -> list[tuple[str, str, int]]:
    events = await reader.take(count, 20)
    return [(one.event, json.loads(one.data)["key"], json.loads(one.data)["revision"]) for one in events]


async def test_a_watch_has_the_current_values_then_each_change(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant)
    for value in (b"1", b"2"):
        (await put(tenant, bucket, "a", value, Content_Type="application/json")).ok()
    (await put(tenant, bucket, "gone")).ok()
    (await tenant.client.delete(f"{bucket}/keys/gone")).ok()
    async with tenant.client.events(f"{bucket}/watch") as reader:
        [(kind, entry)] = await take_until_ready(reader)
        assert (kind, entry["key"], entry["value"], entry["revision"]) == ("put", "a", 2, 2)
        (await put(tenant, bucket, "b", query="?ttlSeconds=1")).ok()
        (await tenant.client.delete(f"{bucket}/keys/a")).ok()
        assert await changes_of(reader, 2) == [("put", "b", 5), ("delete", "a", 6)]
        assert await changes_of(reader, 1) == [("expire", "b", 7)]


async def test_a_watch_of_a_prefix(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant)
    for key in ("cart.1", "cart.2", "carton", "user.1"):
        (await put(tenant, bucket, key)).ok()
    async with tenant.client.events(f"{bucket}/watch?prefix=cart.") as reader:
        assert [entry["key"] for _, entry in await take_until_ready(reader)] == ["cart.1", "cart.2"]
        for key in ("user.1", "cart.3"):
            (await put(tenant, bucket, key)).ok()
        assert await changes_of(reader, 1) == [("put", "cart.3", 6)]


async def test_a_watch_resumes_after_its_last_event(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant)
    for key in "abc":
        (await put(tenant, bucket, key)).ok()
    async with tenant.client.events(f"{bucket}/watch") as reader:
        await take_until_ready(reader)
        last = reader.last_event_id
    (await tenant.client.delete(f"{bucket}/keys/b")).ok()
    (await put(tenant, bucket, "a")).ok()
    async with tenant.client.events(f"{bucket}/watch", {"Last-Event-ID": last or ""}) as reader:
        resumed = [(kind, entry["key"]) for kind, entry in await take_until_ready(reader)]
        assert resumed == [("delete", "b"), ("put", "a")]
        (await put(tenant, bucket, "d")).ok()
        assert await changes_of(reader, 1) == [("put", "d", 6)]


async def test_a_watch_that_cannot_be_resumed_is_reset(tenant: Tenant, clock: ShiftedClock) -> None:
    bucket = await make_bucket(tenant)
    (await put(tenant, bucket, "a")).ok()
    async with tenant.client.events(f"{bucket}/watch") as reader:
        await take_until_ready(reader)
        last = reader.last_event_id or ""
    clock.ahead_ms = 25 * 3_600_000
    async with tenant.client.events(f"{bucket}/watch", {"Last-Event-ID": last}) as reader:
        assert [kind for kind, _ in await take_until_ready(reader)] == ["reset", "put"]
    clock.ahead_ms = 0
    assert (await tenant.client.delete(bucket)).status == 204
    await make_bucket(tenant)
    async with tenant.client.events(f"{bucket}/watch", {"Last-Event-ID": last}) as reader:
        assert [kind for kind, _ in await take_until_ready(reader)] == ["reset"]


async def test_no_change_is_missing_while_the_current_values_are_read(tenant: Tenant, monkeypatch: Any) -> None:
    """The last state by the events is that of the bucket, whatever was written during the snapshot."""
    monkeypatch.setattr(watching, "_PAGE_ENTRIES", 10)
    bucket = await make_bucket(tenant)
    writes = [{"key": f"k{number}", "value": 0} for number in range(100)]
    (await tenant.client.post(f"{bucket}/batch", {"writes": writes})).ok()
    is_done = False

    async def write() -> None:
        for number in range(60):
            if number % 3:
                (await put(tenant, bucket, f"k{number}", str(number).encode())).ok()
            else:
                (await tenant.client.delete(f"{bucket}/keys/k{number}")).ok()

    state: dict[str, int] = {}
    writing = asyncio.create_task(write())
    async with tenant.client.events(f"{bucket}/watch") as reader:
        while not is_done:
            [event] = await reader.take(1, 20)
            if event.event == "ready":
                await writing
                (await put(tenant, bucket, "end")).ok()
                continue
            entry = json.loads(event.data)
            is_done = entry["key"] == "end"
            if event.event == "put":
                state[entry["key"]] = entry["revision"]
            else:
                state.pop(entry["key"], None)
    listed = (await tenant.client.get(f"{bucket}/keys?limit=1000")).ok()["entries"]
    assert state == {one["key"]: one["revision"] for one in listed}


async def test_an_idle_watch_moves_its_position(tenant: Tenant, monkeypatch: Any) -> None:
    monkeypatch.setattr(watching, "HEARTBEAT_SECONDS", 0.05)
    bucket = await make_bucket(tenant)
    (await put(tenant, bucket, "other")).ok()
    async with tenant.client.events(f"{bucket}/watch?prefix=a") as reader:
        await take_until_ready(reader)
        first = reader.last_event_id
        (await put(tenant, bucket, "other")).ok()
        while (reader.last_event_id or "").partition(".")[0] != "2":
            line = await reader.answer.content.readline()
            if line.startswith(b"id: "):
                reader.last_event_id = line[4:].decode().strip()
    assert first is not None and first.startswith("1.")


async def test_watches_of_a_bucket_share_one_tail(gateway: Gateway, tenant: Tenant) -> None:
    bucket = await make_bucket(tenant)
    tails = gateway.node.platform.use(BucketsCapability).watches._tails
    before = len(tails._tails)
    async with (
        tenant.client.events(f"{bucket}/watch") as one,
        tenant.client.events(f"{bucket}/watch") as two,
    ):
        await take_until_ready(one)
        await take_until_ready(two)
        (await put(tenant, bucket, "k")).ok()
        assert await changes_of(one, 1) == await changes_of(two, 1)
        assert len(tails._tails) == before + 1


async def test_a_stream_token_watches_one_bucket(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant)
    token = (await tenant.client.post("/v1/tokens", {"resource": "bucket/cart"})).ok(201)["token"]
    async with tenant.gateway.anonymous.events(f"{bucket}/watch?bearer={token}") as reader:
        assert await take_until_ready(reader) == []


async def test_a_watch_of_a_bucket_with_history_has_the_newest_values(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant, history=3)
    for key in ("a", "b", "a"):
        (await put(tenant, bucket, key)).ok()
    (await put(tenant, bucket, "short", query="?ttlSeconds=5")).problem(400, "invalid-parameter")
    (await put(tenant, bucket, "long", query="?ttlSeconds=60")).ok()
    async with tenant.client.events(f"{bucket}/watch") as reader:
        found = [(entry["key"], entry["revision"]) for _, entry in await take_until_ready(reader)]
        assert found == [("b", 2), ("a", 3), ("long", 4)]


async def test_a_watch_of_a_prefix_resumes_after_its_last_event(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant)
    for key in ("cart.1", "user.1"):
        (await put(tenant, bucket, key)).ok()
    async with tenant.client.events(f"{bucket}/watch?prefix=cart.") as reader:
        assert [entry["key"] for _, entry in await take_until_ready(reader)] == ["cart.1"]
        last = reader.last_event_id or ""
    for key in ("user.1", "cart.2", "carton"):
        (await put(tenant, bucket, key)).ok()
    (await tenant.client.delete(f"{bucket}/keys/cart.1")).ok()
    async with tenant.client.events(f"{bucket}/watch?prefix=cart.", {"Last-Event-ID": last}) as reader:
        resumed = [(kind, entry["key"]) for kind, entry in await take_until_ready(reader)]
        assert resumed == [("put", "cart.2"), ("delete", "cart.1")]
        last = reader.last_event_id or ""
    (await put(tenant, bucket, "user.2")).ok()
    async with tenant.client.events(f"{bucket}/watch?prefix=cart.", {"Last-Event-ID": last}) as reader:
        assert await take_until_ready(reader) == []


async def test_a_token_with_a_prefix_watches_these_keys_only(tenant: Tenant) -> None:
    bucket = await make_bucket(tenant)
    for key in ("user.1.cart", "user.2.cart"):
        (await put(tenant, bucket, key)).ok()
    wanted = {"resource": "bucket/cart", "prefix": "user.1."}
    token = (await tenant.client.post("/v1/tokens", wanted)).ok(201)["token"]
    anonymous = replace(tenant.client, headers={})
    async with anonymous.events(f"{bucket}/watch?bearer={token}") as reader:
        assert [entry["key"] for _, entry in await take_until_ready(reader)] == ["user.1.cart"]
        for key in ("user.2.cart", "user.1.name"):
            (await put(tenant, bucket, key)).ok()
        assert await changes_of(reader, 1) == [("put", "user.1.name", 4)]
    async with anonymous.events(f"{bucket}/watch?prefix=user.1.c&bearer={token}") as reader:
        assert [entry["key"] for _, entry in await take_until_ready(reader)] == ["user.1.cart"]
    (await anonymous.get(f"{bucket}/watch?prefix=user.&bearer={token}")).problem(403, "forbidden")
    (await anonymous.get(f"{bucket}/keys/user.1.cart", headers={"Authorization": f"Bearer {token}"})).problem(
        401, "unauthenticated"
    )
    (await tenant.client.post("/v1/tokens", {"resource": "telemetry", "prefix": "a"})).problem(422, "invalid-body")
    (await tenant.client.post("/v1/tokens", {**wanted, "prefix": "a..b"})).problem(422, "invalid-body")


async def test_a_thousand_watches_share_one_tail(gateway: Gateway, tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine has one subscription for all of them, and each gets every change."""
    bucket = await make_bucket(tenant)
    (await put(tenant, bucket, "a")).ok()
    capability = gateway.node.platform.use(BucketsCapability)
    record = await capability.lifecycle.find(tenant.id, "cart")
    made: list[SharedTail[Any]] = []

    def counted(*arguments: Any) -> SharedTail[Any]:
        made.append(SharedTail(*arguments))
        return made[-1]

    monkeypatch.setattr(shared_tail, "SharedTail", counted)
    ready, done = asyncio.Semaphore(0), asyncio.Semaphore(0)
    seen: list[list[bytes]] = []

    async def watch() -> None:
        mine: list[bytes] = []
        seen.append(mine)
        async with aclosing(capability.watches.frames(record, "", None)) as frames:
            async for one in frames:
                if b"event: ready" in one:
                    ready.release()
                elif b"event: put" in one:
                    mine.append(one)
                    if len(mine) == 3:
                        done.release()
                        return

    watching_tasks = [asyncio.create_task(watch()) for _ in range(1000)]
    try:
        for _ in watching_tasks:
            await ready.acquire()
        for value in (b"1", b"2"):
            (await put(tenant, bucket, "b", value)).ok()
        for _ in watching_tasks:
            await done.acquire()
    finally:
        for task in watching_tasks:
            task.cancel()
        await asyncio.gather(*watching_tasks, return_exceptions=True)
    assert len(made) == 1
    assert all(one == seen[0] for one in seen)
