"""Buckets with both clients, against a running gateway."""

import asyncio
from contextlib import aclosing, closing
from itertools import islice

import pytest

from postroad.client import AsyncPostroad, BucketChange, Postroad
from postroad.client.errors import BucketKeyNotFound, BucketNotFound, RevisionMismatch
from tests.client.conftest import Sdk
from tests.gateway import Tenant


async def test_values_are_written_read_listed_and_deleted(sdk: Sdk, name: str) -> None:
    made = await sdk("buckets.create", name, history=5, replicas=3, geo="auto")
    assert (made.settings.history, made.settings.replicas, made.replicas) == (5, 3, 1)
    written = await sdk("buckets.put_value", name, "a/b.c", {"n": 1}, if_absent=True)
    assert (written.key, written.revision) == ("a/b.c", 1)
    with pytest.raises(RevisionMismatch):
        await sdk("buckets.put_value", name, "a/b.c", {"n": 2}, if_absent=True)
    await sdk("buckets.put_value", name, "a/b.c", b"\x00", if_revision=1, content_type="image/png", ttl_seconds=1000)
    value = await sdk("buckets.get_value", name, "a/b.c")
    assert (value.data, value.content_type, value.revision) == (b"\x00", "image/png", 2)
    assert (await sdk("buckets.get_value", name, "a/b.c", revision=1)).data == b'{"n":1}'
    result = await sdk("buckets.write_batch", name, [{"key": "x", "value": b"raw"}, {"key": "y", "value": 1}])
    assert [one.revision for one in result.results] == [3, 4]
    entries = await sdk("buckets.keys", name, values=True, page_size=1)
    assert [(one.key, one.body) for one in entries] == [("a/b.c", b"\x00"), ("x", b"raw"), ("y", b"1")]
    assert entries[-1].value == 1
    await sdk("buckets.delete_value", name, "y", if_revision=4)
    assert [one.operation for one in await sdk("buckets.history", name, "y")] == ["put", "delete"]
    with pytest.raises(BucketKeyNotFound):
        await sdk("buckets.get_value", name, "y")
    assert [one.name for one in await sdk("buckets.list", name=name)] == [name]
    assert (await sdk("buckets.update", name, history=1)).settings.history == 1
    await sdk("buckets.delete", name)
    with pytest.raises(BucketNotFound):
        await sdk("buckets.get", name)


async def test_a_watch_returns_values_and_changes(tenant: Tenant, name: str) -> None:
    async with AsyncPostroad(tenant.client.url, tenant.key) as client:
        await client.buckets.create(name)
        await client.buckets.put_value(name, "a", {"n": 1})
        seen: list[BucketChange] = []
        async with aclosing(client.buckets.watch(name)) as changes:
            async for change in changes:
                seen.append(change)
                if change.kind == "ready":
                    await client.buckets.delete_value(name, "a")
                if len(seen) == 3:
                    break
        assert [one.kind for one in seen] == ["put", "ready", "delete"]
        assert seen[0].entry is not None and seen[0].entry.value == {"n": 1}
        await client.buckets.put_value(name, "b", 1)
        async with aclosing(client.buckets.watch(name, after=seen[-1].id)) as changes:
            resumed = await anext(changes)
        assert resumed.entry is not None and resumed.entry.key == "b"


async def test_the_synchronous_client_watches(tenant: Tenant, name: str) -> None:
    def watch() -> list[str]:
        with Postroad(tenant.client.url, tenant.key) as client:
            client.buckets.create(name)
            client.buckets.put_value(name, "a", 1)
            with closing(client.buckets.watch(name, prefix="a")) as changes:
                return [one.kind for one in islice(changes, 2)]

    assert await asyncio.to_thread(watch) == ["put", "ready"]
