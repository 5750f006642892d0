"""Queues and health with both clients, against a running gateway; types, settings and errors of clients."""

import asyncio
from typing import TYPE_CHECKING, assert_type

import pytest

from postroad.client import AsyncPostroad, AuditEntry, IssuedKey, Message, Postroad, Published, Queue
from postroad.client.errors import IdempotencyMismatch, LeaseExpired, QueueNotFound, ReceiptInvalid, Unauthenticated, Unreachable
from postroad.client.transport import ClientSettings
from postroad.runtime.embedded_server import free_port
from tests.client.conftest import Sdk
from tests.gateway import ShiftedClock, Tenant

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator

    def the_types_follow_the_client(waiting: Postroad, awaited: AsyncPostroad) -> None:
        assert_type(waiting.queues.publish("q", 1), Published)
        assert_type(awaited.queues.publish("q", 1), Awaitable[Published])
        assert_type(waiting.queues.list(), Iterator[Queue])
        assert_type(awaited.queues.list(), AsyncIterator[Queue])
        assert_type(waiting.keys.create("ci", ["read"]), IssuedKey)
        assert_type(awaited.audit.list(), AsyncIterator[AuditEntry])
        waiting.queues.publish("q")  # type: ignore[call-arg]
        awaited.queues.pull("q", wait_ms="long")  # type: ignore[arg-type]


async def pull(sdk: Sdk, queue: str = "orders") -> Message:
    pulled = await sdk("queues.pull", queue, wait_ms=5000)
    return pulled.messages[0]  # type: ignore[no-any-return]


async def test_the_lifecycle_of_a_message(sdk: Sdk) -> None:
    made = await sdk("queues.put", "orders", visibility_timeout_ms=60_000, max_messages=10)
    assert (made.name, made.settings.visibility_timeout_ms, made.settings.max_messages) == ("orders", 60_000, 10)

    published = await sdk("queues.publish", "orders", {"n": 1}, headers={"kind": "new"}, correlation_id="c-1")
    message = await pull(sdk)

    assert (message.message_id, message.job_id) == (published.message_id, published.job_id)
    assert (message.payload, message.headers, message.correlation_id, message.attempt) == ({"n": 1}, {"kind": "new"}, "c-1", 1)
    assert (await sdk("queues.get", "orders")).stats.leased == 1
    assert (await sdk("queues.ack", "orders", message)).ok
    assert (await sdk("queues.get", "orders")).stats.leased == 0
    await sdk("queues.delete", "orders")
    with pytest.raises(QueueNotFound):
        await sdk("queues.get", "orders")


async def test_a_batch_has_a_result_for_each(sdk: Sdk, tenant: Tenant) -> None:
    await tenant.queue("orders")
    batch = await sdk(
        "queues.publish_batch", "orders", [{"payload": 1}, {"payload": 2, "headers": {"x": "y" * 20_000}}, {"payload": 3}]
    )

    assert (batch.published, batch.failed) == (2, 1)
    assert [item.problem.code if item.problem else None for item in batch.results] == [None, "invalid-body", None]
    first, second = await pull(sdk), await pull(sdk)
    acked = await sdk("queues.ack_many", "orders", [first, second.receipt_id, "forged"])
    assert not acked.ok
    assert [result.ok for result in acked.results] == [True, True, False]
    assert acked.results[2].problem.code == "receipt-invalid"


async def test_a_list_iterates_over_all_pages(sdk: Sdk, tenant: Tenant) -> None:
    names = [f"queue-{number:02}" for number in range(7)]
    for name in names:
        await tenant.queue(name)

    assert [queue.name for queue in await sdk("queues.list", page_size=3)] == names


async def test_readiness_is_returned(sdk: Sdk) -> None:
    assert (await sdk("health.ready")).checks["engine"].ok


async def test_errors_are_those_of_the_table_with_the_request_id(sdk: Sdk, tenant: Tenant, clock: ShiftedClock) -> None:
    with pytest.raises(QueueNotFound) as missing:
        await sdk("queues.publish", "nowhere", 1)
    assert missing.value.request_id
    assert "nowhere" in missing.value.detail

    await tenant.queue("orders")
    await sdk("queues.publish", "orders", 1, idempotency_key="one")
    with pytest.raises(IdempotencyMismatch):
        await sdk("queues.publish", "orders", 2, idempotency_key="one")
    with pytest.raises(ReceiptInvalid):
        await sdk("queues.ack", "orders", "forged")
    message = await pull(sdk)
    clock.ahead_ms = 31_000
    with pytest.raises(LeaseExpired):
        await sdk("queues.ack", "orders", message)


async def test_names_are_escaped_in_paths(sdk: Sdk) -> None:
    with pytest.raises(Exception, match="a queue name"):
        await sdk("queues.put", "a b?c#d")


# Settings


async def test_a_wrong_key_is_refused_and_not_shown(tenant: Tenant) -> None:
    async with AsyncPostroad(tenant.client.url, "pr_live_wrong") as client:
        with pytest.raises(Unauthenticated) as refused:
            await client.queues.get("orders")
    assert "pr_live_wrong" not in str(refused.value)
    assert "secret" not in repr(ClientSettings("http://x", "secret"))


def test_a_client_needs_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POSTROAD_KEY", raising=False)
    with pytest.raises(ValueError, match="POSTROAD_KEY"):
        Postroad("http://127.0.0.1:1")


async def test_url_and_key_come_from_the_environment(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_URL", tenant.client.url + "/")
    monkeypatch.setenv("POSTROAD_KEY", tenant.key)
    monkeypatch.setenv("POSTROAD_TENANT", tenant.id)
    async with AsyncPostroad() as client:
        assert [queue async for queue in client.queues.list()] == []


async def test_an_empty_tenant_overrides_the_environment(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_TENANT", "somebody-else")
    async with AsyncPostroad(tenant.client.url, tenant.key, tenant="") as client:
        assert (await client.keys.whoami()).tenant == tenant.id


async def test_an_anonymous_client_ignores_the_key_of_the_environment(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTROAD_KEY", tenant.key)
    async with AsyncPostroad(tenant.client.url, anonymous=True) as client:
        assert (await client.health.ready()).status == "ready"
        with pytest.raises(Unauthenticated, match="send the key"):  # which is what it says to who sent nothing
            await client.keys.whoami()


def test_a_key_and_anonymous_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="anonymous"):
        Postroad("http://127.0.0.1:1", "key", anonymous=True)


async def test_an_unreachable_server_raises_within_the_deadline() -> None:
    async with AsyncPostroad(f"http://127.0.0.1:{free_port()}", "key", deadline=0.3) as client:
        async with asyncio.timeout(30):
            with pytest.raises(Unreachable):
                await client.health.ready()
