"""The setting `backend` of queues: how it is chosen, fixed and shown, and what it excludes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from postroad.api.queues import ENGINE, StrictQueueSettings
from postroad.kernel.configuration import Secret
from postroad.runtime.embedded_server import free_port
from tests.gateway import Gateway, gateway_settings, running_gateway
from tests.queues.conformance.conftest import Case
from tests.queues.conformance.test_native import only_record
from tests.queues.conformance.test_queues import drained
from tests.rabbitmq_server import RabbitServer, needs_rabbitmq


@pytest.fixture
async def unreachable(engine_url: str) -> AsyncIterator[Gateway]:
    """A gateway whose RabbitMQ, the default backend, does not answer."""
    url = Secret(f"amqp://guest:guest@127.0.0.1:{free_port()}/")
    async with running_gateway(gateway_settings(engine_url, rabbitmq_url=url, queue_backend="rabbitmq")) as running:
        yield running


async def test_the_backend_is_shown_and_cannot_be_changed(case: Case) -> None:
    queue = await case.queue()
    client = case.tenant.client
    shown = (await client.get(queue)).ok()
    assert shown["settings"]["backend"] == case.backend
    assert ("amqp" in shown["features"], "peek" in shown["features"]) == (case.backend != ENGINE, case.backend == ENGINE)
    other = "rabbitmq" if case.backend == ENGINE else "engine"
    for response in (await client.put(queue, {"backend": other}), await client.patch(queue, {"backend": other})):
        assert response.problem(422, "invalid-body")["errors"][0]["path"] == "$.backend"
    assert (await client.put(queue, {"maxAttempts": 3})).ok()["settings"]["backend"] == case.backend
    assert (await client.patch(queue, {"backend": None})).ok()["settings"]["backend"] == case.backend


@pytest.mark.parametrize(
    ("path", "settings"),
    [
        ("$.ordered", {"ordered": True}),
        ("$.maxInFlight", {"maxInFlight": 5}),
        ("$.geo", {"geo": "auto"}),
        ("$.visibilityTimeoutMs", {"visibilityTimeoutMs": 30 * 60_000}),
    ],
)
async def test_settings_that_the_backend_cannot_keep_are_refused(case: Case, path: str, settings: dict[str, object]) -> None:
    response = await case.tenant.client.put("/v1/queues/q", {"backend": case.backend, **settings})
    if case.backend == ENGINE:
        response.ok(201)
    else:
        assert response.problem(422, "invalid-body")["errors"][0]["path"] == path


async def test_earlier_releases_can_read_the_record(case: Case) -> None:
    """They refuse settings that they do not know, so during an upgrade the stored ones must not have any."""
    await case.queue()
    fields = [one for one in msgspec.structs.fields(StrictQueueSettings) if one.name != "backend"]
    earlier_settings = msgspec.defstruct(
        "EarlierSettings",
        [(one.name, object, None) for one in fields],
        rename={one.name: one.encode_name for one in fields},
        forbid_unknown_fields=True,
    )
    earlier: Any = msgspec.defstruct("Earlier", [("name", str), ("settings", earlier_settings)])
    record, _ = only_record(case)
    msgspec.json.decode(msgspec.json.encode(record), type=earlier)


@needs_rabbitmq
async def test_later_versions_of_rabbitmq_keep_long_leases(rabbit_case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their queues have `x-consumer-timeout`, which Debian's version ignores."""

    async def later() -> tuple[int, int]:
        return 3, 12

    monkeypatch.setattr(rabbit_case.rabbit.backend.rabbit, "version", later)
    long = {"visibilityTimeoutMs": 12 * 3_600_000}
    queue = await rabbit_case.queue("long", **long)
    (await rabbit_case.tenant.client.patch(queue, {"maxAttempts": 3})).ok()
    await rabbit_case.tenant.publish(queue, 1)
    [message] = await rabbit_case.elsewhere.pull(queue, waitMs=20_000)
    (await rabbit_case.elsewhere.client.post(f"{queue}/extend", {"receiptId": message["receiptId"], **long})).ok()


@needs_rabbitmq
async def test_extensions_do_not_make_a_lease_longer_than_rabbitmq_keeps_it(rabbit_case: Case) -> None:
    queue, minutes = await rabbit_case.queue(), 60_000
    await rabbit_case.tenant.publish(queue, 1)
    [message] = await rabbit_case.tenant.pull(queue, waitMs=20_000, visibilityTimeoutMs=20 * minutes)
    clock = rabbit_case.tenant.gateway.clock
    clock.ahead_ms = 19 * minutes
    try:
        body = {"receiptId": message["receiptId"], "visibilityTimeoutMs": 10 * minutes}
        refused = await rabbit_case.tenant.client.post(f"{queue}/extend", body)
        assert refused.problem(422, "invalid-body")["errors"][0]["path"] == "$.visibilityTimeoutMs"
        (await rabbit_case.tenant.client.post(f"{queue}/extend", {**body, "visibilityTimeoutMs": 5 * minutes})).ok()
    finally:
        clock.ahead_ms = 0


async def test_a_lease_is_as_long_as_the_backend_can_keep_it(case: Case) -> None:
    queue, too_long = await case.queue(), {"visibilityTimeoutMs": 30 * 60_000}
    await case.tenant.publish(queue, 1)
    [message] = await drained(case, queue, 1)
    extended = await case.tenant.client.post(f"{queue}/extend", {"receiptId": message["receiptId"], **too_long})
    pulled = await case.tenant.client.post(f"{queue}/pull", too_long)
    for response in (extended, pulled):
        if case.backend == ENGINE:
            response.ok()
        else:
            assert response.problem(422, "invalid-body")["errors"][0]["path"] == "$.visibilityTimeoutMs"


async def test_without_rabbitmq_its_queues_are_refused(engine_url: str, tmp_path: Path) -> None:
    async with running_gateway(gateway_settings(engine_url, data_dir=tmp_path)) as gateway:
        tenant = await gateway.tenant()
        problem = (await tenant.client.put("/v1/queues/q", {"backend": "rabbitmq"})).problem(422, "invalid-body")
        assert problem["errors"][0]["path"] == "$.backend"
        assert "rabbitmq" not in (await tenant.client.get("/readyz")).ok()["checks"]


async def test_the_default_backend_must_be_reachable_and_others_work_without_it(unreachable: Gateway) -> None:
    tenant = await unreachable.tenant()
    readiness = await tenant.client.get("/readyz")
    assert (readiness.status, readiness.json["checks"]["rabbitmq"]["ok"]) == (503, False)
    refused = await tenant.client.put("/v1/queues/q", {})
    refused.problem(503, "backend-unavailable")
    assert int(refused.headers["retry-after"]) >= 1
    for settings in ({"backend": "engine"}, {"ordered": True}):
        queue = f"/v1/queues/engine-{len(settings)}{'o' if 'ordered' in settings else ''}"
        assert (await tenant.client.put(queue, settings)).ok(201)["settings"]["backend"] == "engine"
    await tenant.publish("/v1/queues/engine-1", 1)


@needs_rabbitmq
async def test_a_blocked_rabbitmq_refuses_messages_and_serves_the_rest(engine_url: str, tmp_path: Path) -> None:
    """A short memory, as RabbitMQ sees it, blocks connections that publish."""
    server = RabbitServer(tmp_path / "rabbitmq", "vm_memory_high_watermark.absolute = 1MB")
    try:
        await asyncio.to_thread(server.start)
        async with running_gateway(gateway_settings(engine_url, rabbitmq_url=Secret(server.url))) as gateway:
            tenant = await gateway.tenant()
            queue = await tenant.queue(backend="rabbitmq")
            refused = await tenant.client.post(f"{queue}/messages", {"payload": 1})
            refused.problem(503, "backend-unavailable")
            assert int(refused.headers["retry-after"]) >= 1
            await tenant.publish(queue, 1, delayMs=3_600_000)
            assert await tenant.pull(queue) == []
            assert (await tenant.stats(queue))["delayed"] == 1
            (await tenant.client.delete(queue)).ok(204)
    finally:
        await asyncio.to_thread(server.stop)


async def test_readiness_does_not_depend_on_a_backend_that_is_not_the_default(case: Case) -> None:
    assert (await case.tenant.client.get("/readyz")).ok()["checks"]["rabbitmq"]["ok"] is True
